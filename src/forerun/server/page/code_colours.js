// Colours for code, by highlight.js. They are ranges over the text and add no element to it, so that tokens keep their
// own elements; a browser without such ranges shows plain code. The library is fetched when code first appears.

import { atNextFrame } from "./frames.js";

const MAX_LENGTH = 100_000; // characters; more would hold up a frame
// What has a colour, by the first part of highlight.js's names.
const COLOURS = {
  comment: "comment", quote: "comment", doctag: "comment", string: "string", regexp: "string", char: "string", addition: "string",
  number: "number", symbol: "number", bullet: "number", keyword: "keyword", literal: "keyword", built_in: "keyword", type: "keyword",
  "selector-tag": "keyword", deletion: "keyword", title: "title", section: "title", name: "title", attr: "title", attribute: "title", meta: "title",
};

const coloured = new Map(); // of every code element on the page: {end, isClosed, ranges}
const registry = globalThis.CSS?.highlights;
let library = null;

/** Colour the code on the page at the next frame. */
export function colourSoon() {
  if (registry) atNextFrame("code colours", colour);
}

async function colour() {
  for (const code of coloured.keys()) if (!code.isConnected) forget(code);
  const all = document.querySelectorAll("code[data-language]");
  if (all.length) library ??= (await import("./vendor/highlight.min.js")).default;
  for (const code of all) {
    const before = coloured.get(code);
    const isClosed = "closed" in code.dataset;
    if (before?.isClosed) continue;
    const end = isClosed ? code.textContent.length : code.textContent.lastIndexOf("\n"); // the last line still grows
    if (before?.end === end) continue;
    forget(code);
    const ranges = rangesOf(code, end);
    for (const [name, range] of ranges) highlight(name).add(range);
    coloured.set(code, { end, isClosed, ranges });
  }
}

function forget(code) {
  for (const [name, range] of coloured.get(code)?.ranges ?? []) highlight(name).delete(range);
  coloured.delete(code);
}

function highlight(name) {
  const key = `code-${name}`;
  if (!registry.has(key)) registry.set(key, new Highlight());
  return registry.get(key);
}

// Pairs of a colour and a range, in order.
function rangesOf(code, end) {
  const { language } = code.dataset;
  if (!library.getLanguage(language) || end <= 0 || end > MAX_LENGTH) return [];
  const { _emitter: { rootNode } } = library.highlight(code.textContent.slice(0, end), { language, ignoreIllegals: true });
  const placeOf = places(code);
  const ranges = [];
  let at = 0;
  const walk = (node, name) => {
    if (typeof node !== "string") {
      for (const child of node.children) walk(child, node.scope ? COLOURS[node.scope.split(".")[0]] : name);
      return;
    }
    if (name) {
      const [startContainer, startOffset] = placeOf(at);
      const [endContainer, endOffset] = placeOf(at + node.length);
      ranges.push([name, new StaticRange({ startContainer, startOffset, endContainer, endOffset })]);
    }
    at += node.length;
  };
  walk(rootNode, undefined);
  return ranges;
}

// A function from an index of the text to its node and the place in it; asked for places in order.
function places(code) {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  let node = walker.nextNode();
  let begin = 0;
  return (index) => {
    while (index > begin + node.length) {
      begin += node.length;
      node = walker.nextNode();
    }
    return [node, index - begin];
  };
}
