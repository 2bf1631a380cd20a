// A conversation as a tree of messages: editing and regenerating add a sibling, and every message knows its chosen reply.

import { checkedCall, checkedCalls, sentCalls } from "./calls.js";

const NO_TITLE = "New conversation";
const MAX_TITLE = 60; // characters

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation() {
  return { id: newId(), title: NO_TITLE, isNamed: false, changedMs: Date.now(), chosen: null, messages: {} };
}

/** The messages of the chosen branch, first to last. */
export function shownMessages(conversation) {
  const path = [];
  for (let id = conversation.chosen; id; id = conversation.messages[id].chosen) path.push(conversation.messages[id]);
  return path;
}

/** The messages in the same place, oldest first. */
export function siblingsOf(conversation, message) {
  return Object.values(conversation.messages).filter((other) => other.parent === message.parent && other.role === message.role);
}

/** Choose this message for its place. */
export function choose(conversation, message) {
  if (message.parent) conversation.messages[message.parent].chosen = message.id;
  else conversation.chosen = message.id;
}

/** Add a message below `parent`. `call`: the {id, name} that a message of the role "tool" is the result of. */
export function addMessage(conversation, { parent, role, text, files = [], call = null }) {
  const message = {
    id: newId(), parent, role, text, files, call, calls: [], reasoning: "", marks: [], usage: null, timings: null, seed: null, note: "", isCut: false, chosen: null,
  };
  conversation.messages[message.id] = message;
  choose(conversation, message);
  conversation.changedMs = Date.now();
  if (!conversation.isNamed && role === "user" && !parent) conversation.title = titleOf(text || files[0]?.name || "");
  return message;
}

/** The messages up to and including `last`, as a request has them. */
export function requestMessages(conversation, last, system) {
  const path = [];
  for (let message = last; message; message = conversation.messages[message.parent]) path.unshift(message);
  const said = path.map(sentMessage).filter(({ role, content, tool_calls }) => role !== "assistant" || content || tool_calls); // an answer that failed was never said
  return system ? [{ role: "system", content: system }, ...said] : said;
}

function sentMessage(message) {
  const calls = sentCalls(message);
  return {
    role: message.role, content: contentOf(message), ...(calls.length ? { tool_calls: calls } : {}), ...(message.call ? { tool_call_id: message.call.id } : {}),
  };
}

// Files go before the words about them, each between fences that it does not hold itself.
function contentOf({ text, files = [] }) {
  const parts = files.map((file) => {
    const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
    const fence = "`".repeat(longest + 1);
    return `File ${file.name}:\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, text].filter(Boolean).join("\n\n");
}

export function contains(conversation, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [conversation.title, ...Object.values(conversation.messages).map((message) => message.text)];
  const text = all.join("\n").toLowerCase();
  return wanted.every((word) => text.includes(word));
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  if (!line) return NO_TITLE;
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

/** A conversation from a file, or null if it is not one. Only known fields are used. */
export function checked(value) {
  if (typeof value !== "object" || !value || typeof value.messages !== "object" || !value.messages) return null;
  const conversation = { ...newConversation(), title: String(value.title ?? NO_TITLE), isNamed: true };
  for (const [id, raw] of Object.entries(value.messages)) {
    if (!["user", "assistant", "tool"].includes(raw?.role)) return null;
    const call = raw.role === "tool" ? checkedCall(raw.call) : null;
    if (raw.role === "tool" && !call) return null;
    if (raw.parent !== null && !Object.hasOwn(value.messages, raw.parent)) return null;
    conversation.messages[id] = {
      id, parent: raw.parent, role: raw.role, text: String(raw.text ?? ""), files: checkedFiles(raw.files), reasoning: String(raw.reasoning ?? ""),
      call, calls: raw.role === "assistant" ? checkedCalls(raw.calls) : [],
      marks: checkedMarks(raw.marks), usage: checkedUsage(raw.usage), timings: null,
      seed: Number.isInteger(raw.seed) ? raw.seed : null, note: String(raw.note ?? ""), isCut: raw.isCut === true,
      chosen: childOf(value.messages, raw.chosen, id),
    };
  }
  conversation.chosen = childOf(value.messages, value.chosen, null) ?? firstOf(conversation);
  return isTree(conversation) ? conversation : null;
}

function checkedFiles(files) {
  const known = (Array.isArray(files) ? files : []).filter((file) => typeof file?.name === "string" && typeof file.text === "string");
  return known.map(({ name, text }) => ({ name, text }));
}

function checkedMarks(marks) {
  if (!Array.isArray(marks)) return [];
  const known = marks.filter((mark) => Number.isInteger(mark?.end) && /^[a-z]{1,16}$/.test(mark.by));
  return known.map(({ end, by, round }) => ({ end, by, round }));
}

// Only numbers are taken from a file, as they are written with toFixed.
function checkedUsage(usage) {
  const isNumber = Number.isFinite(usage?.completion_tokens) && Number.isFinite(usage?.prompt_tokens);
  return isNumber ? { completion_tokens: usage.completion_tokens, prompt_tokens: usage.prompt_tokens } : null;
}

function childOf(messages, id, parent) {
  return typeof id === "string" && Object.hasOwn(messages, id) && messages[id].parent === parent ? id : null;
}

function firstOf(conversation) {
  return Object.values(conversation.messages).find((message) => message.parent === null)?.id ?? null;
}

// A file may name parents in a circle; following them would never end.
function isTree(conversation) {
  const limit = Object.keys(conversation.messages).length;
  return Object.values(conversation.messages).every((message) => {
    let steps = 0;
    for (let id = message.parent; id; id = conversation.messages[id].parent) if (++steps > limit) return false;
    return true;
  });
}
