// The numbers above the question field, while an answer streams and after it.

import { claim, UNKNOWN_NOISE } from "./claim.js";
import { byId } from "./dom.js";

const STATES = {
  ready: ["drafter ready", "The drafter guesses ahead."],
  late: ["drafter late", "The drafter was late: the model continued without it."],
  down: ["drafter down", "The drafter's process has ended: the text goes on without it until it is back."],
  paused: ["drafter paused", "A round without the drafter is timed, to measure its gain."],
};

const MIN_TOKENS = 64; // with fewer tokens, the time of a single round determines the number

export class Meters {
  #plainTokenMs = null; // the server's last measurement

  /** The numbers so far, without those that were not measured. */
  show(recording) {
    const speed = recording.tokensPerSecond;
    const perRound = recording.tokensPerRound;
    write("meter-speed", speed === null ? "" : speed.toFixed(speed < 100 ? 1 : 0), "Tokens a second, from the first token on.");
    write("meter-round", perRound === null ? "" : perRound.toFixed(2), "Tokens per check by the model.");
    this.#showSpeedup(recording, speed, perRound);
    const state = recording.usage?.forerun?.drafter_state ?? recording.rounds.at(-1)?.drafter_state;
    if (state) showState(state);
  }

  #showSpeedup(recording, speed, perRound) {
    const measured = recording.usage?.forerun?.speedup;
    this.#plainTokenMs = recording.usage?.forerun?.plain_token_ms ?? this.#plainTokenMs;
    if (measured) {
      const { low, high } = measured;
      tell({ ratio: measured.value, low, high, perRound }, (ratio) => `${ratio.toFixed(2)}×`,
        `Measured: between ${low.toFixed(2)} and ${high.toFixed(2)} times as fast as without a drafter.`);
    } else if (!recording.usage && this.#plainTokenMs && speed && recording.numTokens >= MIN_TOKENS) {
      const ratio = (speed * this.#plainTokenMs) / 1000;
      tell({ ratio, low: ratio - UNKNOWN_NOISE, high: ratio + UNKNOWN_NOISE, perRound }, (told) => `≈ ${told.toFixed(1)}×`,
        "Estimated from what a token without a drafter took in an earlier answer.");
    } else {
      write("meter-speedup", "", "");
    }
  }

  /** How much of the context is used: all of the prompt and the answer. */
  showContext(usage, maxLength) {
    const used = usage ? usage.prompt_tokens + usage.completion_tokens : 0;
    byId("gauge").hidden = !used || !maxLength;
    if (!used || !maxLength) return;
    const place = byId("context");
    place.max = maxLength;
    place.high = Math.round(0.85 * maxLength);
    place.value = used;
    byId("context-words").textContent = `context ${used.toLocaleString("en")} of ${maxLength.toLocaleString("en")}`;
    byId("gauge").title = "Used part of the context: the tokens of this conversation, of the largest possible number. When it is full, begin a new conversation.";
  }
}

// Write the gain if it may be shown, otherwise nothing.
function tell(measured, words, title) {
  const { kind, ratio } = claim(measured);
  const isTold = kind === "faster" || kind === "slower";
  write("meter-speedup", isTold ? words(ratio) : "", title);
}

function write(id, value, title) {
  const place = byId(id);
  place.textContent = value;
  place.parentElement.title = title;
  place.parentElement.hidden = !value;
}

export function showState(state) {
  const place = byId("drafter-state");
  const [words, says] = STATES[state] ?? [`drafter ${state}`, ""];
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  place.textContent = words;
  place.title = says;
  place.hidden = state === "ready" || state === "paused"; // a pause is one round long
}
