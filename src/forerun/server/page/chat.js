// The conversation in the middle: sends questions, shows the answer while it arrives, stops it, branches it.

import { record, requestOf } from "./answer.js";
import { openCall } from "./calls.js";
import { addMessage, choose, newConversation, requestMessages, shownMessages, siblingsOf } from "./conversation.js";
import { copiesCode, copy } from "./copying.js";
import { byId, element } from "./dom.js";
import { failureOf } from "./failures.js";
import { atNextFrame, notAtNextFrame } from "./frames.js";
import { wordsOf } from "./legend.js";
import { MessageView } from "./message.js";
import { Meters } from "./meters.js";
import { clearFailures, say, showFailure } from "./notices.js";
import { Recording } from "./recording.js";

// What the page says before the first message, by what was measured.
const HEADLINES = new Map([
  [null, "Ask something, and see who wrote each word."],
  [true, "Ask something, and watch it being guessed ahead."],
  [false, "Ask something."],
]);
// The answer repeats it, so guesses gain here even where they gain nothing on other texts.
const FAULTY_TEXT = "Correct the spelling of this text, and change nothing else:\n\nThe forest is very old. Many birds and smal animals live in the forest, and people from the village walk to the forest on Sundays. " +
  "In autumn the forest is red and gold, and in winter the forest is quiet and white. In spring the birds come back to the forest, and the childrn " +
  "of the village look for the first flowers.";

export class Chat {
  conversation = newConversation();
  #views = new Map();
  #running = null; // {controller, view, recording}
  #meters = new Meters();

  /** @param {object} parts settings, server, store, inspector, scroll; onchange() after the list may differ */
  constructor(parts) {
    Object.assign(this, parts);
    copiesCode(byId("messages"));
    byId("messages").addEventListener("click", (event) => this.#clicked(event));
    byId("messages").addEventListener("pointerover", ({ target }) => {
      if (target.dataset?.round) target.title = `${wordsOf(target.classList[1].slice(3))}, round ${Number(target.dataset.round) + 1}`;
    });
  }

  get isBusy() {
    return this.#running !== null;
  }

  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.show();
    this.scroll.toEnd();
  }

  /** Build the messages of the chosen branch. */
  show() {
    const messages = shownMessages(this.conversation);
    this.#views.clear();
    const views = messages.map((message, i) => {
      const view = new MessageView(message, { siblings: siblingsOf(this.conversation, message), number: i + 1 });
      view.show(this.settings.values.marks === "on");
      this.#views.set(message.id, view);
      return view.node;
    });
    byId("messages").replaceChildren(...(views.length ? views : [this.#welcome()]));
    this.showContext();
    this.showGain();
    this.#showAsked();
    if (!this.#running) return;
    this.#running.view = this.#views.get(this.#running.view.message.id) ?? this.#running.view;
    this.#running.view.isBusy = true;
  }

  /** Show how much of the context the newest answer has used. */
  showContext() {
    const usage = shownMessages(this.conversation).findLast((message) => message.usage)?.usage;
    this.#meters.showContext(usage, this.server.max_length);
  }

  /** Say what was measured: that guesses gain, or that they do not, and which model would gain. */
  showGain() {
    const { gained, advice } = this.server;
    const headline = document.querySelector(".welcome h2");
    if (headline) headline.textContent = HEADLINES.get(gained);
    byId("no-gain").hidden = gained !== false;
    if (gained !== false) return;
    const parts = advice.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part)); // commands are between backticks
    byId("no-gain").replaceChildren("Guesses did not make the newest measured answer faster on this machine. ", ...parts);
  }

  // Show in the field what to write: a question, or the result of a call.
  #showAsked() {
    const call = openCall(shownMessages(this.conversation));
    const field = byId("question");
    field.placeholder = call ? `Result of ${call.name}` : "Ask something";
    field.labels[0].textContent = call ? field.placeholder : "Your message";
    return call;
  }

  #welcome() {
    const ask = (words, text = words) => element("button", { type: "button", class: "example", onclick: () => this.ask(text) }, words);
    return element("div", { class: "welcome" },
      element("h2", {}),
      element("p", {}, "A drafter guesses the next words, the model checks many of them in one pass. The text is the model's own, whoever guesses."),
      element("div", { class: "examples" },
        ask("Correct the spelling of a text about a forest.", FAULTY_TEXT),
        ask("Write a Python function that merges two sorted lists."),
        ask("Tell me a short story about a lighthouse keeper.")));
  }

