"""Makes a draft for a target that has none: texts of the target, and a small model that learns from them."""
