"""The maths. Every op exists under one name in `reference` (the specification) and in a faster twin; see `dispatch`."""