  /** Send the user's text at the end of the chosen branch: the result of a call that has none yet, else a question. */
  async ask(text, files = []) {
    if (this.isBusy || !(text.trim() || files.length)) return;
    const messages = shownMessages(this.conversation);
    const call = openCall(messages);
    await this.#say({ parent: messages.at(-1)?.id ?? null, role: call ? "tool" : "user", call, text: text.trim(), files });
  }

  // Add a message of the user; the model answers once every call has its result.
  async #say(fields) {
    const message = addMessage(this.conversation, fields);
    const call = openCall(shownMessages(this.conversation));
    if (!call) return this.#answer(message);
    this.show();
    this.scroll.toEnd();
    this.onchange();
    byId("question").focus();
    say(`Now write the result of ${call.name}.`);
    await this.keep(this.conversation);
  }

  /** End the answer in progress; the part that has arrived stays. */
  stop() {
    this.#running?.controller.abort();
  }

  #answer(question) {
    const message = addMessage(this.conversation, { parent: question.id, role: "assistant", text: "" });
    this.show();
    this.scroll.toEnd();
    return this.#write(message, question, new Recording());
  }

  // Continue an answer that was cut off.
  async #goOn(message) {
    const rounds = await this.store.rounds(message.id).catch(() => []);
    if (!this.isBusy) await this.#write(message, message, new Recording().goOn(message, rounds));
  }

  async #write(message, last, recording) {
    clearFailures();
    const conversation = this.conversation;
    const run = { controller: new AbortController(), view: this.#views.get(message.id), recording, conversation };
    this.#running = run;
    run.view.isBusy = true;
    Object.assign(message, { note: "The page was left before this answer was complete.", isCut: message === last }); // stands in what is stored now
    this.onchange();
    this.keep(conversation);
    Object.assign(message, { note: "", isCut: false, drafter: this.server.chosen(this.settings.values.drafter) ?? this.server.drafter });
    run.view.showEnd();
    this.inspector.follow(recording, message.drafter);
    say("The model answers.");
    const failure = await this.#stream(run, requestMessages(conversation, last, this.settings.values.system), message === last);
    this.#end(run, failure);
    await this.#keep(run);
  }

  async #stream(run, messages, goesOn) {
    const { message } = run.view;
    const sampling = this.settings.sampling();
    if (goesOn) sampling.seed = message.seed ?? sampling.seed;
    message.seed = sampling.seed;
    const request = requestOf({
      model: this.server.model, messages, sampling, drafter: this.server.chosen(this.settings.values.drafter), tools: this.settings.tools(), goesOn,
    });
    const onArrival = () => atNextFrame("answer", () => this.#draw(run));
    try {
      const isWhole = await record(run.recording, request, { key: this.settings.key, signal: run.controller.signal, onArrival });
      if (!isWhole) message.note = "Stopped.";
      return null;
    } catch (error) {
      return failureOf(error);
    }
  }

  #draw(run) {
    if (run.conversation === this.conversation) run.view.grow(run.recording, this.settings.values.marks === "on");
    this.#meters.show(run.recording);
    this.inspector.grow(run.recording);
    this.scroll.follow();
  }

  #end(run, failure) {
    notAtNextFrame("answer");
    const { message } = run.view;
    const { text, reasoning, calls, marks, usage, timings, finish } = run.recording;
    Object.assign(message, { text, reasoning, calls, marks, usage, timings });
    if (failure) message.note = failure.remedy ? "This answer is not complete." : failure.message;
    else if (finish === "length") message.note = this.#whyCut(usage);
    message.isCut = Boolean(text && !calls.length && (failure ? failure.remedy : message.note)) && !this.#isFull(usage);
    this.#running = null;
    this.#draw(run);
    run.view.isBusy = false;
    run.view.showEnd();
    this.showContext();
    this.server.meetAgain().then(() => this.scroll.follow());
    this.onchange();
    const call = this.#showAsked();
    const next = call ? ` Write the result of ${call.name}.` : "";
    say(failure?.remedy ? "" : `${message.note || "The answer is complete."} ${run.recording.numTokens} tokens.${next}`);
    if (failure?.remedy)
      showFailure(failure, { key: () => this.settings.open("key"), settings: () => this.settings.open(), again: () => this.#regenerate(message) });
  }

  #isFull(usage) {
    return Boolean(usage) && usage.prompt_tokens + usage.completion_tokens >= this.server.max_length;
  }

  #whyCut(usage) {
    return this.#isFull(usage)
      ? `Cut off: the context of ${this.server.max_length} tokens is full. Begin a new conversation.`
      : "Cut off: the settings allow no longer answer.";
  }

  async #keep(run) {
    run.conversation.changedMs = Date.now();
    if (!(await this.keep(run.conversation))) return;
    await this.store.putRounds(run.conversation.id, run.view.message.id, run.recording.rounds).catch(() => {});
  }

  #regenerate(message) {
    const question = this.conversation.messages[message.parent]; // none where another conversation was opened meanwhile
    if (!this.isBusy && question) this.#answer(question);
  }

  #clicked(event) {
    const token = event.target.closest(".by");
    const node = event.target.closest("article");
    const message = node && this.#views.get(node.dataset.id)?.message;
    if (!message) return; // as where the button has just put another branch into its place
    const action = event.target.closest("[data-action]")?.dataset.action;
    if (action === "copy") copy(event.target, this.#copied(message));
    else if (action === "inspect") this.#inspect(message, null);
    else if (token && this.inspector.isOpen) this.#inspect(message, Number(token.dataset.round));
    else if (action && !this.isBusy) this.#branch(action, message);
  }

  #copied({ text, calls = [] }) {
    return text || calls.map((call) => call.arguments).join("\n") || this.#running?.recording.text || "";
  }

  #branch(action, message) {
    if (action === "regenerate") return this.#regenerate(message);
    if (action === "continue") return this.#goOn(message);
    if (action === "edit") return this.#edit(message);
    const all = siblingsOf(this.conversation, message);
    const other = all[(all.indexOf(message) + (action === "before" ? all.length - 1 : 1)) % all.length];
    choose(this.conversation, other);
    this.keep(this.conversation);
    this.show();
    this.#views.get(other.id).node.querySelector(`[data-action=${action}]`)?.focus();
    return undefined;
  }

  /** Open the rounds of the newest answer; those that come are followed. */
  inspectNewest() {
    const newest = shownMessages(this.conversation).findLast(({ role }) => role === "assistant");
    if (this.isBusy || !newest) this.inspector.toggle();
    else this.#inspect(newest, null);
  }

  async #inspect(message, roundIdx) {
    const running = this.#running?.view.message.id === message.id;
    const rounds = running ? this.#running.recording.rounds : await this.store.rounds(message.id).catch(() => []);
    this.inspector.open(rounds, roundIdx, message.drafter);
  }

  #edit(message) {
    const view = this.#views.get(message.id);
    const field = element("textarea", { class: "edit", "aria-label": "Edit your message", rows: Math.min(10, message.text.split("\n").length + 1) });
    field.value = message.text;
    const cancel = () => this.show();
    const send = () => {
      if (field.value.trim() && !this.isBusy) this.#say({ parent: message.parent, role: message.role, call: message.call, text: field.value.trim(), files: message.files });
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") cancel();
    });
    view.text.replaceChildren(field, element("div", { class: "actions shown" },
      element("button", { type: "button", class: "primary", onclick: send }, "Send"),
      element("button", { type: "button", onclick: cancel }, "Cancel")));
    field.focus();
  }
}
