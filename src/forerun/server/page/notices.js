// Messages besides the text: short texts for screen readers, and failures with advice.

import { byId, element } from "./dom.js";

/** Say this to screen readers only. */
export function say(words) {
  byId("status").textContent = words;
}

/** Show a failure until it is closed. @param {Record<string, () => void>} remedies what a button may do */
export function showFailure(failure, remedies = {}) {
  const names = { key: "Enter the key", settings: "Open settings", again: "Try again" };
  const close = element("button", { type: "button", class: "icon small", "aria-label": "Close this message", onclick: () => box.remove() }, "✕");
  const name = failure.remedy === "wait" ? "again" : failure.remedy;
  const remedy = remedies[name];
  const act = remedy && element("button", { type: "button", onclick: () => { box.remove(); remedy(); } }, names[name]);
  const box = element("div", { class: "alert" }, element("p", {}, failure.message), act, close);
  byId("alerts").replaceChildren(box);
}

export function clearFailures() {
  byId("alerts").replaceChildren();
}
