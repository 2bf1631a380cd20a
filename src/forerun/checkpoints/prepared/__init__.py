"""Models whose weights were divided among ranks and packed in advance."""
