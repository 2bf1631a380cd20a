// The five who can have written a token, with a line under the word beside the colour.

import { element } from "./dom.js";

export const WRITERS = [
  { by: "draft", words: "drafted", says: "guessed by the draft model, kept by the target" },
  { by: "lookup", words: "looked up", says: "found earlier in the text, kept by the target" },
  { by: "recycled", words: "recycled", says: "what followed this token earlier, kept by the target" },
  { by: "prediction", words: "predicted", says: "taken from the prediction that came with the request" },
  { by: "bonus", words: "target", says: "chosen by the target itself" },
];

export function wordsOf(by) {
  return WRITERS.find((each) => each.by === by)?.words ?? "drafted";
}

export function fillLegend(place) {
  place.replaceChildren(...WRITERS.map(({ by, words, says }) => element("span", { class: "key", title: says }, element("span", { class: `by by-${by}` }, words))));
}
