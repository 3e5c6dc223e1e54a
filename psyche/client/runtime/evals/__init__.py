"""Evals in idle time: what is asked, and a member's part of it."""
