// Puts the parts of the page together.

import { Attachments } from "./attachments.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { Failure } from "./failures.js";
import { Inspector } from "./inspector.js";
import { fillLegend } from "./legend.js";
import { Library } from "./library.js";
import { showFailure } from "./notices.js";
import { Race } from "./race.js";
import { Scroll } from "./scroll.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";
import { openStore } from "./store.js";
import { applyTheme, nextTheme } from "./theme.js";

const NARROW = "(max-width: 1100px)"; // as in frame.css
const settings = new Settings();
const server = new Server(settings);
const store = await openStore();
const inspector = new Inspector();
const race = new Race({ settings, server, inspector });
const chat = new Chat({ settings, server, store, inspector, scroll: new Scroll(), onchange: showChat, keep: (conversation) => library.keep(conversation) });
const attachments = new Attachments();
const library = new Library({ store, chat, onopen: showOpened });

function showChat() {
  const send = byId("send");
  send.textContent = chat.isBusy ? "Stop" : "Send";
  send.classList.toggle("stop", chat.isBusy);
  library.show();
}

function showOpened() {
  setRace(false);
  setSidebar(false);
  showChat();
  byId("question").focus();
}

function setSidebar(isOpen) {
  const wasOpen = document.body.classList.contains("sidebar-open");
  const isDrawer = isOpen && matchMedia(NARROW).matches; // otherwise it is always shown
  document.body.classList.toggle("sidebar-open", isDrawer);
  byId("shade").hidden = !isDrawer;
  byId("middle").inert = isDrawer;
  byId("open-sidebar").setAttribute("aria-expanded", String(isDrawer));
  if (isOpen) byId("search").focus();
  else if (wasOpen) byId("open-sidebar").focus();
}

function setRace(isOpen) {
  byId("race").hidden = !isOpen;
  byId("chat").hidden = isOpen;
  byId("open-race").setAttribute("aria-expanded", String(isOpen));
  byId("open-race").textContent = isOpen ? "Chat" : "Race";
  if (isOpen) race.show();
}

function send() {
  const question = byId("question");
  if (chat.isBusy) return chat.stop();
  const text = question.value;
  if (!text.trim() && !attachments.files.length) return question.focus();
  question.value = "";
  fitQuestion();
  chat.ask(text, attachments.take());
  return undefined;
}

function fitQuestion() {
  const question = byId("question");
  question.style.height = "auto";
  question.style.height = `${Math.min(question.scrollHeight + 2, 240)}px`; // about nine lines, then it scrolls
}

function onEscape() {
  if (document.body.classList.contains("sidebar-open")) setSidebar(false);
  else if (race.isBusy) race.stop();
  else if (chat.isBusy) chat.stop();
  else if (inspector.isOpen) inspector.toggle();
}

function onKey(event) {
  const isCommand = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (key === "escape" && !byId("settings").open) onEscape();
  else if (isCommand && event.shiftKey && key === "o") library.open("");
  else if (isCommand && key === "k") setSidebar(true);
  else return;
  event.preventDefault();
}

function listen() {
  const on = (id, work) => byId(id).addEventListener("click", work);
  on("send", send);
  on("new-conversation", () => library.open(""));
  on("open-sidebar", () => setSidebar(!document.body.classList.contains("sidebar-open")));
  on("close-sidebar", () => setSidebar(false));
  on("shade", () => setSidebar(false));
  on("open-settings", () => settings.open());
  on("switch-theme", () => settings.set("theme", nextTheme(settings.values.theme)));
  on("open-inspector", () => (inspector.isOpen ? inspector.toggle() : chat.inspectNewest()));
  on("open-race", () => setRace(byId("race").hidden));
  byId("question").addEventListener("input", fitQuestion);
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
  if (name === "key") server.meet();
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
server.onmeet = () => {
  chat.showContext();
  chat.showGain();
};
await library.load();
showChat();
if (!store.isKept) showFailure(new Failure("This browser stores no data for this page: conversations are lost when you leave it. Export those that you want to keep."));
server.meet();
byId("question").focus();
