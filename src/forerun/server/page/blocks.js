// Markdown's blocks as ranges of the source, so that every character still knows which token it came from.

const FENCE = /^ {0,9}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function lineAt(source, start) {
  const found = source.indexOf("\n", start);
  const end = found < 0 ? source.length : found;
  return { start, end, next: found < 0 ? source.length : found + 1, text: source.slice(start, end) };
}

/**
 * The blocks of `source` from `from` on, in order. Each has kind, start and end, and by kind: lines (ranges), level,
 * language, items, rows. Only the last one can still change when text is appended.
 */
export function blocksOf(source, from = 0) {
  const blocks = [];
  let at = from;
  while (at < source.length) {
    const line = lineAt(source, at);
    if (!line.text.trim()) {
      at = line.next;
      continue;
    }
    const block = fence(source, line) ?? heading(line) ?? rule(line) ?? quote(source, line) ?? table(source, line) ??
      list(source, line) ?? paragraph(source, line);
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function fence(source, first) {
  const opening = FENCE.exec(first.text);
  if (!opening) return null;
  const begin = first.next;
  for (let at = begin; at < source.length; ) {
    const line = lineAt(source, at);
    const text = line.text.trim();
    if (text.startsWith(opening[1]) && !text.replaceAll(opening[1][0], ""))
      return code(first, opening, { begin, end: Math.max(begin, at - 1), next: line.next, isClosed: true });
    at = line.next;
  }
  return code(first, opening, { begin, end: source.length, next: source.length, isClosed: false });
}

function code(first, opening, { begin, end, next, isClosed }) {
  return { kind: "code", start: first.start, end: next, language: opening[2], code: [begin, end], isClosed };
}

function heading(line) {
  const marks = HEADING.exec(line.text);
  if (!marks) return null;
  const end = line.start + line.text.replace(/\s+#*\s*$/, "").length;
  const lines = [[line.start + marks[0].length, end]];
  return { kind: "heading", start: line.start, end: line.next, level: marks[1].length, lines };
}

function rule(line) {
  return RULE.test(line.text) ? { kind: "rule", start: line.start, end: line.next } : null;
}

function quote(source, first) {
  if (!QUOTE.test(first.text)) return null;
  const lines = [];
  let line = first;
  for (;;) {
    lines.push([line.start + QUOTE.exec(line.text)[0].length, line.end]);
    if (line.next >= source.length) break;
    const after = lineAt(source, line.next);
    if (!QUOTE.test(after.text)) break;
    line = after;
  }
  return { kind: "quote", start: first.start, end: line.next, lines };
}

function cellsOf(line) {
  const cells = [];
  let from = line.start + /^\s*\|?/.exec(line.text)[0].length;
  const end = line.start + line.text.replace(/\|?\s*$/, "").length;
  for (let at = from; at <= end; at++) {
    if (at < end && line.text[at - line.start] !== "|") continue;
    cells.push([from, at]);
    from = at + 1;
  }
  return cells;
}

function table(source, first) {
  if (!first.text.includes("|") || first.next >= source.length) return null;
  const second = lineAt(source, first.next);
  if (!DELIMITER.test(second.text) || !second.text.includes("-")) return null;
  const rows = [cellsOf(first)];
  let end = second.next;
  while (end < source.length) {
    const line = lineAt(source, end);
    if (!line.text.includes("|")) break;
    rows.push(cellsOf(line));
    end = line.next;
  }
  return { kind: "table", start: first.start, end, rows };
}

function isNumbered(marker) {
  return /\d/.test(marker[2]);
}

function list(source, first) {
  const opening = ITEM.exec(first.text);
  if (!opening) return null;
  const items = [];
  let end = first.start;
  let isLoose = false; // whether an empty line came just before
  while (end < source.length) {
    const line = lineAt(source, end);
    const marker = ITEM.exec(line.text);
    const isOther = marker && marker[1].length <= opening[1].length && isNumbered(marker) !== isNumbered(opening);
    if (isOther || (!marker && QUOTE.test(line.text)) || RULE.test(line.text)) break;
    if (marker) {
      const lines = [[line.start + marker[0].length, line.end]];
      items.push({ depth: marker[1].length, isNumbered: isNumbered(marker), number: parseInt(marker[2], 10), lines });
    } else if (!line.text.trim()) {
      isLoose = true;
      end = line.next;
      continue;
    } else if (FENCE.test(line.text) || (isLoose && !/^\s{2,}/.test(line.text)) || HEADING.test(line.text)) {
      break;
    } else {
      items.at(-1).lines.push([line.start + /^\s*/.exec(line.text)[0].length, line.end]);
    }
    isLoose = false;
    end = line.next;
  }
  return { kind: "list", start: first.start, end, items };
}

function paragraph(source, first) {
  let line = first;
  while (line.next < source.length) {
    const after = lineAt(source, line.next);
    const text = after.text;
    if (!text.trim() || FENCE.test(text) || HEADING.test(text) || QUOTE.test(text) || ITEM.test(text) || RULE.test(text)) break;
    line = after;
  }
  return { kind: "paragraph", start: first.start, end: line.next, lines: [[first.start, line.end]] };
}
