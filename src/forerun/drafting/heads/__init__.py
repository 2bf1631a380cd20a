"""Draft heads, which read the target's features: EAGLE-3 and Gemma 4's assistants a step at a time, DFlash a block at a
time."""
