"""Clients that harm a run, started as honest ones are."""
