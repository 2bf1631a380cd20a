// Text within a block: code, strong, emphasis, links, as DOM nodes; and every token in a span that says who wrote it.

import { element } from "./dom.js";

const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const BARE_LINK = /^https?:\/\/[^\s<>()"'`]*[^\s<>()"'`.,;:!?]/i;
const LINK = /^\[((?:[^\]\\\n]|\\.){0,500})\]\(([^\s()]{1,2000})(?:\s+"[^"\n]{0,200}")?\)/;
const SPECIAL = /[\\`*_~[!h]/g;
const PAIRS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const MAX_SPAN = 2000; // characters; looking farther for what closes would take its square in time
const MAX_DEPTH = 8; // nested emphasis beyond this is shown as it is written

/** A text with its marks, {end, by, round} in order; marks are null where tokens are not to be shown. */
export class Inked {
  constructor(source, marks) {
    this.source = source;
    this.marks = marks;
  }

  /** Whether it is known of all text up to `end` who wrote it. */
  reaches(end) {
    return !this.marks || (this.marks.at(-1)?.end ?? 0) >= end;
  }

  /** Append source[start, end), each token in its own span. */
  plain(parent, start, end) {
    if (start >= end) return;
    if (!this.marks) {
      parent.append(this.source.slice(start, end));
      return;
    }
    let at = start;
    for (let i = this.#markAt(start); at < end; i++) {
      const mark = this.marks[i];
      const to = mark ? Math.min(mark.end, end) : end;
      const text = this.source.slice(at, to);
      if (mark) parent.append(element("span", { class: `by by-${mark.by}`, "data-round": mark.round }, text));
      else parent.append(text);
      at = to;
    }
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

  /** Append source[start, end) with Markdown's inline forms. */
  rich(parent, start, end, depth = 0) {
    let plainFrom = start;
    let at = start;
    while (at < end) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(this.source);
      if (!found || found.index >= end) break;
      at = found.index;
      const form = depth < MAX_DEPTH ? this.#formAt(at, start, end) : null;
      if (!form) {
        at++;
        continue;
      }
      this.plain(parent, plainFrom, at);
      this.#append(parent, form, depth);
      at = form.end;
      plainFrom = at;
    }
    this.plain(parent, plainFrom, end);
  }

  #append(parent, form, depth) {
    if (form.node) parent.append(form.node);
    const into = form.node ?? parent;
    if (form.isPlain) this.plain(into, ...form.inner);
    else this.rich(into, ...form.inner, depth + 1);
  }

  #formAt(at, start, end) {
    const source = this.source;
    switch (source[at]) {
      case "\\":
        return this.#escaped(at, end);
      case "`":
        return this.#code(at, end);
      case "[":
        return this.#link(at, end);
      case "!":
        return source[at + 1] === "[" ? this.#link(at + 1, end) : null;
      case "h":
        return this.#bareLink(at, start, end);
      default:
        return this.#pair(at, start, end);
    }
  }

  #escaped(at, end) {
    const isEscape = at + 1 < end && /[!-/:-@[-`{-~]/.test(this.source[at + 1]);
    return isEscape ? { inner: [at + 1, at + 2], end: at + 2, isPlain: true } : null;
  }

  #code(at, end) {
    const ticks = /^`+/.exec(this.source.slice(at, end))[0];
    const close = this.source.indexOf(ticks, at + ticks.length);
    if (close < 0 || close + ticks.length > end) return null;
    return { node: element("code"), inner: [at + ticks.length, close], end: close + ticks.length, isPlain: true };
  }

  #link(bracket, end) {
    const found = LINK.exec(this.source.slice(bracket, end));
    if (!found || !SAFE_LINK.test(found[2])) return null;
    return { node: linkTo(found[2]), inner: [bracket + 1, bracket + 1 + found[1].length], end: bracket + found[0].length };
  }

  #bareLink(at, start, end) {
    if (at > start && /\w/.test(this.source[at - 1])) return null;
    const found = BARE_LINK.exec(this.source.slice(at, end));
    return found ? { node: linkTo(found[0]), inner: [at, at + found[0].length], end: at + found[0].length, isPlain: true } : null;
  }

  #pair(at, start, end) {
    const [mark, name] = PAIRS.find(([each]) => this.source.startsWith(each, at)) ?? [];
    if (!mark) return null;
    const begin = at + mark.length;
    const isInWord = mark[0] === "_" && at > start && /\w/.test(this.source[at - 1]);
    if (begin >= end || /\s/.test(this.source[begin]) || isInWord) return null;
    const close = this.#closing(mark, begin, Math.min(end, at + MAX_SPAN));
    return close < 0 ? null : { node: element(name), inner: [begin, close], end: close + mark.length };
  }

  // Where the mark that closes begins, or -1. It stands behind a letter, and is not the first half of a longer one.
  #closing(mark, begin, end) {
    const { source } = this;
    for (let at = source.indexOf(mark, begin + 1); at >= 0 && at + mark.length <= end; at = source.indexOf(mark, at + 1)) {
      const before = source[at - 1];
      const after = at + mark.length < end ? source[at + mark.length] : " ";
      const isHalf = after === mark[0] || (mark.length === 1 && before === mark);
      const isInWord = mark[0] === "_" && /\w/.test(after);
      if (!/\s/.test(before) && !isHalf && !isInWord) return at;
    }
    return -1;
  }
}

function linkTo(address) {
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer" });
}
