// Puts the parts of the page together.

import { Chat } from "./chat.js";
import { newConversation, newId } from "./conversation.js";
import { byId, element } from "./dom.js";
import { Failure, failureOf } from "./failures.js";
import { Inspector } from "./inspector.js";
import { fillLegend } from "./legend.js";
import { showState } from "./meters.js";
import { clearFailures, say, showFailure } from "./notices.js";
import { Race } from "./race.js";
import { Scroll } from "./scroll.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { openStore } from "./store.js";
import { applyTheme, nextTheme } from "./theme.js";
import { killDrafter, readServer } from "./wire.js";

const RETRY_MS = 2000;
const settings = new Settings();
const server = {
  model: "", drafter: null, drafters: [],
  /** What a request says for the drafter that was selected: null is the engine's own. */
  chosen: (name) => (name && name !== server.drafter ? name : null),
};
const store = await openStore();
const inspector = new Inspector();
const scroll = new Scroll();
const chat = new Chat({ settings, server, store, inspector, scroll, onchange: showChat, keep });
const race = new Race({ settings, server });
const sidebar = new Sidebar({
  open: (id) => openConversation(id), rename: renameConversation, remove: removeConversation, add: addConversations,
  say, fail: (words) => showFailure(new Failure(words)),
});
let conversations = await store.all().catch(() => []);

function showChat() {
  const send = byId("send");
  send.textContent = chat.isBusy ? "Stop" : "Send";
  send.classList.toggle("stop", chat.isBusy);
  if (Object.keys(chat.conversation.messages).length && !conversations.includes(chat.conversation)) conversations.push(chat.conversation);
  sidebar.update(conversations, chat.conversation.id);
}

async function keep(conversation) {
  if (!conversations.includes(conversation)) return; // it was deleted meanwhile
  try {
    await store.put(conversation);
  } catch {
    showFailure(new Failure("The browser could not store this conversation. Export it, and delete some that you no longer need."));
  }
  sidebar.update(conversations, chat.conversation.id);
}

function openConversation(id) {
  chat.open(conversations.find((each) => each.id === id) ?? newConversation());
  setSidebar(false);
  showChat();
  byId("question").focus();
}

function renameConversation(id, title) {
  const conversation = conversations.find((each) => each.id === id);
  Object.assign(conversation, { title, isNamed: true });
  keep(conversation);
}

async function removeConversation(id) {
  conversations = conversations.filter((each) => each.id !== id);
  if (chat.conversation.id === id) chat.open(newConversation());
  await store.remove(id).catch(() => {});
  showChat();
  say("Deleted.");
}

async function addConversations(found) {
  for (const conversation of found) {
    conversation.id = newId(); // an import adds, and never overwrites what is here
    conversations.push(conversation);
    await keep(conversation);
  }
}

async function meetServer() {
  try {
    Object.assign(server, await readServer(settings.key));
  } catch (error) {
    const failure = failureOf(error);
    showFailure(failure, { key: () => settings.open("key"), again: meetServer });
    if (failure.remedy === "again") setTimeout(meetServer, RETRY_MS); // it may still load its model
    return;
  }
  clearFailures();
  settings.defaults = { ...server.sampling, max_tokens: server.sampling?.max_new_tokens ?? server.sampling?.max_tokens };
  byId("model").textContent = server.model;
  byId("model").title = `${server.model}, forerun ${server.version}`;
  document.title = `${server.model} · forerun`;
  const names = server.drafters.includes(server.drafter) ? server.drafters : [server.drafter, ...server.drafters];
  byId("drafter").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  byId("drafter").value = names.includes(settings.values.drafter) ? settings.values.drafter : server.drafter;
  byId("kill-drafter").hidden = !server.drafter_process;
}

async function kill() {
  try {
    await killDrafter(settings.key);
    showState("down");
    say("The drafter's process was ended. The text goes on.");
  } catch (error) {
    showFailure(failureOf(error), { key: () => settings.open("key") });
  }
}

function setSidebar(isOpen) {
  document.body.classList.toggle("sidebar-open", isOpen);
  byId("shade").hidden = !isOpen;
  byId("open-sidebar").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) byId("search").focus();
}

function send() {
  const question = byId("question");
  if (chat.isBusy) return chat.stop();
  const text = question.value;
  if (!text.trim()) return question.focus();
  question.value = "";
  grow();
  chat.ask(text);
  return undefined;
}

function grow() {
  const question = byId("question");
  question.style.height = "auto";
  question.style.height = `${Math.min(question.scrollHeight + 2, 240)}px`;
}

function setRace(isOpen) {
  byId("race").hidden = !isOpen;
  byId("chat").hidden = isOpen;
  byId("open-race").setAttribute("aria-expanded", String(isOpen));
  byId("open-race").textContent = isOpen ? "Chat" : "Race";
  if (isOpen) race.show();
  else byId("question").focus();
}

function onKey(event) {
  if (event.key === "Escape" && !byId("settings").open) {
    if (document.body.classList.contains("sidebar-open")) setSidebar(false);
    else if (race.isBusy) race.stop();
    else chat.stop();
  }
  if (!(event.ctrlKey || event.metaKey)) return;
  if (event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    openConversation("");
  } else if (event.key.toLowerCase() === "k") {
    event.preventDefault();
    setSidebar(true);
  }
}

function listen() {
  const on = (id, work) => byId(id).addEventListener("click", work);
  on("send", send);
  on("new-conversation", () => openConversation(""));
  on("open-sidebar", () => setSidebar(!document.body.classList.contains("sidebar-open")));
  on("close-sidebar", () => setSidebar(false));
  on("shade", () => setSidebar(false));
  on("open-settings", () => settings.open());
  on("switch-theme", () => settings.set("theme", nextTheme(settings.values.theme)));
  on("open-inspector", () => inspector.toggle());
  on("open-race", () => setRace(byId("race").hidden));
  on("kill-drafter", kill);
  byId("question").addEventListener("input", grow);
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!chat.isBusy) send();
  });
  byId("drafter").addEventListener("change", (event) => settings.set("drafter", event.target.value));
  byId("show-marks").addEventListener("change", (event) => settings.set("marks", event.target.checked ? "on" : "off"));
  document.addEventListener("keydown", onKey);
}

function onSetting(name) {
  if (name === "theme") applyTheme(settings.values.theme);
  if (name === "marks") applyMarks();
  if (name === "key") meetServer();
}

function applyMarks() {
  const isOn = settings.values.marks === "on";
  byId("show-marks").checked = isOn;
  byId("legend").hidden = !isOn;
  chat.show();
}

applyTheme(settings.values.theme);
fillLegend(byId("legend"));
settings.onchange = onSetting;
listen();
applyMarks();
showChat();
if (!store.isKept) showFailure(new Failure("This browser keeps nothing for this page: conversations last until you leave it. Export what you want to keep."));
await meetServer();
byId("question").focus();
