"""What was answered: records on disk and in memory, and every number that follows from them."""
