"""Model families: one file each, with the family's differences from Llama."""
