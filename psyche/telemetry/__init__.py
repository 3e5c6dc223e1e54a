"""Event log, metrics and logging."""
