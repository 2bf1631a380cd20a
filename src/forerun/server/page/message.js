// One message on the page: its text, its buttons, its branches.

import { answerInWords } from "./claim.js";
import { element } from "./dom.js";
import { Rendered } from "./markdown.js";

const SAID = "What stands under an answer: its tokens, its speed, what the model had to read before it (the beginning of a conversation " +
  "stays in its memory and is not read again), and the seed that gives the same text again.";
const MAX_WHOLE = 30; // letters of a fact that is not broken: a longer one would leave others alone on their lines

function button(action, words, label) {
  return element("button", { type: "button", "data-action": action, "aria-label": label ?? null }, words);
}

/** What stands under an answer, measured by the server: a list of short facts. */
export function facts(message) {
  const { usage, timings } = message;
  if (!usage) return [];
  const perRound = usage.forerun?.tokens_per_round;
  const cached = usage.prompt_tokens_details?.cached_tokens;
  return [
    `${usage.completion_tokens} tokens`,
    timings?.predicted_per_second && `${timings.predicted_per_second.toFixed(1)} tokens/s`,
    answerInWords(usage.forerun),
    perRound && `${perRound.toFixed(2)} tokens a round`,
    cached && `${usage.prompt_tokens} tokens of conversation before it, ${cached} of them read earlier`,
    message.seed !== null && message.seed !== undefined && `seed ${message.seed}`,
  ].filter(Boolean);
}

export class MessageView {
  constructor(message, { siblings, number }) {
    this.message = message;
    this.isUser = message.role === "user";
    this.text = element("div", { class: this.isUser ? "text question" : "text" });
    this.foot = element("p", { class: "facts", title: SAID });
    this.note = element("p", { class: "note", hidden: true });
    this.node = element("article", {
      class: `message ${message.role}`, "data-id": message.id, "aria-label": `${this.isUser ? "You" : "The model"}, message ${number}`,
    }, this.text, this.note, this.foot, this.#actions(siblings));
    this.rendered = new Rendered(this.text);
    this.reasoning = null;
  }

  /** Show the message as it is. */
  show(withMarks) {
    this.#showReasoning();
    if (this.isUser) this.#showQuestion();
    else this.rendered.rebuild(this.message.text, withMarks && this.message.marks.length ? this.message.marks : null);
    this.showEnd();
  }

  #showQuestion() {
    const { files = [], text } = this.message;
    const shown = files.map((file) => element("details", { class: "file" }, element("summary", {}, file.name), element("pre", { tabindex: "0" }, file.text)));
    this.text.replaceChildren(...shown, text);
  }

  /** Show what a recording has got since the last frame. */
  grow(recording, withMarks) {
    this.message.reasoning = recording.reasoning;
    this.#showReasoning();
    if (recording.text) this.rendered.update(recording.text, withMarks ? recording.marks : null);
  }

  showEnd() {
    this.foot.replaceChildren(...facts(this.message).map((fact) => element("span", { class: fact.length < MAX_WHOLE ? "whole" : null }, fact)));
    this.note.textContent = this.message.note;
    this.note.hidden = !this.message.note;
    if (this.more) this.more.hidden = !this.message.isCut || Boolean(this.message.chosen);
  }

  set isBusy(isBusy) {
    this.node.setAttribute("aria-busy", String(isBusy));
    this.node.classList.toggle("busy", isBusy);
  }

  #showReasoning() {
    const { reasoning } = this.message;
    if (!reasoning) return;
    if (!this.reasoning) {
      this.reasoning = element("div", { class: "reasoning-text" });
      this.text.before(element("details", { class: "reasoning" }, element("summary", {}, "Thoughts"), this.reasoning));
    }
    this.reasoning.textContent = reasoning;
  }

  #actions(siblings) {
    if (!this.isUser) this.more = button("continue", "Continue", "Continue this answer where it ends");
    const own = this.isUser
      ? [button("copy", "Copy"), button("edit", "Edit")]
      : [this.more, button("copy", "Copy"), button("inspect", "Rounds"), button("regenerate", "Regenerate")];
    const place = siblings.indexOf(this.message);
    const arrows = siblings.length < 2 ? [] : [element("span", { class: "branches" },
      button("before", "‹", "The version before"),
      element("span", {}, `${place + 1} / ${siblings.length}`),
      button("after", "›", "The next version"))];
    return element("div", { class: "actions" }, ...own, ...arrows);
  }
}
