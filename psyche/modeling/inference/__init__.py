"""What a loaded model says, without training it."""
