// Formulas as TeX writes them: $…$ and \(…\) within text, $$…$$ and \[…\] on lines of their own. Temml makes MathML of
// them, which browsers draw; it is fetched from this server when the first formula is seen.

import { element } from "./dom.js";
import { atNextFrame } from "./frames.js";

const WITHIN = /^(?:\$([^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\d)|\\\(([^\n]+?)\\\))/; // "$5 and $6" is no formula
const APART = /^ {0,3}(?:\$\$([^$]+)\$\$|\\\[([^]+?)\\\])[^\S\n]*(?:\n|$)/;
const WITHIN_APART = /^(?:\$\$([^$\n]+)\$\$|\\\[([^\n]+?)\\\])/; // the large form within a line

function token(found, isApart) {
  return found && { type: isApart ? "formula" : "formulaWithin", raw: found[0], text: (found[1] ?? found[2]).trim() };
}

function html({ raw, at, text, type }) {
  const escaped = (words) => words.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const isApart = type === "formula" || /^(\$\$|\\\[)/.test(raw);
  return `<span class="formula" data-at="${at ?? ""}" data-tex="${escaped(text)}" data-apart="${isApart}">${escaped(raw.trim())}</span>`;
}

/** The extension that makes marked recognise formulas. */
export const formulas = [
  {
    name: "formula", level: "block",
    start: (source) => /^ {0,3}(?:\$\$|\\\[)/m.exec(source)?.index,
    tokenizer: (source) => token(APART.exec(source), true) || undefined,
    renderer: (found) => `<p>${html(found)}</p>`,
  },
  {
    name: "formulaWithin", level: "inline",
    start: (source) => /\$|\\[([]/.exec(source)?.index,
    tokenizer: (source) => token(WITHIN_APART.exec(source) ?? WITHIN.exec(source), false) || undefined,
    renderer: html,
  },
];

let asked = false;

/** Draw the formulas in `container`, now, or as soon as Temml is loaded. */
export function showFormulas(container) {
  const found = container.querySelectorAll("[data-tex]");
  if (!found.length) return;
  if (globalThis.temml) found.forEach(draw);
  else if (!asked) {
    asked = true;
    const src = new URL("vendor/temml.min.js", import.meta.url);
    document.head.append(element("script", { src, onload: () => atNextFrame("formulas", () => document.querySelectorAll("[data-tex]").forEach(draw)) }));
  }
}

function draw(piece) {
  const { tex, apart } = piece.dataset;
  delete piece.dataset.tex;
  try {
    const drawn = document.createElement("span");
    globalThis.temml.render(tex, drawn, { displayMode: apart === "true", throwOnError: true, maxExpand: 200, maxSize: [20, 20] });
    piece.replaceChildren(...drawn.childNodes);
  } catch {
    // Text that is not a valid formula is shown as it was written.
  }
}
