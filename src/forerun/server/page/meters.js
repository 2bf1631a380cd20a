// The numbers above the question field, while an answer streams and after it.

import { byId } from "./dom.js";

const STATES = {
  ready: ["drafter ready", "The drafter guesses ahead."],
  late: ["drafter late", "The drafter was late: the target went on without it."],
  down: ["drafter down", "The drafter's process has ended: the text goes on without it until it is back."],
  paused: ["drafter paused", "A plain round is timed, to know what the drafter saves."],
};

const MIN_TOKENS = 64; // over fewer, the time of one round decides the number

export class Meters {
  #plainTokenMs = null; // as the server measured it last

  /** Numbers so far; while nothing is measured, a dash. */
  show(recording) {
    const speed = recording.tokensPerSecond;
    const perRound = recording.tokensPerRound;
    byId("meter-speed").textContent = speed === null ? "–" : speed.toFixed(speed < 100 ? 1 : 0);
    byId("meter-round").textContent = perRound === null ? "–" : perRound.toFixed(2);
    this.#showSpeedup(recording, speed, perRound);
    const state = recording.usage?.forerun?.drafter_state ?? recording.rounds.at(-1)?.drafter_state;
    if (state) showState(state);
  }

  #showSpeedup(recording, speed, perRound) {
    const measured = recording.usage?.forerun?.speedup;
    this.#plainTokenMs = recording.usage?.forerun?.plain_token_ms ?? this.#plainTokenMs;
    if (measured) {
      write(`${measured.value.toFixed(2)}×`, "of plain", `Measured: between ${measured.low.toFixed(2)} and ${measured.high.toFixed(2)} times as fast as plain decoding.`);
    } else if (!recording.usage && this.#plainTokenMs && speed && recording.numTokens >= MIN_TOKENS) {
      const guess = Math.min((speed * this.#plainTokenMs) / 1000, perRound); // a round costs at least a plain pass
      write(`≈ ${guess.toFixed(1)}×`, "of plain", "Estimated from the time of a plain token in an earlier answer.");
    } else {
      write("–", "of plain", "Not measured yet: the server times plain rounds now and then.");
    }
  }
}

function write(value, words, title) {
  byId("meter-speedup").textContent = value;
  byId("meter-speedup-words").textContent = words;
  byId("speedup-box").title = title;
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
