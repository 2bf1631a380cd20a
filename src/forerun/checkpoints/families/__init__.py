"""Model families: one file each, with what sets a family apart."""
