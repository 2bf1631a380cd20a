"""Draft heads as they are published: folders of EAGLE, SpecForge, AngelSlim, ModelOpt, speculators and z-lab, and GGUF
files of llama.cpp."""
