"""Drafts a run's files from a few answers: `psyche init`."""
