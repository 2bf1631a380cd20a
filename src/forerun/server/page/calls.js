// Tool calls: the tools that a user offers, the calls of an answer, and the call that still has no result.

const FORM = 'Write an array, such as [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}].';

/** The fault in the tools as they are written; empty if there is none. */
export function problemOfTools(written) {
  if (!written.trim()) return "";
  let tools;
  try {
    tools = JSON.parse(written);
  } catch (error) {
    return `This is not JSON (${error.message}). ${FORM}`;
  }
  if (!Array.isArray(tools)) return `This is not an array. ${FORM}`;
  const wrong = tools.findIndex((tool) => tool?.type !== "function" || typeof tool.function?.name !== "string" || !tool.function.name);
  return wrong < 0 ? "" : `Tool ${wrong + 1} is not of type "function" or its function has no name. ${FORM}`;
}

/** The tools of a request, or null for none. */
export function toolsOf(written) {
  const tools = written.trim() && !problemOfTools(written) ? JSON.parse(written) : [];
  return tools.length ? tools : null;
}

/** The object of a call's arguments, or null if they were cut off. */
function objectOf(call) {
  try {
    const value = JSON.parse(call.arguments);
    return typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** A call's arguments for display: one per line, once they are complete. */
export function argumentsInLines(call) {
  const value = objectOf(call);
  const isExact = !/\d{16}/.test(call.arguments); // a longer number would lose its last digits
  return value && isExact ? JSON.stringify(value, null, 2) : call.arguments;
}

/** The calls of an answer in OpenAI's form, without incomplete ones. */
export function sentCalls({ calls = [] }) {
  return calls.filter(objectOf).map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
}

/** The first call of the last answer that has no result yet, as {id, name}, or null. */
export function openCall(messages) {
  const at = messages.findLastIndex(({ role }) => role !== "tool");
  const answered = messages.slice(at + 1).map(({ call }) => call.id);
  const open = sentCalls(messages[at] ?? {}).find(({ id }) => !answered.includes(id));
  return open ? { id: open.id, name: open.function.name } : null;
}

function isCall(call) {
  return typeof call?.id === "string" && typeof call.name === "string";
}

/** The calls of an answer from a file. */
export function checkedCalls(calls) {
  const known = (Array.isArray(calls) ? calls : []).filter((call) => isCall(call) && typeof call.arguments === "string");
  return known.map(({ id, name, arguments: written }) => ({ id, name, arguments: written }));
}

/** The call that a message from a file is the result of, or null. */
export function checkedCall(call) {
  return isCall(call) ? { id: call.id, name: call.name } : null;
}
