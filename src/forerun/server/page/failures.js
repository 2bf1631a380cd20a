// Failures as messages with advice. Every failure that a user can see passes through here.

export class Failure extends Error {
  /** @param {string} message what was seen and what to do; @param {"key"|"settings"|"again"|"wait"|""} remedy a button */
  constructor(message, remedy = "") {
    super(message);
    this.remedy = remedy;
  }
}

const UNREACHABLE =
  "The server cannot be reached. See whether “forerun serve” still runs in its terminal, then try again.";

function withSentence(text) {
  const trimmed = String(text || "").trim();
  return trimmed && !/[.!?]$/.test(trimmed) ? `${trimmed}.` : trimmed;
}

/** A failure of an answer with an HTTP status; `body` is OpenAI's error object, if one came. */
export function failureOfAnswer(status, body, retryAfter) {
  const said = withSentence(body?.error?.message);
  if (status === 401 || status === 403)
    return new Failure(`${said || "The server needs a key."} Enter its key in the settings.`, "key");
  if (status === 404)
    return new Failure(`${said || "The server does not know this address."} Reload the page: perhaps the server runs another model now.`);
  if (body?.error?.code === "context_length_exceeded")
    return new Failure(`${said} Begin a new conversation, or edit an earlier question.`);
  if (status === 409) return new Failure(said || "The server is in a state that does not allow this.");
  if (status === 413) return new Failure(`${said || "The conversation is too long."} Begin a new one, or shorten what you sent.`);
  if (status === 429) {
    const when = retryAfter ? ` Try again in ${retryAfter} s.` : " Try again in a moment.";
    return new Failure(`The server is busy: too many requests are waiting.${when}`, "again");
  }
  if (status === 503 && body?.error?.code === "model_loading")
    return new Failure("The model is still being loaded. Try again in a moment.", "wait");
  if (status === 503) return new Failure(`${said || "The server is not ready."} Try again in a moment.`, "again");
  if (status >= 500) return new Failure(`${said || "The server failed."} Its terminal says more. Try again.`, "again");
  return new Failure(said || `The server refused the request with status ${status}. Look at the settings.`, "settings");
}

/** An error that arrived as an event of a stream. */
export function failureOfEvent(error) {
  return new Failure(`${withSentence(error?.message) || "The answer ended early."} What came before is kept.`, "again");
}

/** A stream that broke off before its last event. */
export function brokenOff() {
  return new Failure("The connection ended before the end of the answer. The part that arrived is kept; regenerate to get the whole answer.", "again");
}

/** The server could not be reached. */
export function unreachable() {
  return new Failure(UNREACHABLE, "again");
}

/** Any other exception. */
export function failureOf(error) {
  if (error instanceof Failure) return error;
  return new Failure(`An unexpected error occurred: ${error?.message ?? error}. Reload the page.`);
}
