"""What models run on: one folder for each machine, and the one place that chooses."""
