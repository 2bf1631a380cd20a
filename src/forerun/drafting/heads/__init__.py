"""Draft heads, which read the target's features. `known` lists the kinds; a kind's own file has no torch, and names the
module of its network. EAGLE-3, Gemma 4's assistants and Qwen3.5's own heads draft a step at a time, DFlash several
tokens in one pass."""
