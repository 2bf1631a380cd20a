// A description of the server's model, in the page's header; polled until the model is loaded.

import { answer } from "./copying.js";
import { byId, element } from "./dom.js";
import { failureOf } from "./failures.js";
import { showState } from "./meters.js";
import { clearFailures, say, showFailure } from "./notices.js";
import { killDrafter, readServer } from "./wire.js";

const RETRY_MS = 1500; // short enough to notice soon that the model is loaded, and long enough not to load a server that has ended

/** A drafter's name for display. */
export function inWords(name) {
  return name.replaceAll("_", " ");
}

export class Server {
  model = "";
  drafter = null;
  drafters = [];
  gained = null; // whether guesses made the newest measured answer faster; null if none was measured
  advice = ""; // a model that would gain, if this one does not
  onmeet = () => {};
  #timer = 0;
  #lastSaid = "";

  constructor(settings) {
    this.settings = settings;
    byId("kill-drafter").addEventListener("click", () => this.#kill());
  }

  /** The value of a request's drafter for the selected one: null means the engine's own. */
  chosen(name) {
    return this.drafters.includes(name) && name !== this.drafter ? name : null;
  }

  /** Ask the server what it runs, and show it. */
  async meet() {
    clearTimeout(this.#timer);
    try {
      Object.assign(this, await readServer(this.settings.key));
    } catch (error) {
      this.#failed(failureOf(error));
      return;
    }
    if (this.#lastSaid) clearFailures();
    this.#lastSaid = "";
    this.#show();
  }

  /** Ask again whether guesses gain, after an answer. */
  async meetAgain() {
    try {
      Object.assign(this, await readServer(this.settings.key));
    } catch {
      return; // the next answer will show the error
    }
    this.onmeet();
  }

  // A failure is shown only once, and stays while the server is polled.
  #failed(failure) {
    if (failure.remedy === "wait") {
      byId("model").textContent = "The model is being loaded …";
    } else if (failure.message !== this.#lastSaid) {
      showFailure(failure, { key: () => this.settings.open("key"), again: () => this.meet() });
      this.#lastSaid = failure.message;
    }
    if (failure.remedy === "wait" || failure.remedy === "again") this.#timer = setTimeout(() => this.meet(), RETRY_MS);
  }

  #show() {
    const { model, drafter, drafters, sampling, version, settings } = this;
    settings.defaults = { ...sampling, max_tokens: sampling?.max_new_tokens ?? null };
    this.onmeet();
    byId("model").textContent = model;
    byId("model").title = `${model}, forerun ${version}`;
    document.title = `${model} · forerun`;
    const names = drafters.includes(drafter) ? drafters : [drafter, ...drafters];
    byId("drafter").replaceChildren(...names.map((name) => element("option", { value: name }, inWords(name))));
    byId("drafter").value = names.includes(settings.values.drafter) ? settings.values.drafter : drafter;
    byId("kill-drafter").hidden = !this.drafter_process;
  }

  async #kill() {
    try {
      await killDrafter(this.settings.key);
      showState("down");
      answer(byId("kill-drafter"), "Killed");
      say("The drafter's process was ended. The text goes on.");
    } catch (error) {
      showFailure(failureOf(error), { key: () => this.settings.open("key") });
    }
  }
}
