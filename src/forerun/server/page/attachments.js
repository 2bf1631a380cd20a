// Text files that go with the next message: chosen or dropped, read in the browser, sent as part of the message's text.

import { byId, element } from "./dom.js";
import { Failure } from "./failures.js";
import { say, showFailure } from "./notices.js";

const MAX_BYTES = 200_000; // of a file: some 50,000 tokens, more than most models have in mind
const MAX_FILES = 10;

export class Attachments {
  files = []; // {name, text}

  constructor() {
    const field = byId("attach-file");
    byId("attach").addEventListener("click", () => field.click());
    field.addEventListener("change", () => {
      this.#add([...field.files]);
      field.value = "";
    });
    const chat = byId("chat");
    chat.addEventListener("dragover", (event) => event.preventDefault());
    chat.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#add([...event.dataTransfer.files]);
    });
  }

  /** The files, which are then no longer here. */
  take() {
    const { files } = this;
    this.files = [];
    this.#show();
    return files;
  }

  async #add(chosen) {
    for (const file of chosen) {
      const problem = await this.#read(file);
      if (problem) showFailure(new Failure(`${file.name}: ${problem}`));
      else say(`${file.name} goes with the next message.`);
    }
    this.#show();
    byId("question").focus();
  }

  // What is wrong with a file; empty where it was taken.
  async #read(file) {
    if (this.files.length >= MAX_FILES) return `a message takes ${MAX_FILES} files at most. Send these first.`;
    if (file.size > MAX_BYTES)
      return `this file has ${Math.ceil(file.size / 1000).toLocaleString("en")} kB, and at most ${MAX_BYTES / 1000} kB can go with a message. Attach the part that matters.`;
    const text = await file.arrayBuffer().then((bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)).catch(() => null);
    if (text === null || text.includes("\0")) return "this is no text in UTF-8, and the model reads text only. Attach a text file.";
    this.files.push({ name: file.name, text });
    return "";
  }

  #show() {
    byId("attached").hidden = !this.files.length;
    byId("attached").replaceChildren(...this.files.map((file) => element("li", {}, file.name,
      element("button", { type: "button", class: "icon small", "aria-label": `Leave out ${file.name}`, onclick: () => this.#leaveOut(file) }, "✕"))));
  }

  #leaveOut(file) {
    this.files = this.files.filter((each) => each !== file);
    this.#show();
    byId("question").focus();
  }
}
