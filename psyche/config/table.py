"""The base class of all configuration tables, and the declaration of a key."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

LARGE: Final = 1 << 32  # from here on, limits are written as powers of two


class Table(BaseModel):
    """A TOML table with strict types; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def key(meaning: str, *, unit: str = "", allowed: str = "", example: object = None, **options: Any) -> Any:
    """Declare a key of a table, with everything that people are told about it.

    Args:
        meaning: what the key sets, without unit and range.
        unit: what its number counts, as in "seconds"; empty if it counts nothing.
        allowed: the permitted values in words, if the core permits fewer than the key's type.
        example: a value for examples; None takes the default.
        options: those of pydantic's `Field`, such as default and alias.
    """
    examples = None if example is None else [example]
    return Field(
        description=meaning, examples=examples, json_schema_extra={"unit": unit, "allowed": allowed}, **options
    )


def format_limit(number: float) -> str:
    """Write a limit as people read it: `65,535`, `2^32 - 1`."""
    if isinstance(number, int) and number + 1 >= LARGE and number & (number + 1) == 0:
        return f"2^{number.bit_length()} - 1"
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def format_range(least: int, most: int) -> str:
    """Write a range, both ends included, as people read it."""
    return f"{format_limit(least)} to {format_limit(most)}"
