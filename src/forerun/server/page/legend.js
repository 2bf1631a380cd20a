// The five possible writers of a token, each with a colour and a line under the word.

import { element } from "./dom.js";

export const WRITERS = [
  { by: "draft", words: "drafted", says: "guessed by the draft model, and what the model itself would have written" },
  { by: "lookup", words: "looked up", says: "guessed from an earlier place in the text, and kept" },
  { by: "recycled", words: "recycled", says: "guessed from what followed this token earlier, and kept" },
  { by: "prediction", words: "predicted", says: "taken from the prediction that came with the request" },
  { by: "bonus", words: "the model itself", says: "written by the model itself, without a guess" },
];

export function wordsOf(by) {
  return WRITERS.find((each) => each.by === by)?.words ?? "drafted";
}

export function fillLegend(place) {
  const shown = WRITERS.filter(({ by }) => by !== "prediction"); // this page sends no predictions, but imported answers may contain predicted tokens
  place.replaceChildren(...shown.map(({ by, words, says }) => element("span", { class: "key", title: says }, element("span", { class: `by by-${by}` }, words))));
}
