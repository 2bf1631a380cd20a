// Conversations in the browser's IndexedDB; only in memory, with a message, if a browser refuses that.

const NAME = "forerun";
const VERSION = 1;

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function opened() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("conversations", { keyPath: "id" });
    request.result.createObjectStore("rounds", { keyPath: "messageId" }).createIndex("conversation", "conversationId");
  };
  return done(request);
}

class Stored {
  constructor(database) {
    this.database = database;
    this.isKept = true;
  }

  #in(store, mode = "readonly") {
    return this.database.transaction(store, mode).objectStore(store);
  }

  all() {
    return done(this.#in("conversations").getAll());
  }

  put(conversation) {
    return done(this.#in("conversations", "readwrite").put(conversation));
  }

  async remove(id) {
    await done(this.#in("conversations", "readwrite").delete(id));
    const rounds = this.#in("rounds", "readwrite");
    const keys = await done(rounds.index("conversation").getAllKeys(id));
    await Promise.all(keys.map((key) => done(this.#in("rounds", "readwrite").delete(key))));
  }

  putRounds(conversationId, messageId, rounds) {
    return done(this.#in("rounds", "readwrite").put({ conversationId, messageId, rounds }));
  }

  async rounds(messageId) {
    return (await done(this.#in("rounds").get(messageId)))?.rounds ?? [];
  }
}

class Remembered {
  isKept = false;
  #conversations = new Map();
  #rounds = new Map();

  async all() {
    return [...this.#conversations.values()];
  }

  async put(conversation) {
    this.#conversations.set(conversation.id, structuredClone(conversation));
  }

  async remove(id) {
    this.#conversations.delete(id);
  }

  async putRounds(_conversationId, messageId, rounds) {
    this.#rounds.set(messageId, rounds);
  }

  async rounds(messageId) {
    return this.#rounds.get(messageId) ?? [];
  }
}

/** The storage of conversations; `isKept` is true if they are kept after the page is closed. */
export async function openStore() {
  try {
    return new Stored(await opened());
  } catch {
    return new Remembered();
  }
}
