// Colours for code: comments, strings, numbers, keywords. They are ranges over the text and add no element to it, so
// that tokens keep their own; a browser without such ranges shows plain code.

import { atNextFrame } from "./frames.js";

const NAMES = ["comment", "string", "number", "keyword"];
const HASH = "and as assert async await break case class continue def del do done elif else end esac except fi finally for from function global if " +
  "import in is lambda local match nonlocal not or pass raise require return then try while with yield None True False self nil true false";
const SLASH = "abstract as async await bool boolean break byte case catch char class const constexpr continue default delete do double else enum " +
  "export extends extern final finally float fn for from func function go if impl implements import in instanceof int interface let long match mod " +
  "mut namespace new null nullptr of override package private protected pub public return self short signed sizeof static string struct super switch " +
  "template this throw throws trait try type typedef typeof union unsigned use using val var virtual void volatile while yield true false undefined";
const DASH = "add alter and as asc between by case create cross delete desc distinct drop else end exists foreign from full function group having if in " +
  "index inner insert into is join key left like limit local not null offset on or order outer primary references repeat return right select set " +
  "table then union unique until update values view when where while with";

// Languages by the way they write comments, with the words of all of them.
const FAMILIES = [
  { comment: "#.*", words: HASH, names: "python py bash sh shell zsh ruby rb r perl yaml yml toml make makefile dockerfile elixir julia" },
  { comment: "//.*|/\\*[^]*?(?:\\*/|$)", words: SLASH, names: "javascript js jsx typescript ts tsx java c h cpp c++ cs csharp go rust rs swift kotlin scala php dart css scss json zig" },
  { comment: "--.*", words: `${DASH} ${DASH.toUpperCase()}`, names: "sql lua haskell hs ada" },
].map(({ comment, words, names }) => ({ token: tokenOf(comment), words: new Set(words.split(" ")), names: new Set(names.split(" ")) }));

function tokenOf(comment) {
  const strings = ['"""[^]*?(?:"""|$)', "'''[^]*?(?:'''|$)", ...['"', "'", "`"].map((mark) => `${mark}(?:\\\\.|[^${mark}\\\\\\n])*${mark}`)];
  return new RegExp(`(?<comment>${comment})|(?<string>${strings.join("|")})|(?<number>\\b\\d[\\w.]*)|(?<keyword>[A-Za-z_$][\\w$]*)`, "g");
}

const coloured = new Map(); // of every code element on the page: {end, isClosed, ranges}
const registry = globalThis.CSS?.highlights;

/** Colour the code on the page at the next frame. */
export function colourSoon() {
  if (registry) atNextFrame("code colours", colour);
}

function colour() {
  for (const code of coloured.keys()) if (!code.isConnected) forget(code);
  for (const code of document.querySelectorAll("code[data-language]")) {
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

// Pairs of a name and a range, in order.
function rangesOf(code, end) {
  const family = FAMILIES.find(({ names }) => names.has(code.dataset.language));
  if (!family) return [];
  const placeOf = places(code);
  return [...code.textContent.slice(0, Math.max(end, 0)).matchAll(family.token)].flatMap((found) => {
    const name = NAMES.find((each) => found.groups[each] !== undefined);
    if (name === "keyword" && !family.words.has(found[0])) return [];
    const [startContainer, startOffset] = placeOf(found.index);
    const [endContainer, endOffset] = placeOf(found.index + found[0].length);
    return [[name, new StaticRange({ startContainer, startOffset, endContainer, endOffset })]];
  });
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
