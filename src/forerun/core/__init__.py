"""Plain Python types that every other folder may use. Nothing here imports torch."""
