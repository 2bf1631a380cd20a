"""This process: torch's modes, its threads, its cores."""
