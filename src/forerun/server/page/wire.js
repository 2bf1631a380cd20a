// The server's addresses: requests by fetch, answers as objects, and streams as an event at a time.

import { brokenOff, failureOfAnswer, failureOfEvent, unreachable } from "./failures.js";

function address(path) {
  return new URL(path, document.baseURI); // relative, so that a reverse proxy may put the page under a folder
}

function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function asked(path, options) {
  let answer;
  try {
    answer = await fetch(address(path), { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw failureOfAnswer(answer.status, body, answer.headers.get("retry-after"));
}

/** The server's model, its drafter, and the possible choices. */
export async function readServer(key) {
  return (await asked("v1/forerun", { headers: headers(key) })).json();
}

/** End the drafter's process. */
export async function killDrafter(key) {
  await asked("v1/forerun/kill-drafter", { method: "POST", headers: headers(key), body: "{}" });
}

/** The data of server-sent events, one string for each, from a stream of bytes. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : brokenOff();
      });
      if (done) return;
      const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the server then stops decoding
  }
}

/**
 * A chat completion as its events.
 * @param {object} request the body, as OpenAI has it
 * @param {{key: string, signal: AbortSignal}} options
 */
export async function* complete(request, { key, signal }) {
  const answer = await asked("v1/chat/completions", {
    method: "POST", headers: headers(key), body: JSON.stringify(request), signal,
  });
  for await (const data of eventsOf(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw failureOfEvent(event.error);
    yield event;
  }
  throw brokenOff();
}
