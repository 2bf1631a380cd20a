// Decides which speed-ups are shown, for races, answers and the meters.

/**
 * @param {object} measured ratio: the speed divided by the speed without a drafter; low, high: its interval; perRound: the tokens of a
 *   round, which is the largest gain that drafting can have, as no round is shorter than a plain one
 * @returns {{kind: "faster" | "slower" | "close" | "beyond", ratio: number}} the ratio to show; "close": too close to tell;
 *   "beyond": more than drafting can gain, so that something else changed the speeds
 */
export function claim({ ratio, low, high, perRound }) {
  const most = perRound ?? Infinity;
  if (low > 1 && low > most) return { kind: "beyond", ratio };
  const told = Math.min(ratio, most);
  if (Math.min(low, told) > 1) return { kind: "faster", ratio: told };
  return { kind: high < 1 ? "slower" : "close", ratio: told };
}

const LEAST_NOISE = 0.02; // share of a speed that two equal runs on a quiet machine differ by
export const UNKNOWN_NOISE = 0.1; // if there is only one plain run

/** The ratio of a drafted run to the plain runs around it, for `claim`; null if an answer was too short. */
export function measured(drafted, plainRuns) {
  const speeds = plainRuns.map((run) => run.tokensPerSecond).filter(Boolean);
  if (!drafted.tokensPerSecond || !speeds.length) return null;
  const mean = speeds.reduce((sum, speed) => sum + speed, 0) / speeds.length;
  const noise = speeds.length > 1 ? (Math.max(...speeds) - Math.min(...speeds)) / mean + LEAST_NOISE : UNKNOWN_NOISE;
  const ratio = drafted.tokensPerSecond / mean;
  return { ratio, low: ratio - noise, high: ratio + noise, noise, perRound: drafted.tokensPerRound };
}

/** The verdict of a race on speed. */
export function raceInWords(found) {
  if (found === null) return "Too short to compare speeds.";
  const { kind, ratio } = claim(found);
  const times = `${ratio.toFixed(2)}×`;
  if (kind === "faster") return `${times} as fast with the drafter.`;
  if (kind === "slower") return `Slower with the drafter this time: ${times}.`;
  if (kind === "close") return `Too close to tell: ${times}, and this machine's own speed varies by ${Math.round(100 * found.noise)} %.`;
  return `No gain is shown: ${times} was measured, but drafting gains at most the ${found.perRound.toFixed(2)} tokens of a round. ` +
    "Other work on this machine slowed the run without a drafter; race again.";
}

/** The server's measurement of one answer as a short text; empty if there is none. */
export function answerInWords(forerun) {
  const { speedup } = forerun ?? {};
  if (!speedup) return "";
  const { kind, ratio } = claim({ ratio: speedup.value, low: speedup.low, high: speedup.high, perRound: forerun.tokens_per_round });
  const between = `(${speedup.low.toFixed(2)}–${speedup.high.toFixed(2)})`;
  if (kind === "faster" || kind === "slower") return `${ratio.toFixed(2)}× as fast as without drafter ${between}`;
  return `too close to tell whether drafting helped ${between}`;
}
