// One bar for each of the last rounds: its number of tokens, and how many of them the model wrote itself.

import { drawn } from "./dom.js";

const MAX_BARS = 80; // more bars would be too narrow to tap
const MIN_BARS = 30; // space for this many bars is reserved, so that the bars of a short answer are not very wide
const HEIGHT = 40;
const STEP = 5; // in units of the drawing, which is scaled to the panel's width

export function strip(rounds, at) {
  const first = Math.max(0, Math.min(at - MAX_BARS / 2, rounds.length - MAX_BARS));
  const shown = rounds.slice(first, first + MAX_BARS);
  const most = Math.max(4, ...shown.map((round) => round.tokens.length));
  const picture = drawn("svg", { viewBox: `0 0 ${Math.max(MIN_BARS, shown.length) * STEP} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  shown.forEach((round, i) => {
    const group = drawn("g", { class: first + i === at ? "bar chosen" : "bar", "data-round": first + i });
    const height = (round.tokens.length / most) * HEIGHT;
    const own = (round.tokens.filter((token) => token.by === "bonus").length / most) * HEIGHT;
    group.append(
      drawn("rect", { class: `bar-ground state-${round.drafter_state}`, x: i * STEP, y: 0, width: STEP, height: HEIGHT }),
      drawn("rect", { class: "bar-kept", x: i * STEP + 0.5, y: HEIGHT - height, width: STEP - 1, height: height - own }),
      drawn("rect", { class: "bar-own", x: i * STEP + 0.5, y: HEIGHT - own, width: STEP - 1, height: own }),
      drawn("title", {}, `Round ${first + i + 1}: ${round.tokens.length} tokens${round.drafter_state === "down" ? ", no drafter ran" : ""}`),
    );
    picture.append(group);
  });
  return picture;
}
