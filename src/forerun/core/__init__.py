"""The nouns: plain Python values every other folder may use. No torch here."""
