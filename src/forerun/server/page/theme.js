// Light or dark: as the system has it, until the reader switches.

import { byId } from "./dom.js";

const ORDER = ["", "light", "dark"];
const NAMES = { "": "as the system has it", light: "light", dark: "dark" };

export function nextTheme(theme) {
  return ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
}

export function applyTheme(theme) {
  const known = ORDER.includes(theme) ? theme : "";
  if (known) document.documentElement.dataset.theme = known;
  else delete document.documentElement.dataset.theme;
  byId("switch-theme").setAttribute("aria-label", `Theme: ${NAMES[known]}`);
  byId("switch-theme").title = `Theme: ${NAMES[known]}`;
  byId("switch-theme").textContent = { "": "◐", light: "☀", dark: "☾" }[known] + "\uFE0E"; // shows the sign as text; a phone would otherwise show an emoji
}
