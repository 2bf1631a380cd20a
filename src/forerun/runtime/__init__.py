"""Settings of this process: torch's modes, threads and cores."""
