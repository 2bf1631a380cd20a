"""Models by short name: a table of them, what of it is on this machine, and how the rest gets here."""
