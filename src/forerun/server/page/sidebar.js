// The list of conversations: search, rename, delete, export, import.

import { checked, contains } from "./conversation.js";
import { byId, element } from "./dom.js";

const MAX_FILE_BYTES = 50_000_000; // a larger file would take its size in memory several times while it is read

export class Sidebar {
  /** @param {object} actions open(id), rename(id, title), remove(id), add(conversations), say(words), fail(words) */
  constructor(actions) {
    this.actions = actions;
    this.conversations = [];
    this.openId = null;
    byId("search").addEventListener("input", () => this.show());
    byId("export-all").addEventListener("click", () => this.#save());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.#load(event.target));
  }

  /** Show these conversations, the newest first. */
  update(conversations, openId) {
    this.conversations = conversations;
    this.openId = openId;
    this.show();
  }

  show() {
    const words = byId("search").value;
    const shown = this.conversations.filter((each) => contains(each, words)).sort((a, b) => b.changedMs - a.changedMs);
    const rows = shown.map((each) => this.#row(each));
    if (!rows.length) rows.push(element("li", { class: "nothing" }, words ? "Nothing found." : "No conversations yet."));
    byId("conversations").replaceChildren(...rows);
  }

  #row(conversation) {
    const isOpen = conversation.id === this.openId;
    const open = element("button", {
      type: "button", class: "title", "aria-current": isOpen ? "true" : null, onclick: () => this.actions.open(conversation.id),
    }, conversation.title);
    const rename = element("button", {
      type: "button", class: "icon small", "aria-label": `Rename ${conversation.title}`, title: "Rename", onclick: () => this.#rename(row, conversation),
    }, "✎\uFE0E");
    const remove = element("button", {
      type: "button", class: "icon small", "aria-label": `Delete ${conversation.title}`, title: "Delete", onclick: () => this.#confirm(row, conversation),
    }, "✕");
    const row = element("li", { class: isOpen ? "open" : null }, open, rename, remove);
    return row;
  }

  #rename(row, conversation) {
    const field = element("input", { type: "text", "aria-label": "New title", maxlength: 200 });
    field.value = conversation.title;
    let isEnded = false;
    const end = (isTaken) => {
      if (isEnded) return;
      isEnded = true;
      if (isTaken && field.value.trim()) this.actions.rename(conversation.id, field.value.trim());
      else this.show();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
      event.stopPropagation();
    });
    field.addEventListener("blur", () => end(true));
    row.replaceChildren(field);
    field.select();
  }

  #confirm(row, conversation) {
    const yes = element("button", { type: "button", class: "danger", onclick: () => this.actions.remove(conversation.id) }, "Delete");
    const no = element("button", { type: "button", onclick: () => this.show() }, "Keep");
    row.replaceChildren(element("span", { class: "title" }, "Delete it?"), yes, no);
    yes.focus();
  }

  #save() {
    const text = JSON.stringify({ format: "forerun conversations", version: 1, conversations: this.conversations }, null, 1);
    const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const day = new Date().toISOString().slice(0, 10);
    element("a", { href: address, download: `forerun-conversations-${day}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000); // by then the browser has started the download
  }

  async #load(field) {
    const file = field.files[0];
    field.value = "";
    if (!file) return;
    if (file.size > MAX_FILE_BYTES) return this.actions.fail("This file is larger than 50 MB. Export fewer conversations into it.");
    const value = await file.text().then(JSON.parse).catch(() => null);
    const found = (Array.isArray(value?.conversations) ? value.conversations : []).map(checked).filter(Boolean);
    if (!found.length) return this.actions.fail("This file holds no conversations. Choose one that “Export” has written.");
    this.actions.add(found);
    this.actions.say(`${found.length} ${found.length === 1 ? "conversation" : "conversations"} imported.`);
  }
}
