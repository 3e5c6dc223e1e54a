"""What all tables that people type have in common."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A TOML table: strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
