// The same prompt and seed with the drafter and without, in turn, shown beside each other by their own clocks.

import { record, requestOf } from "./answer.js";
import { measured, raceInWords } from "./claim.js";
import { copiesCode } from "./copying.js";
import { byId, element } from "./dom.js";
import { Failure, failureOf } from "./failures.js";
import { atNextFrame, notAtNextFrame } from "./frames.js";
import { Rendered } from "./markdown.js";
import { clearFailures, say, showFailure } from "./notices.js";
import { firstDifference, Replay } from "./replay.js";
import { Recording } from "./recording.js";
import { inWords } from "./server.js";

const EXAMPLE = "Write a Python function that returns the mean of every column of a CSV file.";
const MAX_TOKENS = 256; // about ten seconds of plain decoding of a small model on a laptop
const SHORT = 64; // tokens of the plain run at the beginning; compared with the one at the end, it shows how much the machine's speed varies

export class Race {
  #controller = null;
  #parts = null;

  constructor(parts) {
    Object.assign(this, parts);
  }

  get isBusy() {
    return this.#controller !== null;
  }

  show() {
    this.#parts ??= this.#build();
    this.#parts.prompt.focus();
  }

  stop() {
    this.#controller?.abort();
  }

  #build() {
    const prompt = element("textarea", { id: "race-prompt", rows: 2 });
    prompt.value = EXAMPLE;
    const start = element("button", { type: "button", class: "send", onclick: () => (this.isBusy ? this.stop() : this.#run()) }, "Start");
    prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.isBusy) this.#run();
    });
    const parts = {
      prompt, start, verdict: element("p", { class: "verdict" }), phase: element("p", { class: "phase" }),
      plain: lane("Without a drafter"), drafted: lane("With the drafter"),
    };
    byId("race").replaceChildren(
      element("h2", { id: "race-title" }, "Race"),
      element("p", { class: "explained" },
        "The same prompt and the same seed, with the drafter and without. At the end the texts are compared."),
      element("details", { class: "explained" }, element("summary", {}, "How it is timed"),
        element("p", {},
          "There is one engine, so the two run in turn: a short run without a drafter, one with it, and one without. ",
          "The drafter does not see the plain runs. Then its run is played again next to the last one. ",
          "Each clock begins with the first token of its own run; reading the prompt is not counted. ",
          "The two plain runs show how much the speed of this machine varies: a smaller difference is not a gain. ",
          "Drafters learn: in its first answers “auto” tries several, and in a second race over the same prompt one may be faster.")),
      element("div", { class: "entry" }, element("label", { class: "hidden", for: "race-prompt" }, "Prompt of the race"), prompt, start),
      parts.phase, parts.verdict,
      element("div", { class: "lanes" }, parts.drafted.node, parts.plain.node));
    copiesCode(byId("race"));
    return parts;
  }

  async #run() {
    const { prompt, start, verdict, plain, drafted } = this.#parts;
    if (!prompt.value.trim()) return prompt.focus();
    if (this.server.drafter === "none")
      return showFailure(new Failure("The server was started without a drafter, so nothing can race. Start it with one."));
    clearFailures();
    this.#controller = new AbortController();
    start.textContent = "Stop";
    start.classList.add("stop");
    verdict.textContent = "";
    for (const each of [plain, drafted]) each.clear();
    drafted.name(`With the drafter: ${inWords(this.#drafter() ?? this.server.drafter)}`);
    try {
      await this.#both(this.#requests(prompt.value.trim()));
    } catch (error) {
      const { settings } = this;
      showFailure(failureOf(error), { key: () => settings.open("key"), settings: () => settings.open(), again: () => this.#run() });
      this.#parts.phase.textContent = "The race ended early.";
    }
    this.#controller = null;
    start.textContent = "Start";
    start.classList.remove("stop");
    return undefined;
  }

  // The chosen drafter, or null for the engine's own.
  #drafter() {
    const chosen = this.server.chosen(this.settings.values.drafter);
    return chosen === "none" ? null : chosen;
  }

  #requests(prompt) {
    const { system } = this.settings.values;
    const said = [{ role: "user", content: prompt }];
    const messages = system ? [{ role: "system", content: system }, ...said] : said;
    const sampling = { max_tokens: MAX_TOKENS, ...this.settings.sampling() };
    const one = (name) => requestOf({ model: this.server.model, messages, sampling, drafter: name });
    return { drafted: one(this.#drafter()), plain: one("none"), seed: sampling.seed };
  }

  async #both({ drafted: draftedRequest, plain: plainRequest, seed }) {
    const { phase, drafted, plain } = this.#parts;
    phase.textContent = `A short run without a drafter, to know the machine (seed ${seed}) …`;
    say("The race begins.");
    const before = await this.#record({ ...plainRequest, max_tokens: Math.min(SHORT, plainRequest.max_tokens) }, plain);
    if (!before) return this.#stopped();
    phase.textContent = `The run with the drafter (seed ${seed}) …`;
    const first = await this.#record(draftedRequest, drafted);
    if (!first) return this.#stopped();
    phase.textContent = "The run without a drafter; the other one is played again next to it by its own clock …";
    for (const each of [drafted, plain]) each.clear();
    const second = await this.#beside(first, plainRequest);
    if (!second) return this.#stopped();
    phase.textContent = `Both have run with seed ${seed}.`;
    return this.#judge(first, second, before);
  }

  // Run the plain request; from its first token on, the recording of the other run is played beside it.
  async #beside(first, request) {
    const { drafted, plain } = this.#parts;
    let replay = null;
    this.#controller.signal.addEventListener("abort", () => replay?.finish());
    try {
      const play = () => (replay ??= new Replay(first, (recording) => drafted.draw(recording)));
      const second = await this.#record(request, plain, play);
      if (second) await replay?.ended;
      return this.#controller.signal.aborted ? null : second;
    } finally {
      replay?.finish();
    }
  }

  #stopped() {
    this.#parts.phase.textContent = "Stopped.";
  }

  // The whole recording, or null if it was stopped.
  async #record(request, shown, onFirst = () => {}) {
    const recording = new Recording();
    if (shown === this.#parts.drafted) this.inspector.follow(recording);
    const onArrival = () => {
      this.inspector.grow(recording);
      if (recording.rounds.length) onFirst();
      atNextFrame(`race-${shown.title}`, () => shown.draw(recording));
    };
    try {
      const isWhole = await record(recording, request, { key: this.settings.key, signal: this.#controller.signal, onArrival });
      return isWhole ? recording : null;
    } finally {
      notAtNextFrame(`race-${shown.title}`);
      shown.draw(recording);
    }
  }

  #judge(drafted, plain, before) {
    const { verdict, drafted: draftedLane, plain: plainLane } = this.#parts;
    const at = firstDifference(drafted.text, plain.text);
    verdict.classList.toggle("differs", at !== null);
    verdict.textContent = `${raceInWords(measured(drafted, [before, plain]))} ${textsInWords(plain, at)}`;
    if (at !== null) {
      draftedLane.markFrom(drafted.text, at);
      plainLane.markFrom(plain.text, at);
    }
    say(verdict.textContent);
  }
}

