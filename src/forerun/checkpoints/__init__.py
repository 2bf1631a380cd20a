"""Models as they are stored: any kind of them opens as a CheckpointSource."""
