"""`psyche run`: what the owner of a run sees and does. Each module adds its commands to `group.group`."""
