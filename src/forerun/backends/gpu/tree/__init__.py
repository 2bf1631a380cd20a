"""A round's bookkeeping, without the host."""
