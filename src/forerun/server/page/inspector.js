// The panel next to the text: one round at a time, its tree, and when model and drafter worked.

import { byId, element } from "./dom.js";
import { atNextFrame } from "./frames.js";
import { wordsOf } from "./legend.js";
import { strip } from "./strip_drawing.js";
import { timeline } from "./timeline_drawing.js";
import { tree, visible } from "./tree_drawing.js";

const WITHOUT_REST = new Set(["none", "prompt_lookup"]); // a lookup guesses nothing where the text does not repeat itself
const MIN_ROUNDS = 8; // with fewer, a drafter may still be measuring
const INTERVAL_MS = 100; // nobody reads more than ten trees a second

export class Inspector {
  isOpen = false;
  #rounds = [];
  #at = 0;
  #drafter = ""; // its name, where it is known
  #isFollowing = true;
  #timer = 0;
  #parts = null;
  #opener = null; // the element that had the focus before, and gets it back

  /** Follow a recording: show its rounds as they arrive. */
  follow(recording, drafter = "") {
    this.#drafter = drafter;
    this.#rounds = recording.rounds;
    this.#isFollowing = true;
    this.#at = 0;
    this.#later();
  }

  /** Draw again if more rounds have arrived. */
  grow(recording) {
    if (this.#rounds !== recording.rounds) return;
    if (this.#isFollowing) this.#at = Math.max(0, this.#rounds.length - 1);
    this.#later();
  }

  /** Show round `at` of `rounds`; null means the round that accepted most tokens. */
  open(rounds, at = null, drafter = "") {
    this.#drafter = drafter;
    at ??= rounds.reduce((best, round, i) => (numAccepted(round) > numAccepted(rounds[best]) ? i : best), 0);
    this.#rounds = rounds;
    this.#isFollowing = false;
    this.#at = Math.max(0, Math.min(at, rounds.length - 1));
    this.#setOpen(true);
    this.#focus();
  }

  #focus() {
    const { slider, close } = this.#parts;
    (this.#rounds.length ? slider : close).focus({ preventScroll: true });
  }

  toggle() {
    this.#setOpen(!this.isOpen);
    if (this.isOpen) this.#focus();
    else (this.#opener?.isConnected ? this.#opener : byId("open-inspector")).focus();
  }

  #setOpen(isOpen) {
    if (isOpen && !this.isOpen) this.#opener = document.activeElement;
    this.isOpen = isOpen;
    byId("inspector").hidden = !isOpen;
    byId("open-inspector").setAttribute("aria-expanded", String(isOpen));
    if (isOpen) {
      this.#parts ??= this.#build();
      this.#show();
    }
  }

  #later() {
    if (!this.isOpen || this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      if (this.isOpen) atNextFrame("inspector", () => this.#show());
    }, INTERVAL_MS);
  }

  #build() {
    const panel = byId("inspector");
    const step = (words, label, work) => element("button", { type: "button", "aria-label": label, onclick: work }, words);
    const slider = element("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Round" });
    slider.addEventListener("input", () => this.#go(Number(slider.value) - 1));
    const follow = element("input", { type: "checkbox", role: "switch" });
    follow.addEventListener("change", () => {
      this.#isFollowing = follow.checked;
      if (follow.checked) this.#at = Math.max(0, this.#rounds.length - 1);
      this.#show();
    });
    const parts = {
      panel, slider, follow, close: step("✕", "Close the rounds", () => this.toggle()), title: element("h2", {}), words: element("p", { class: "round-words" }), rest: element("p", { class: "rests" }),
      strip: element("div", { class: "strip" }), tree: element("div", { class: "tree", tabindex: "0", role: "group", "aria-label": "Guesses of this round as a tree" }),
      hovered: element("p", { class: "hovered" }), timeline: element("div", { class: "timeline" }), empty: element("p", { class: "nothing" }),
    };
    parts.body = element("div", {}, parts.rest, element("h3", {}, "Tokens of each round"), parts.strip,
      element("div", { class: "steps" },
        step("«", "First round", () => this.#go(0)), step("‹", "The round before", () => this.#go(this.#at - 1)), slider,
        step("›", "The next round", () => this.#go(this.#at + 1)), step("»", "Last round", () => this.#go(this.#rounds.length - 1)),
        element("label", { class: "switch" }, follow, " Follow")),
      parts.words, element("h3", {}, "What was guessed"), parts.tree, parts.hovered, element("h3", {}, "Who worked when"), parts.timeline);
    panel.replaceChildren(
      element("div", { class: "inspector-head" }, parts.title, parts.close), parts.empty, parts.body);
    panel.addEventListener("keydown", (event) => this.#key(event));
    parts.strip.addEventListener("click", (event) => {
      const bar = event.target.closest("[data-round]");
      if (bar) this.#go(Number(bar.dataset.round));
    });
    const hover = (event) => (parts.hovered.textContent = event.target.closest("[data-says]")?.dataset.says ?? "");
    parts.tree.addEventListener("pointerover", hover);
    parts.timeline.addEventListener("pointerover", hover);
    return parts;
  }

  #key(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.toggle();
    } else if (event.target.type !== "range" && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      event.preventDefault();
      this.#go(this.#at + (event.key === "ArrowLeft" ? -1 : 1));
    }
  }

  #go(at) {
    this.#isFollowing = false;
    this.#at = Math.min(Math.max(at, 0), this.#rounds.length - 1);
    this.#show();
  }

