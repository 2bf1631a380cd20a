// Work for the next animation frame. However many tokens arrive in between, each piece of work is done once a frame.

const waiting = new Map();
let asked = 0;

function run() {
  asked = 0;
  const all = [...waiting.values()];
  waiting.clear();
  for (const work of all) work();
}

/** Do `work` at the next frame; a later call with the same key takes its place. */
export function atNextFrame(key, work) {
  waiting.set(key, work);
  if (!asked) asked = requestAnimationFrame(run);
}

/** Forget work that has become pointless. */
export function notAtNextFrame(key) {
  waiting.delete(key);
}
