"""The participant: round engine, phases and the trio shell around them."""
