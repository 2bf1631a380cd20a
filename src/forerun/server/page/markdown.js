// Markdown on the page, built node by node. While text streams in, only the last block is built anew.

import { blocksOf } from "./blocks.js";
import { colourSoon } from "./code_colours.js";
import { element } from "./dom.js";
import { Inked } from "./spans.js";

const MAY_FORM = /[\\`*_~[\]):/]/; // what begins or ends a form within text, or goes on with an address
const MAX_MARKER = 32; // characters of an item's indent and marker, with room for what one event brings

/** The text of one message within `container`. */
export class Rendered {
  #built = []; // {start, kind, node, to} of every block on the page

  constructor(container) {
    this.container = container;
  }

  /** Show `source`, with its tokens where `marks` are given. Earlier text must be the beginning of `source`. */
  update(source, marks) {
    const inked = new Inked(source, marks);
    this.#reopenList(source);
    const last = this.#built.at(-1);
    const blocks = blocksOf(source, last?.start ?? 0);
    if (last && blocks.length && this.#grow(last, blocks[0], inked)) blocks.shift();
    else if (last) this.#built.pop().node.remove();
    for (const block of blocks) this.#append(block, inked);
    colourSoon();
  }

  /** Show it from nothing, as when marks are switched on or off. */
  rebuild(source, marks) {
    this.container.replaceChildren();
    this.#built = [];
    this.update(source, marks);
  }

  // A list may go on after an empty line: until its marker is whole, the next item looks like a paragraph.
  #reopenList(source) {
    const last = this.#built.at(-1);
    if (last?.kind !== "paragraph" || this.#built.at(-2)?.kind !== "list" || source.length - last.start > MAX_MARKER) return;
    this.#built.pop().node.remove();
  }

  #append(block, inked) {
    const node = built(block, inked);
    this.container.append(node);
    this.#built.push({ start: block.start, kind: block.kind, node, to: (block.code ?? block.lines?.[0])?.[1], language: block.language });
  }

  // A long block grows at its end: what cannot have changed its form is appended, instead of building all of it anew.
  #grow(last, block, inked) {
    if (last.kind !== block.kind) return false;
    if (block.kind === "code") return this.#growCode(last, block, inked);
    if (block.kind !== "paragraph" || block.start !== last.start) return false;
    const end = block.lines[0][1];
    const word = inked.source.slice(Math.max(last.start, inked.source.lastIndexOf(" ", last.to - 1) + 1), last.to);
    const added = inked.source.slice(last.to, end);
    if (end < last.to || !inked.reaches(end) || MAY_FORM.test(word) || MAY_FORM.test(added)) return false;
    inked.plain(last.node, last.to, end);
    last.to = end;
    return true;
  }

  #growCode(last, block, inked) {
    if (block.isClosed || last.language !== block.language || !inked.reaches(block.code[1])) return false;
    inked.plain(last.node.querySelector("code"), Math.max(last.to, block.code[0]), block.code[1]);
    last.to = block.code[1];
    return true;
  }
}

function built(block, inked) {
  switch (block.kind) {
    case "code":
      return code(block, inked);
    case "heading":
      return lines(element("h2", { class: `level-${block.level}` }), block.lines, inked); // an answer may skip levels, the page's outline may not
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, lines(element("p"), block.lines, inked));
    case "table":
      return table(block, inked);
    case "list":
      return list(block.items, inked);
    default:
      return lines(element("p"), block.lines, inked);
  }
}

function lines(node, ranges, inked) {
  ranges.forEach(([start, end], i) => {
    if (i) node.append("\n");
    inked.rich(node, start, end);
  });
  return node;
}

function code(block, inked) {
  const text = element("code", { "data-language": block.language.toLowerCase(), "data-closed": block.isClosed });
  inked.plain(text, ...block.code);
  const copy = element("button", { type: "button", class: "copy-code", "data-copy": "code" }, "Copy");
  const head = element("div", { class: "code-head" }, element("span", {}, block.language || "text"), copy);
  return element("div", { class: "code" }, head, element("pre", { tabindex: "0", role: "group", "aria-label": `Code, ${block.language || "text"}` }, text));
}

function table(block, inked) {
  const row = (cells, name) => element("tr", {}, ...cells.map(([start, end]) => {
    const cell = element(name, name === "th" ? { scope: "col" } : {});
    const text = inked.source.slice(start, end);
    inked.rich(cell, start + (text.length - text.trimStart().length), end - (text.length - text.trimEnd().length));
    return cell;
  }));
  const head = element("thead", {}, row(block.rows[0], "th"));
  const body = element("tbody", {}, ...block.rows.slice(1).map((cells) => row(cells, "td")));
  return element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, element("table", {}, head, body));
}

function list(items, inked) {
  const rest = [...items];
  const level = () => {
    const { depth, isNumbered, number } = rest[0];
    const node = element(isNumbered ? "ol" : "ul", isNumbered && number !== 1 ? { start: number } : {});
    while (rest.length && rest[0].depth >= depth) {
      if (rest[0].depth > depth + 1 && node.lastChild) node.lastChild.append(level());
      else node.append(lines(element("li"), rest.shift().lines, inked));
    }
    return node;
  };
  const whole = level();
  if (!rest.length) return whole;
  return element("div", {}, whole, ...remaining(rest, level));
}

// A list whose first item stood further in than a later one.
function remaining(rest, level) {
  const nodes = [];
  while (rest.length) nodes.push(level());
  return nodes;
}
