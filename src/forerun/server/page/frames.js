// Work for the next animation frame. Each piece of work is done once per frame, even if several tokens arrive in between; work
// that takes long pauses for as long as it took, so that the page stays usable.

const waiting = new Map();
const restUntilMs = new Map();
let asked = 0;

function run() {
  asked = 0;
  for (const [key, work] of [...waiting]) {
    const beganMs = performance.now();
    if (beganMs < restUntilMs.get(key)) continue;
    waiting.delete(key);
    work();
    const endMs = performance.now();
    restUntilMs.set(key, endMs + (endMs - beganMs));
  }
  if (waiting.size && !asked) asked = requestAnimationFrame(run);
}

/** Do `work` at the next frame; a later call with the same key takes its place. */
export function atNextFrame(key, work) {
  waiting.set(key, work);
  if (!asked) asked = requestAnimationFrame(run);
}

/** Cancel this work. */
export function notAtNextFrame(key) {
  waiting.delete(key);
}
