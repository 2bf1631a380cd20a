// One message on the page: its text, its buttons, its branches.

import { element } from "./dom.js";
import { Rendered } from "./markdown.js";

function button(action, words, label) {
  return element("button", { type: "button", "data-action": action, "aria-label": label ?? null }, words);
}

/** What stands under an answer: how fast it was, measured by the server. */
export function summary(message) {
  const { usage, timings } = message;
  if (!usage) return "";
  const parts = [`${usage.completion_tokens} tokens`];
  if (timings?.predicted_per_second) parts.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
  const speedup = usage.forerun?.speedup;
  if (speedup) parts.push(`${speedup.value.toFixed(2)}× as fast as without drafter (${speedup.low.toFixed(2)}–${speedup.high.toFixed(2)})`);
  if (usage.forerun?.tokens_per_round) parts.push(`${usage.forerun.tokens_per_round.toFixed(2)} tokens a round`);
  const cached = usage.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens were known already`);
  if (message.seed !== null && message.seed !== undefined) parts.push(`seed ${message.seed}`);
  return parts.join(" · ");
}

export class MessageView {
  constructor(message, { siblings, number }) {
    this.message = message;
    this.isUser = message.role === "user";
    this.text = element("div", { class: this.isUser ? "text question" : "text" });
    this.foot = element("p", { class: "facts" });
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
    if (this.isUser) this.text.textContent = this.message.text;
    else this.rendered.rebuild(this.message.text, withMarks && this.message.marks.length ? this.message.marks : null);
    this.showEnd();
  }

  /** Show what a recording has got since the last frame. */
  grow(recording, withMarks) {
    this.message.reasoning = recording.reasoning;
    this.#showReasoning();
    if (recording.text) this.rendered.update(recording.text, withMarks ? recording.marks : null);
  }

  showEnd() {
    this.foot.textContent = summary(this.message);
    this.note.textContent = this.message.note;
    this.note.hidden = !this.message.note;
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
    const own = this.isUser
      ? [button("copy", "Copy"), button("edit", "Edit")]
      : [button("copy", "Copy"), button("inspect", "Rounds"), button("regenerate", "Regenerate")];
    const place = siblings.indexOf(this.message);
    const arrows = siblings.length < 2 ? [] : [element("span", { class: "branches" },
      button("before", "‹", "The version before"),
      element("span", {}, `${place + 1} / ${siblings.length}`),
      button("after", "›", "The next version"))];
    return element("div", { class: "actions" }, ...own, ...arrows);
  }
}
