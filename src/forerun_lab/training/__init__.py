"""How the built-in model pair is made: corpus, tokenizer, training and export. Not part of a wheel."""
