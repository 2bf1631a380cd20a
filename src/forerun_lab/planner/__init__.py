"""Find the best split of units and the best tree for a pair of models from given times. Nothing is measured here."""
