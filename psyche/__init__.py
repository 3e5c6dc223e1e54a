"""Psyche: train one language model together over the open internet."""

__version__ = "0.1.0"
