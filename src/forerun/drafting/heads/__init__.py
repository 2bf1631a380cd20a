"""Draft heads, which read the target's features: EAGLE-3 a step at a time, DFlash a block at a time."""
