// The user's settings. All except the key are stored; the key is kept as long as the tab is open.

import { problemOfTools, toolsOf } from "./calls.js";
import { byId, element } from "./dom.js";

const KEPT = "forerun.settings";
const KEY = "forerun.key";
const FIELDS = [
  { name: "system", label: "System prompt", kind: "textarea", hint: "Instructions for the model before every conversation." },
  { name: "tools", label: "Tools (JSON)", kind: "textarea", spellcheck: "false", problemOf: problemOfTools, hint: "Functions that the model may call, an array in OpenAI's form. You write their results." },
  { name: "temperature", label: "Temperature", kind: "number", min: 0, max: 2, step: 0.05, hint: "0: always the most probable token. Higher: more varied." },
  { name: "top_p", label: "Top p", kind: "number", min: 0.01, max: 1, step: 0.01, hint: "Leaves out the least probable tokens. 1: none." },
  { name: "top_k", label: "Top k", kind: "number", min: 0, max: 1048576, step: 1, hint: "Keeps only this many of the most probable tokens. 0: all." },
  { name: "min_p", label: "Min p", kind: "number", min: 0, max: 1, step: 0.01, hint: "Leaves out tokens below this share of the highest probability. 0: none." },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "number", min: 0.01, max: 100, step: 0.01, hint: "Above 1: tokens that are already in the text become less probable." },
  { name: "presence_penalty", label: "Presence penalty", kind: "number", min: -2, max: 2, step: 0.05, hint: "Above 0: tokens that the answer already has become less probable." },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number", min: -2, max: 2, step: 0.05, hint: "Above 0: the more often the answer has a token, the less probable it becomes." },
  { name: "seed", label: "Seed", kind: "number", min: 0, max: 2147483647, step: 1, hint: "The same seed gives the same text, whichever drafter runs. Empty: a new one each time." },
  { name: "max_tokens", label: "Longest answer, in tokens", kind: "number", min: 1, max: 1000000, step: 1, hint: "Empty: as long as there is room." },
  { name: "key", label: "Key", kind: "password", hint: "Only if the server was started with one. Deleted when this tab closes." },
];

export class Settings {
  values = { ...Object.fromEntries(FIELDS.map(({ name }) => [name, ""])), drafter: "", marks: "on", theme: "" };
  defaults = {};
  onchange = () => {};

  constructor() {
    Object.assign(this.values, read(localStorage, KEPT), { key: read(sessionStorage, KEY).key ?? "" });
  }

  set(name, value) {
    this.values[name] = value;
    const { key, ...kept } = this.values;
    write(localStorage, KEPT, kept);
    write(sessionStorage, KEY, { key });
    this.onchange(name);
  }

  get key() {
    return this.values.key;
  }

  /** The fields of a request; unset ones have the server's defaults, except for the seed. */
  sampling() {
    const fields = { seed: crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 }; // a known seed, so that the same answer can be written again
    for (const { name, kind } of FIELDS)
      if (kind === "number" && this.values[name] !== "") fields[name] = Number(this.values[name]);
    return fields;
  }

  /** The tools that the model may call, or null for none. */
  tools() {
    return toolsOf(this.values.tools);
  }

  /** Open the dialog, with the cursor in the field `focus`. */
  open(focus = "system") {
    const dialog = byId("settings");
    dialog.replaceChildren(element("form", { method: "dialog", novalidate: true },
      element("h2", { id: "settings-title" }, "Settings"),
      ...FIELDS.map((field) => this.#row(field)),
      element("div", { class: "dialog-foot" }, element("button", { class: "primary" }, "Done")),
    ));
    dialog.onclick = ({ target }) => {
      if (target === dialog) dialog.close();
    };
    dialog.showModal();
    byId(`setting-${focus}`).focus();
  }

  #row({ name, label, kind, hint, problemOf, ...limits }) {
    const id = `setting-${name}`;
    const given = this.defaults[name];
    const attributes = {
      id, name, "aria-describedby": `${id}-hint`, autocomplete: "off",
      placeholder: given === undefined || given === null ? null : String(given), ...limits,
    };
    const field = kind === "textarea" ? element("textarea", { ...attributes, rows: 3 }) : element("input", { ...attributes, type: kind });
    field.value = this.values[name];
    const problem = element("span", { class: "problem", role: "alert" });
    field.addEventListener("input", () => {
      field.setCustomValidity(problemOf?.(field.value) ?? "");
      const isRight = field.checkValidity();
      field.setAttribute("aria-invalid", String(!isRight));
      problem.textContent = isRight ? "" : field.validationMessage;
      if (isRight) this.set(name, field.value);
    });
    return element("div", { class: `setting ${kind}` }, element("label", { for: id }, label), field, element("small", { id: `${id}-hint` }, hint), problem);
  }
}

function read(storage, name) {
  try {
    const value = JSON.parse(storage.getItem(name) ?? "{}");
    return typeof value === "object" && value ? value : {};
  } catch {
    return {}; // this browser has no storage, or it holds other data
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
  } catch {
    // The settings are then lost when the page is closed.
  }
}
