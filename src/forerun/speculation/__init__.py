"""The papers' ideas: decisions only, no model, no I/O."""