function textsInWords(plain, at) {
  if (at === null) return `The texts are identical: ${plain.text.length} characters, ${plain.numTokens} tokens.`;
  return `The texts differ from character ${at + 1} on. Where two tokens score nearly the same, rounding may decide; ` +
    "with “--exactness exact” it cannot: if they differ then too, please report it.";
}

function lane(title) {
  const text = element("div", { class: "text", tabindex: "0", role: "group", "aria-label": `Text: ${title}` });
  const heading = element("h3", {}, title);
  const speed = element("b");
  const rest = element("span");
  const rendered = new Rendered(text);
  return {
    title, node: element("section", { class: "lane", "aria-label": title }, heading, element("p", { class: "numbers" }, speed, rest), text),
    name(words) {
      heading.textContent = words;
    },
    clear() {
      rendered.rebuild("", null);
      speed.textContent = "";
      rest.textContent = "";
    },
    draw(recording) {
      rendered.update(recording.text, recording.marks);
      text.scrollTop = text.scrollHeight;
      const seconds = ((recording.lastMs ?? 0) - (recording.beganMs ?? 0)) / 1000;
      speed.textContent = recording.tokensPerSecond ? recording.tokensPerSecond.toFixed(1) : "";
      rest.textContent = `${speed.textContent && " tokens/s · "}${recording.numTokens} tokens in ${seconds.toFixed(1)} s`;
    },
    markFrom(source, at) {
      text.replaceChildren(element("p", { class: "literal" }, source.slice(0, at), element("mark", {}, source.slice(at) || "(ends here)")));
    },
  };
}
