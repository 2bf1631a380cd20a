// One answer from the server into a recording: what chat and race both do.

import { Recording } from "./recording.js";
import { complete } from "./wire.js";

/** The body of a request. `drafter` is a name, or null for the engine's own; `goesOn`: with the last message, an answer; `tools`: null for none. */
export function requestOf({ model, messages, sampling, drafter, tools = null, goesOn = false }) {
  return {
    model, messages, stream: true, stream_options: { include_usage: true }, return_progress: true, ...sampling,
    forerun: { drafter, details: true }, ...(tools ? { tools } : {}), ...(goesOn ? { continue_final_message: true, add_generation_prompt: false } : {}),
  };
}

/**
 * Ask, and call `onArrival(recording)` after every event.
 * @returns {Promise<boolean>} whether the answer came to its end; false where `signal` stopped it
 * @throws {Failure} what went wrong, in words; the recording holds what came before
 */
export async function record(recording, request, { key, signal, onArrival }) {
  try {
    for await (const event of complete(request, { key, signal })) {
      recording.add(event, performance.now());
      onArrival(recording);
    }
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    throw error;
  }
}
