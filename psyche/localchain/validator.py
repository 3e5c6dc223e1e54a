"""The two chains that can run on this machine. Apart from the rest, which imports much."""

from enum import StrEnum


class Validator(StrEnum):
    """Which chain runs: the one that comes with psyche, or one of Solana's own tools."""

    embedded = "embedded"
    real = "real"
