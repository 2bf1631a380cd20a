// All conversations of this browser: what is stored, what the list shows, which one is open.

import { newConversation, newId } from "./conversation.js";
import { Failure } from "./failures.js";
import { say, showFailure } from "./notices.js";
import { Sidebar } from "./sidebar.js";

export class Library {
  #conversations = [];

  /** @param {object} parts store, chat; onopen() after another conversation was opened */
  constructor(parts) {
    Object.assign(this, parts);
    this.sidebar = new Sidebar({
      open: (id) => this.open(id), rename: (id, title) => this.#rename(id, title), remove: (id) => this.#remove(id),
      add: (found) => this.#add(found), say, fail: (words) => showFailure(new Failure(words)),
    });
  }

  async load() {
    this.#conversations = await this.store.all().catch(() => []);
    window.addEventListener("popstate", () => this.#openAddressed());
    this.#openAddressed();
  }

  // The conversation that the address names, as after a reload, by a link, or on the way back.
  #openAddressed() {
    const id = /^#\/c\/(.+)$/.exec(location.hash)?.[1] ?? "";
    if (id && !this.#conversations.some((each) => each.id === id))
      showFailure(new Failure("This browser has no conversation with this address: each browser stores its own. In the other browser, “Export” writes it to a file, which “Import” reads here."));
    this.#open(id);
    this.onopen();
  }

  #open(id) {
    const found = this.#conversations.find((each) => each.id === id);
    if (found !== this.chat.conversation && (found || this.chat.conversation.chosen)) this.chat.open(found ?? newConversation());
  }

  // The address of the open conversation; the browser's Back button leads to the one before.
  #address() {
    const { id, chosen } = this.chat.conversation;
    const hash = chosen ? `#/c/${id}` : "";
    if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
  }

  /** Show the list; a conversation is in it from its first message on. */
  show() {
    const { conversation } = this.chat;
    if (conversation.chosen && !this.#conversations.includes(conversation)) {
      this.#conversations.push(conversation);
      this.#address();
    }
    this.sidebar.update(this.#conversations, conversation.id);
  }

  /** Open a conversation, or a new one if there is none with this `id`. */
  open(id) {
    this.#open(id);
    this.#address();
    this.onopen();
  }

  /** Store a conversation as it is now. @returns {Promise<boolean>} false if it was deleted meanwhile */
  async keep(conversation) {
    if (!this.#conversations.includes(conversation)) return false;
    try {
      await this.store.put(conversation);
    } catch {
      showFailure(new Failure("The browser could not store this conversation. Export it, and delete some that you no longer need."));
    }
    this.sidebar.update(this.#conversations, this.chat.conversation.id);
    return true;
  }

  #rename(id, title) {
    const conversation = this.#conversations.find((each) => each.id === id);
    Object.assign(conversation, { title, isNamed: true });
    this.keep(conversation);
  }

  async #remove(id) {
    this.#conversations = this.#conversations.filter((each) => each.id !== id);
    if (this.chat.conversation.id === id) this.chat.open(newConversation());
    this.#address();
    this.show();
    say("Deleted.");
    await this.store.remove(id).catch(() => {}); // what cannot be deleted is shown again at the next visit
  }

  async #add(found) {
    for (const conversation of found) {
      conversation.id = newId(); // an import adds, and never overwrites what is here
      this.#conversations.push(conversation);
      await this.keep(conversation);
    }
  }
}
