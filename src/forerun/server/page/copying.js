// Text to the clipboard, and a word on the button that did it.

import { say } from "./notices.js";

const SHOWN_MS = 1500; // long enough to be read

export async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    answer(button, "Copied");
    say("Copied.");
  } catch {
    answer(button, "Not allowed"); // browsers allow it to pages of this machine and over https
  }
}

/** Show a word on a button for a moment. */
export function answer(button, word) {
  const words = button.dataset.words ?? button.textContent;
  button.dataset.words = words; // a second press must not take the word for the button's own
  button.textContent = word;
  setTimeout(() => (button.textContent = words), SHOWN_MS);
}

/** Let the buttons above blocks of code within `container` copy their code. */
export function copiesCode(container) {
  container.addEventListener("click", ({ target }) => {
    if (target.dataset.copy) copy(target, target.closest(".code").querySelector("code").textContent);
  });
}
