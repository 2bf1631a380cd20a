// Marks for the writer of each part of the shown text: maps places in Markdown's source to the page and back.

import { element } from "./dom.js";

const MAX_GAP = 60; // characters of syntax between two that are shown, such as a quote's signs at the begin of a line

/**
 * Set token.at, the place in `source`, for every piece of text among marked's tokens; they come in order.
 * @returns {number} where the tokens end
 */
export function locate(tokens, source, from) {
  let at = from;
  for (const token of tokens) {
    const line = (token.raw ?? "").split("\n", 1)[0];
    const found = source.indexOf(line, at);
    const start = found >= 0 && found <= at + Math.max(MAX_GAP, line.length) ? found : at;
    token.at = start + (token.type === "code" ? codeStart(token) : token.type === "codespan" ? /^`*/.exec(token.raw)[0].length : token.type === "escape" ? 1 : 0);
    const end = locate(partsOf(token), source, start);
    at = token.raw && source.startsWith(token.raw, start) ? start + token.raw.length : end;
  }
  return at;
}

function partsOf(token) {
  if (token.type === "list") return token.items;
  if (token.type === "table") return [token.header, ...token.rows].flat();
  return token.tokens ?? [];
}

function codeStart(token) {
  return /^ {0,3}(?:```|~~~)/.test(token.raw) ? token.raw.indexOf("\n") + 1 : 0;
}

/** A text with its marks, {end, by, round} in order; marks are null if tokens are not to be shown. */
export class Inked {
  constructor(source, marks) {
    this.source = source;
    this.marks = marks;
  }

  /** The end of the text whose writers are known. */
  get to() {
    return this.marks ? (this.marks.at(-1)?.end ?? 0) : Infinity;
  }

  /** Whether the writers of all text up to `end` are known. */
  reaches(end) {
    return this.to >= end;
  }

  /** Wrap the text that `root` shows in spans that name its writer. @returns {number} where its last text ends in the source */
  fill(root) {
    let end = 0;
    for (const piece of root.querySelectorAll("[data-at]")) {
      const text = piece.textContent;
      const start = Number(piece.dataset.at);
      if (piece.classList.contains("formula")) {
        this.#ink(piece, start, start + text.length);
        continue;
      }
      const into = document.createDocumentFragment();
      end = this.append(into, text, start);
      piece.replaceWith(into);
    }
    return end;
  }

  /** Append `text`, which stands in the source from `start` on, with signs of Markdown in between. @returns {number} its end there */
  append(parent, text, start) {
    if (!this.marks) {
      parent.append(text);
      return start + text.length;
    }
    const isSame = this.source.startsWith(text, start);
    let place = start;
    let mark = this.#markAt(start);
    let from = 0;
    for (let i = 0; i < text.length; i++) {
      const found = isSame ? start + i : this.#find(text[i], place);
      if (i && this.marks[mark]?.end <= found) {
        this.#put(parent, text.slice(from, i), mark);
        from = i;
      }
      while (this.marks[mark]?.end <= found) mark++;
      place = found + 1;
    }
    this.#put(parent, text.slice(from), mark);
    return place;
  }

  // The position in the source of a shown letter; for one that is written differently there, such as &amp;, the position where the search began.
  #find(letter, place) {
    const found = this.source.indexOf(letter, place);
    return found >= 0 && found <= place + MAX_GAP ? found : place;
  }

  #put(parent, text, at) {
    const mark = this.marks[at];
    if (!text) return;
    parent.append(mark ? element("span", { class: `by by-${mark.by}`, "data-round": mark.round }, text) : text);
  }

  // A formula is drawn as a whole, in the colour of the writer of most of it.
  #ink(piece, start, end) {
    const lengths = new Map();
    const first = this.marks ? this.#markAt(start) : 0;
    let from = start;
    for (let i = first; from < end && this.marks?.[i]; from = this.marks[i++].end) {
      const { by } = this.marks[i];
      lengths.set(by, (lengths.get(by) ?? 0) + Math.min(this.marks[i].end, end) - from);
    }
    const [most] = [...lengths].sort((one, other) => other[1] - one[1]);
    if (!most) return;
    piece.classList.add("by", `by-${most[0]}`);
    piece.dataset.round = this.marks[first].round;
  }

  // The first mark that ends behind `place`.
  #markAt(place) {
    let low = 0;
    let high = this.marks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.marks[middle].end > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}
