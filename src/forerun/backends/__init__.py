"""The backends that run models: one folder each, and `choose`, which selects one."""
