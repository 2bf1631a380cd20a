"""Models by short name: the catalogue, a search for local copies, and downloads."""
