"""The base class of all configuration tables."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A TOML table with strict types; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
