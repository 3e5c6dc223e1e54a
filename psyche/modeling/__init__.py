"""Models, checkpoints, DisTrO and the trainer with its process."""
