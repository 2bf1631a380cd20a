// Plays a finished recording again, at its original speed.

/** The index of the first character in which two texts differ, or null if they are equal. */
export function firstDifference(one, other) {
  if (one === other) return null;
  const shorter = Math.min(one.length, other.length);
  for (let at = 0; at < shorter; at++) if (one[at] !== other[at]) return at;
  return shorter;
}

export class Replay {
  #beganMs = performance.now();
  #frame = 0;
  #end;
  /** Resolves when the last round was shown, or when the replay was stopped. */
  ended = new Promise((resolve) => (this.#end = resolve));

  /** Start; `draw` is called with the recording as it was at each moment. */
  constructor(recording, draw) {
    this.recording = recording;
    this.draw = draw;
    this.#tick();
  }

  /** Stop where it is. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#end();
  }

  #tick() {
    const nowMs = performance.now() - this.#beganMs;
    const { rounds } = this.recording;
    let num = rounds.findIndex((round) => round.atMs > nowMs);
    if (num < 0) num = rounds.length;
    this.draw(this.#until(num, nowMs));
    if (num < rounds.length) this.#frame = requestAnimationFrame(() => this.#tick());
    else this.#end();
  }

  #until(num, nowMs) {
    const { marks, text, rounds, tokensPerSecond } = this.recording;
    if (num === rounds.length) return this.recording;
    const shown = marks.filter((mark) => mark.round < num);
    return {
      text: text.slice(0, shown.at(-1)?.end ?? 0), marks: shown, numTokens: num ? rounds[num - 1].numTokens : 0,
      beganMs: 0, lastMs: nowMs, tokensPerSecond: num > 2 ? tokensPerSecond : null,
    };
  }
}
