// Markdown on the page: marked reads it, DOMPurify cleans it, and every token is found again in what is shown.
// While text streams in, only the last block is built anew.

import { colourSoon } from "./code_colours.js";
import { element } from "./dom.js";
import { formulas, showFormulas } from "./formulas.js";
import { Inked, locate } from "./marks.js";
import { Marked } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js"; // defines the global DOMPurify

const PLAIN = "align aria-label class rel role scope start tabindex target type".split(" "); // attributes that do not hold an address
const CLEAN = {
  ALLOWED_TAGS: "a blockquote br button code del div em h2 hr li ol p pre span strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["href", ...PLAIN], // and data-*
  ADD_URI_SAFE_ATTR: PLAIN,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
};
const NUM_OPEN = 2; // blocks at the end that more text may change: an item after an empty line joins the list before it

const escaped = (text) => text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
const withEntities = (text) => escaped(text).replace(/&#38;(#\d{1,7}|#x[\da-f]{1,6}|\w{2,31});/gi, "&$1;");

/** A piece of text that begins in the source at token.at, see `locate`. */
const placed = (token, html) => `<span data-at="${token.at ?? ""}">${html}</span>`;

const renderer = {
  text(token) {
    return token.tokens ? this.parser.parseInline(token.tokens) : placed(token, withEntities(token.text));
  },
  codespan: (token) => `<code>${placed(token, escaped(token.text))}</code>`,
  code(token) {
    const language = escaped(languageOf(token));
    return `<div class="code"><div class="code-head"><span>${language}</span><button type="button" class="copy-code" data-copy="code">Copy</button></div>` +
      `<pre tabindex="0" role="group" aria-label="Code, ${language}"><code data-language="${language.toLowerCase()}"${isClosed(token) ? " data-closed" : ""}>` +
      `${placed(token, escaped(token.text))}</code></pre></div>`;
  },
  heading({ depth, tokens }) {
    return `<h2 class="level-${depth}">${this.parser.parseInline(tokens)}</h2>`; // an answer may skip levels of headings, but the page's outline must not
  },
  link({ href, tokens }) {
    return `<a href="${escaped(href)}" target="_blank" rel="noopener noreferrer">${this.parser.parseInline(tokens)}</a>`;
  },
  image(token) {
    return renderer.link.call(this, token); // a picture would have to be fetched from elsewhere
  },
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  table(token) {
    const row = (cells, name) => `<tr>${cells.map(({ align, tokens }) =>
      `<${name}${name === "th" ? ' scope="col"' : ""}${align ? ` align="${align}"` : ""}>${this.parser.parseInline(tokens)}</${name}>`).join("")}</tr>`;
    return `<div class="table" tabindex="0" role="group" aria-label="Table"><table><thead>${row(token.header, "th")}</thead>` +
      `<tbody>${token.rows.map((cells) => row(cells, "td")).join("")}</tbody></table></div>`;
  },
};
// HTML in an answer is shown as text, so that it never becomes markup, even before DOMPurify cleans the result.
const marked = new Marked({ renderer, tokenizer: { html: () => undefined, tag: () => undefined }, extensions: formulas });

const languageOf = (token) => /^[\w+#.-]+/.exec(token.lang ?? "")?.[0] ?? "text";

function isClosed(token) {
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(token.raw)?.[1];
  return !fence || new RegExp(`\\n {0,3}${fence}[~\`]* *\\n*$`).test(token.raw);
}

function read(source) {
  try {
    return marked.lexer(source);
  } catch {
    return Object.assign([{ type: "paragraph", raw: source, tokens: [{ type: "text", raw: source, text: source }] }], { links: {} }); // nested too deep to be read
  }
}

// What a token looks like, and where its last text ends in the source.
function built(token, start, inked) {
  locate([token], inked.source, start);
  const node = globalThis.DOMPurify.sanitize(marked.parser([token]), CLEAN).firstElementChild ?? element("p");
  return { node, end: inked.fill(node), inkedTo: inked.to };
}

// A list may be long too, so only its last item and new ones are drawn again.
function growList(before, block, inked) {
  const [{ token: old, inkedTo }, { token }] = [before, block];
  if (old.type !== "list" || token.type !== "list" || ["ordered", "start", "loose"].some((name) => old[name] !== token[name])) return false;
  let kept = 0;
  let start = block.start;
  while (kept < old.items.length - 1 && old.items[kept].raw === token.items[kept]?.raw && start + old.items[kept].raw.length <= inkedTo)
    start += old.items[kept++].raw.length;
  if (!kept) return false;
  const rest = built({ ...token, raw: block.raw.slice(start - block.start), items: token.items.slice(kept) }, start, inked);
  const first = before.node.children[kept];
  while (first.nextSibling) first.nextSibling.remove();
  first.replaceWith(...[...rest.node.childNodes].slice(1)); // without the line break before the first item
  Object.assign(before, { token, raw: block.raw, isInked: block.isInked, inkedTo: rest.inkedTo });
  return true;
}

/** The text of one message within `container`. */
export class Rendered {
  #built = []; // {raw, start, node, token, isInked, end} of every block on the page
  #links = "{}"; // link definitions (`[name]: address`), which earlier blocks may use

  constructor(container) {
    this.container = container;
  }

  /** Show `source`, with its tokens where `marks` are given. Earlier text must be the beginning of `source`. */
  update(source, marks) {
    const plain = source.replaceAll("\r", " "); // marked would drop it, and all later positions would be wrong
    const inked = new Inked(plain, marks);
    let kept = this.#links === "{}" ? Math.max(0, this.#built.length - NUM_OPEN) : 0;
    let tokens = read(plain.slice(this.#built[kept]?.start ?? 0));
    if (JSON.stringify(tokens.links) !== this.#links) {
      if (kept) tokens = read(plain);
      this.#links = JSON.stringify(tokens.links);
      this.#cut((kept = 0));
    }
    let at = this.#built[kept]?.start ?? 0;
    for (const token of tokens) {
      if (token.type !== "space" && token.type !== "def") this.#show(kept++, { token, raw: token.raw, start: at }, inked);
      at += token.raw.length;
    }
    this.#cut(kept);
    colourSoon();
    showFormulas(this.container);
  }

  /** Draw everything again, for example after marks were switched on or off. */
  rebuild(source, marks) {
    this.#cut(0);
    this.#links = "{}";
    this.update(source, marks);
  }

  #cut(length) {
    for (const { node } of this.#built.splice(length)) node.remove();
  }

  #show(place, block, inked) {
    const before = this.#built[place];
    if (before?.raw === block.raw && before.start === block.start && before.isInked) return;
    block.isInked = inked.reaches(block.start + block.raw.length);
    if (before && (this.#growCode(before, block, inked) || growList(before, block, inked))) return;
    Object.assign(block, built(block.token, block.start, inked));
    if (before) before.node.replaceWith(block.node);
    else this.container.append(block.node);
    this.#built[place] = block;
  }

  // Code may be long, so new text is appended instead of drawing all of it again.
  #growCode(before, block, inked) {
    const { token } = block;
    if (token.type !== "code" || before.token.type !== "code" || isClosed(token) || isClosed(before.token)) return false;
    if (!before.isInked || before.token.lang !== token.lang || !token.text.startsWith(before.token.text) || !before.token.text) return false;
    const end = inked.append(before.node.querySelector("code"), token.text.slice(before.token.text.length), before.end);
    Object.assign(before, { token, raw: block.raw, isInked: block.isInked, end });
    return true;
  }
}