  #show() {
    const { title, empty, body, slider, follow, words, hovered, rest } = this.#parts;
    const num = this.#rounds.length;
    body.hidden = !num;
    empty.hidden = num > 0;
    empty.textContent = "Ask something, and every pass of the model appears here with what was guessed for it. “Rounds” below an earlier answer shows those of that answer.";
    title.textContent = num ? `Round ${this.#at + 1} of ${num}` : "Rounds";
    if (!num) return;
    const round = this.#rounds[this.#at];
    slider.max = num;
    slider.value = this.#at + 1;
    slider.setAttribute("aria-valuetext", `${this.#at + 1} of ${num}`);
    follow.checked = this.#isFollowing;
    words.textContent = inWords(round);
    rest.textContent = restInWords(this.#rounds, this.#drafter);
    rest.hidden = !rest.textContent;
    hovered.textContent = "";
    this.#parts.strip.replaceChildren(strip(this.#rounds, this.#at));
    this.#parts.tree.replaceChildren(round.tree ? tree(round) : element("p", { class: "nothing" }, "Nothing was guessed in this round: the model wrote one token."));
    this.#parts.timeline.replaceChildren(timeline(this.#rounds, this.#at));
  }
}

const numAccepted = (round) => round.tokens.filter((token) => token.by !== "bonus").length;

/** A note that drafting does not pay, if there is a drafter and most rounds guess nothing; else empty. */
function restInWords(rounds, drafter) {
  const isResting = (round) => (round.drafted_by === "none" || !round.tree) && round.drafter_state === "ready" && !numAccepted(round);
  const num = rounds.filter(isResting).length;
  if (WITHOUT_REST.has(drafter) || rounds.length < MIN_ROUNDS || num * 2 < rounds.length) return "";
  return `Drafting pauses in ${num} of ${rounds.length} rounds: it does not pay here, as guesses would cost more time than they save.`;
}

/** A round as a sentence, also for screen readers. */
function inWords(round) {
  const drafted = round.tree ? round.tree.texts.length - 1 : 0;
  const accepted = round.tokens.filter((token) => token.by !== "bonus");
  const bonus = round.tokens.find((token) => token.by === "bonus");
  const kinds = [...new Set(accepted.map((token) => wordsOf(token.by)))].join(", ");
  const guesses = `${drafted} ${drafted === 1 ? "token" : "tokens"} guessed, ${accepted.length || "none"} kept${kinds ? ` (${kinds})` : ""}`;
  const parts = [drafted ? guesses : "Nothing guessed"];
  if (bonus) parts.push(`the model itself wrote “${visible(bonus.text)}”`);
  const times = [];
  if (drafted && Number.isFinite(round.draft_ms)) times.push(`guessing ${round.draft_ms.toFixed(1)} ms`);
  if (Number.isFinite(round.verify_ms)) times.push(`the model's pass ${round.verify_ms.toFixed(1)} ms`);
  const state = round.drafter_state && round.drafter_state !== "ready" ? ` Drafter: ${round.drafter_state}.` : "";
  return `${parts.join("; ")}. Time: ${times.join(", ")}.${state}${skipsInWords(round.skips)}`;
}

/** What the target's own drafts skip, and how the search for it goes; empty for other drafters. */
function skipsInWords(skips) {
  if (!skips) return "";
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const sets = [["attention", skips.attention], ["MLP", skips.mlp]].filter(([, layers]) => layers.length);
  const parts = [sets.map(([kind, layers]) => `${kind} of layers ${layers.join(", ")}`).join(" and ") || "nothing"];
  if (Number.isFinite(skips.hit_rate)) parts.push(`first guess right ${percent(skips.hit_rate)}`);
  if (Number.isFinite(skips.matchness)) parts.push(`matchness ${percent(skips.matchness)}`);
  if (skips.num_scored) parts.push(`search ${skips.is_searching ? "going on" : "done"}: ${skips.num_scored} sets, ${skips.search_s.toFixed(1)} s`);
  return ` Drafts skip ${parts.join("; ")}.`;
}
