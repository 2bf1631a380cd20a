"""The decisions of speculative decoding, from papers; this code runs no model and does no I/O."""
