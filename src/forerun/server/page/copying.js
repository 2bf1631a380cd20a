// Text to the clipboard, and a word on the button that did it.

import { say } from "./notices.js";

const SHOWN_MS = 1500; // long enough to be read

export async function copy(button, text) {
  const words = button.dataset.words ?? button.textContent;
  button.dataset.words = words; // a second press must not take “Copied” for the button's own words
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    say("Copied.");
  } catch {
    button.textContent = "Not allowed"; // browsers allow it to pages of this machine and over https
  }
  setTimeout(() => (button.textContent = words), SHOWN_MS);
}

/** Let the buttons above blocks of code within `container` copy their code. */
export function copiesCode(container) {
  container.addEventListener("click", ({ target }) => {
    if (target.dataset.copy) copy(target, target.closest(".code").querySelector("code").textContent);
  });
}
