"""Chains on this machine, for tests."""
