"""Draft heads as they are published: folders of EAGLE, SpecForge, AngelSlim, ModelOpt, speculators, z-lab and Google,
and GGUF files of llama.cpp."""
