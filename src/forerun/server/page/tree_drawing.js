// The draft tree of a round, from left to right: the accepted path strong, rejected nodes faint.

import { drawn } from "./dom.js";
import { wordsOf } from "./legend.js";

const ROW = 26; // pixels, as all lengths here
const GAP = 26;
const PADDING = 7;
const LETTER = 7.3; // width of a letter of the drawing's 12 pixel monospace type, and some space
const MAX_LETTERS = 14;

/** A token with visible signs for spaces and line breaks. */
export function visible(text) {
  const shown = text.replaceAll("\n", "↵").replaceAll("\t", "→").replace(/ {2,}/g, "··").replace(/^ /, "·").replace(/ $/, "·") || "∅";
  return shown.length > MAX_LETTERS ? `${shown.slice(0, MAX_LETTERS - 1)}…` : shown;
}

// Rows in which leaves are below each other, a parent is beside its first child, and the accepted path is at the top.
function placed(parents, isOnPath) {
  const children = parents.map(() => []);
  parents.forEach((parent, node) => parent >= 0 && children[parent].push(node));
  const places = parents.map(() => ({ depth: 0, row: 0 }));
  let row = 0;
  const stack = [[0, 0]];
  while (stack.length) {
    const [node, depth] = stack.pop();
    if (node < 0) {
      row++;
      continue;
    }
    places[node] = { depth, row };
    const ordered = [...children[node]].sort((a, b) => isOnPath(b) - isOnPath(a));
    ordered.reverse().forEach((child, i) => {
      stack.push([child, depth + 1]);
      if (i < ordered.length - 1) stack.push([-1, 0]); // a new row before each child except the first
    });
  }
  return { places, numRows: row + 1 };
}

function widthOf(label) {
  return label.length * LETTER + 2 * PADDING;
}

function columns(labels, places) {
  const widths = [];
  labels.forEach((label, node) => {
    const { depth } = places[node];
    widths[depth] = Math.max(widths[depth] ?? 0, widthOf(label));
  });
  let x = 1;
  return widths.map((width) => {
    const left = x;
    x += width + GAP;
    return { left, width };
  });
}

/** The SVG of a round with a tree; the bonus token follows the accepted path. */
export function tree(round) {
  const { texts, parents, path, sources } = withBonus(round);
  const onPath = new Set(path);
  const { places, numRows } = placed(parents, (node) => onPath.has(node));
  const labels = texts.map(visible);
  const grid = columns(labels, places);
  const width = grid.at(-1).left + grid.at(-1).width + 1;
  const height = numRows * ROW + 2;
  const picture = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken(texts, path) });
  const lines = drawn("g", {});
  const boxes = drawn("g", {});
  parents.forEach((parent, node) => {
    const isKept = onPath.has(node);
    if (parent >= 0) lines.append(edge({ from: places[parent], width: widthOf(labels[parent]), to: places[node], grid, isKept }));
    boxes.append(box({ text: texts[node], label: labels[node], place: places[node], grid, source: sources[node], isKept, isRoot: parent < 0 }));
  });
  picture.append(lines, boxes);
  return picture;
}

function withBonus({ tree: drafted, tokens }) {
  const sources = drafted.sources ?? [];
  const path = drafted.path.includes(0) ? drafted.path : [0, ...drafted.path];
  const bonus = tokens.find((token) => token.by === "bonus");
  if (!bonus) return { texts: drafted.texts, parents: drafted.parents, path, sources };
  const node = drafted.texts.length;
  return {
    texts: [...drafted.texts, bonus.text], parents: [...drafted.parents, path.at(-1)], path: [...path, node],
    sources: [...drafted.texts.map((_, i) => sources[i] ?? "draft"), "bonus"],
  };
}

function spoken(texts, path) {
  const kept = path.slice(1).map((node) => texts[node]).join("");
  return `${texts.length - 1} tokens after “${texts[0]}”; kept: “${kept}”`;
}

function edge({ from, width, to, grid, isKept }) {
  const x1 = grid[from.depth].left + width;
  const x2 = grid[to.depth].left;
  const y1 = from.row * ROW + ROW / 2;
  const y2 = to.row * ROW + ROW / 2;
  const middle = (x1 + x2) / 2;
  return drawn("path", { class: isKept ? "edge kept" : "edge", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

function box({ text, label, place, grid, source, isKept, isRoot }) {
  const width = widthOf(label);
  const x = grid[place.depth].left;
  const y = place.row * ROW + 2;
  const kind = isRoot ? "the last token so far" : source === "bonus" ? "written by the model itself" : `${wordsOf(source)}, ${isKept ? "kept" : "not kept"}`;
  const says = `“${text.replaceAll("\n", "↵")}”: ${kind}, depth ${place.depth}`;
  return drawn("g", { class: `node ${isKept ? "kept" : "missed"} ${isRoot ? "root" : `node-${source}`}`, "data-says": says },
    drawn("title", {}, says),
    drawn("rect", { x, y, width, height: ROW - 4, rx: 5 }),
    drawn("text", { x: x + PADDING, y: y + 15 }, label));
}
