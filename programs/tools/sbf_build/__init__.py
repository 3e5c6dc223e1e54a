"""Builds the programs, and compares them with the ones that are checked in."""
