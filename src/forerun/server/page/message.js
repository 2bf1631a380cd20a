// One message on the page: its text, its buttons, its branches.

import { argumentsInLines } from "./calls.js";
import { answerInWords } from "./claim.js";
import { element } from "./dom.js";
import { Rendered } from "./markdown.js";

const SAID = "What stands under an answer: its tokens, its speed, the prompt (the conversation before the answer; its cached beginning was " +
  "not read again), and the seed that gives the same text again.";
const MIN_SHOWN_MS = 500; // a shorter wait needs no words
const MAX_WHOLE = 30; // a fact of up to this many letters is not wrapped; longer ones are, so that no other fact is left alone on its line

function button(action, words, label) {
  return element("button", { type: "button", "data-action": action, "aria-label": label ?? null }, words);
}

/** The line under an answer, measured by the server: a list of short facts. */
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
    usage.forerun?.replica && `written by ${usage.forerun.replica}`,
    cached && `${usage.prompt_tokens} prompt tokens, ${cached} cached`,
    message.seed !== null && message.seed !== undefined && `seed ${message.seed}`,
  ].filter(Boolean);
}

/** How much of a prompt is read, and the time until it is read at this speed. */
export function readingInWords({ total, cache, processed, time_ms: milliseconds }) {
  const seconds = Math.ceil(((total - processed) * milliseconds) / Math.max(1, processed - cache) / 1000);
  const left = seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
  return `reading the prompt: ${processed.toLocaleString("en")} of ${total.toLocaleString("en")} tokens, ${left} left`;
}

export class MessageView {
  constructor(message, { siblings, number }) {
    this.message = message;
    this.isAnswer = message.role === "assistant";
    this.text = element("div", { class: this.isAnswer ? "text" : "text question" });
    this.foot = element("p", { class: "facts", title: SAID });
    this.note = element("p", { class: "note", hidden: true });
    this.node = element("article", {
      class: `message ${message.role}`, "data-id": message.id, "aria-label": `${this.#author()}, message ${number}`,
    }, this.text, this.note, this.foot, this.#actions(siblings));
    this.rendered = new Rendered(this.text);
    this.reasoning = null;
    this.calls = [];
  }

  #author() {
    const { role, call } = this.message;
    return role === "tool" ? `Result of ${call.name}` : this.isAnswer ? "The model" : "You";
  }

  /** Show the message as it is. */
  show(withMarks) {
    this.#showReasoning();
    this.#showCalls();
    if (!this.isAnswer) this.#showQuestion();
    else this.rendered.rebuild(this.message.text, withMarks && this.message.marks.length ? this.message.marks : null);
    this.showEnd();
  }

  #showQuestion() {
    const { files = [], text, call } = this.message;
    const label = call && element("p", { class: "label" }, `Result of ${call.name}`);
    const shown = files.map((file) => element("details", { class: "file" }, element("summary", {}, file.name), element("pre", { tabindex: "0" }, file.text)));
    this.text.replaceChildren(...(label ? [label] : []), ...shown, text);
  }

  /** Show what a recording received since the last frame. */
  grow(recording, withMarks) {
    Object.assign(this.message, { reasoning: recording.reasoning, calls: recording.calls });
    const { reading } = recording;
    this.foot.textContent = reading && reading.time_ms > MIN_SHOWN_MS ? readingInWords(reading) : "";
    this.#showReasoning();
    this.#showCalls();
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

  #showCalls() {
    for (const [i, call] of (this.message.calls ?? []).entries()) {
      this.calls[i] ??= this.#addCall(call.name);
      this.calls[i].textContent = argumentsInLines(call);
    }
  }

  #addCall(name) {
    const written = element("pre", { tabindex: "0" });
    this.note.before(element("details", { class: "call" }, element("summary", {}, `Call of ${name}`), written));
    return written;
  }

  #actions(siblings) {
    if (this.isAnswer) this.more = button("continue", "Continue", "Continue this answer where it ends");
    const own = this.isAnswer
      ? [this.more, button("copy", "Copy"), button("inspect", "Rounds"), button("regenerate", "Regenerate")]
      : [button("copy", "Copy"), button("edit", "Edit")];
    const place = siblings.indexOf(this.message);
    const arrows = siblings.length < 2 ? [] : [element("span", { class: "branches" },
      button("before", "‹", "The version before"),
      element("span", {}, `${place + 1} / ${siblings.length}`),
      button("after", "›", "The next version"))];
    return element("div", { class: "actions" }, ...own, ...arrows);
  }
}
