"""Which split, which tree, what speed: numbers in, a plan out. Nothing is measured here."""
