"""Models, checkpoints, the DisTrO optimizer, and the trainer with its process."""
