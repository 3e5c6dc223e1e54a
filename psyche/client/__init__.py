"""The participant. `engine` decides what to do, without touching anything; `runtime` does it, under trio."""
