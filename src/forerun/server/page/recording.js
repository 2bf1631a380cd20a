// The part of an answer that has arrived: its text, its tool calls, the writer of each part, its rounds, its clock.

const KINDS = new Set(["draft", "lookup", "recycled", "prediction", "bonus"]);
const MAX_GAP = 12; // between two matching tokens, tokens that hold parts of one character may leave this many characters

export class Recording {
  text = "";
  reasoning = "";
  calls = []; // {id, name, arguments}: the arguments as written so far; complete ones are JSON
  marks = []; // {end, by, round}: the text up to `end`, from where the mark before ends, was written so
  rounds = [];
  usage = null;
  timings = null;
  finish = null;
  beganMs = null; // when the first token came
  lastMs = null;
  numTokens = 0;
  reading = null; // how much of the prompt is read, until the first token comes
  #unplaced = [];
  #skipped = null;
  #before = { text: 0, rounds: 0, tokens: 0, endMs: 0 }; // the part that an earlier request wrote

  /** Continue an answer that was cut off, with its rounds. */
  goOn({ text, reasoning, marks }, rounds) {
    Object.assign(this, { text, reasoning, marks: [...marks], rounds: [...rounds], numTokens: rounds.at(-1)?.numTokens ?? 0 });
    if ((marks.at(-1)?.end ?? 0) < text.length) this.#mark(text.length, { by: "bonus", round: Math.max(0, rounds.length - 1) });
    const ends = rounds.flatMap((round) => (round.spans ?? []).map((span) => span.end_ms));
    this.#before = { text: text.length, rounds: rounds.length, tokens: this.numTokens, endMs: ends.reduce((most, ms) => Math.max(most, ms), 0) };
    return this;
  }

  /** Add one event of the stream. */
  add(event, nowMs) {
    const choice = event.choices?.[0];
    this.reading = event.prompt_progress ?? null;
    this.text += choice?.delta?.content ?? "";
    this.reasoning += choice?.delta?.reasoning_content ?? "";
    for (const delta of choice?.delta?.tool_calls ?? []) this.#addCall(delta);
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    if (event.usage) this.usage = this.#whole(event.usage);
    if (event.timings) this.timings = event.timings;
    if (event.forerun?.tokens) this.#addRound(event.forerun, nowMs, Boolean(choice?.delta?.reasoning_content || choice?.delta?.tool_calls));
    this.#place();
  }

  get tokensPerSecond() {
    if (this.timings?.predicted_per_second) return this.timings.predicted_per_second;
    const seconds = (this.lastMs - this.beganMs) / 1000;
    const { rounds, tokens } = this.#before;
    const later = this.numTokens - tokens - (this.rounds[rounds]?.tokens.length ?? 0); // the clock starts with the first round
    return seconds > 0.05 && later > 0 ? later / seconds : null;
  }

  get tokensPerRound() {
    return this.usage?.forerun?.tokens_per_round ?? (this.rounds.length ? this.numTokens / this.rounds.length : null);
  }

  #addCall({ index, id, function: part }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name ||= part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }

  #addRound(round, nowMs, isNoText) {
    this.beganMs ??= nowMs;
    this.lastMs = nowMs;
    this.numTokens += round.tokens.length;
    const { endMs } = this.#before;
    const spans = (round.spans ?? []).map((span) => ({ ...span, begin_ms: span.begin_ms + endMs, end_ms: span.end_ms + endMs }));
    this.rounds.push({ ...round, spans, atMs: nowMs - this.beganMs, numTokens: this.numTokens });
    if (isNoText) return;
    const round_idx = this.rounds.length - 1;
    this.#unplaced.push(...round.tokens.map((token) => ({ ...token, round: round_idx })));
  }

  // Text written by earlier requests counts as part of the answer, although this request sent it in its prompt.
  #whole(usage) {
    const { tokens } = this.#before;
    if (!tokens) return usage;
    const { prompt_tokens_details: _, ...rest } = usage;
    return { ...rest, prompt_tokens: usage.prompt_tokens - tokens, completion_tokens: usage.completion_tokens + tokens };
  }

  // The text may lag behind the tokens (a stop string may begin) and differ from them (half a character each).
  #place() {
    let at = this.marks.at(-1)?.end ?? 0;
    while (this.#unplaced.length && at < this.text.length) {
      const token = this.#unplaced[0];
      const wanted = at === 0 ? token.text.trimStart() : token.text;
      const left = this.text.length - at;
      if (wanted.length > left && wanted.startsWith(this.text.slice(at))) return;
      this.#unplaced.shift();
      if (!wanted) continue;
      const found = this.text.indexOf(wanted, at);
      if (found < 0 || found - at > MAX_GAP) {
        this.#skipped = token;
        continue;
      }
      if (found > at) this.#mark(found, this.#skipped ?? token);
      at = found + wanted.length;
      this.#mark(at, token);
      this.#skipped = null;
    }
  }

  #mark(end, token) {
    this.marks.push({ end, by: KINDS.has(token.by) ? token.by : "bonus", round: token.round });
  }
}
