// When model and drafter worked in the rounds around the chosen one, to scale.

import { drawn, element } from "./dom.js";

const NUM_BEFORE = 3; // rounds beside the chosen one
const NUM_AFTER = 3;
const WIDTH = 340; // in units of the drawing, which is scaled to the panel
const LEFT = 44;
const LANE = 26;
const LANES = [["target", "model"], ["draft", "drafter"]];

/** Lanes of model and drafter; a wait is an outlined box in the model's lane. */
export function timeline(rounds, at) {
  const first = Math.max(0, at - NUM_BEFORE);
  const shown = rounds.slice(first, at + NUM_AFTER + 1);
  const spans = shown.flatMap((round, i) => (round.spans ?? []).map((span) => ({ ...span, isChosen: first + i === at, number: first + i + 1 })));
  if (!spans.length) return element("p", { class: "nothing" }, "The server sent no times for this round.");
  const begin = Math.min(...spans.map((span) => span.begin_ms));
  const end = Math.max(...spans.map((span) => span.end_ms), begin + 0.1);
  const scale = (WIDTH - LEFT) / (end - begin);
  const xOf = (ms) => LEFT + (ms - begin) * scale;
  const height = LANES.length * LANE + 20;
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": spoken(spans) });
  LANES.forEach(([who, words], lane) => picture.append(
    drawn("text", { class: "lane-name", x: 0, y: lane * LANE + 16 }, words),
    drawn("line", { class: "lane", x1: LEFT, x2: WIDTH, y1: lane * LANE + LANE - 2, y2: lane * LANE + LANE - 2 })));
  for (const span of spans) picture.append(bar(span, xOf));
  picture.append(...axis(begin, end, xOf, height));
  return picture;
}

function bar(span, xOf) {
  const lane = span.who === "draft" ? 1 : 0;
  const x = xOf(span.begin_ms);
  const width = Math.max(1, xOf(span.end_ms) - x);
  const name = { target: "the model checks", draft: "the drafter guesses", wait: "the model waits for the drafter" }[span.who] ?? span.who;
  const says = `Round ${span.number}: ${name}, ${(span.end_ms - span.begin_ms).toFixed(2)} ms`;
  return drawn("g", { class: `span span-${span.who}${span.isChosen ? " chosen" : ""}`, "data-says": says },
    drawn("title", {}, says), drawn("rect", { x, y: lane * LANE + 5, width, height: LANE - 9, rx: 2 }));
}

// A scale of two to five round numbers.
function axis(begin, end, xOf, height) {
  const rough = (end - begin) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const marks = [];
  for (let ms = Math.ceil(begin / step) * step; ms <= end; ms += step) {
    const words = `${Number(ms.toPrecision(6))} ms`;
    const isLast = ms + step > end;
    marks.push(drawn("text", { class: "tick", x: xOf(ms), y: height - 4, "text-anchor": isLast ? "end" : "middle" }, words));
  }
  return marks;
}

function spoken(spans) {
  const sum = (who) => spans.filter((span) => span.isChosen && span.who === who).reduce((all, span) => all + span.end_ms - span.begin_ms, 0);
  return `In this round the model worked ${sum("target").toFixed(1)} ms, the drafter ${sum("draft").toFixed(1)} ms, and the model waited ${sum("wait").toFixed(1)} ms.`;
}
