"""The participants of a simulated run, as a TOML file of classes of similar machines.

[[class]]
name = "gaming PC"
share = 0.6
tokens_per_s = 3000
up_mbit_s = 40
down_mbit_s = 250
latency_ms = 25
"""

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from psyche.config.load import read_table
from psyche.config.problems import ConfigProblems, Problem
from psyche.config.table import Table, key
from psyche.core.state.limits import MAX_CLIENTS

NAME_CHARACTERS: Final = 40
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class ClassTable(Table):
    """`[[class]]`: a class of similar machines."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS)] = key(
        "what it is called", allowed=f"1 to {NAME_CHARACTERS} characters", example="gaming PC"
    )
    count: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = key(
        "how many there are; or share", default=None, unit="machines"
    )
    share: Annotated[float, Field(gt=0, le=1)] | None = key(
        "share of the machines left over by counts; or count", default=None, example=1.0
    )
    tokens_per_s: Positive = key("tokens that one machine trains in a second", unit="tokens/s", example=3_000.0)
    up_mbit_s: Positive = key("line to all others together", unit="Mbit/s", example=40.0)
    down_mbit_s: Positive = key("line from all others together", unit="Mbit/s", example=250.0)
    latency_ms: NotNegative = key(
        "time to a well-connected place and back; two machines see the sum", default=20.0, unit="milliseconds"
    )
    jitter_ms: NotNegative = key("largest change of the latency", default=0.0, unit="milliseconds")
    loss_percent: Annotated[float, Field(ge=0, lt=100)] = key(
        "share of packets that are lost", default=0.0, unit="percent"
    )
    spread_percent: Annotated[float, Field(ge=0, lt=100)] = key(
        "largest change of training times, to both sides", default=5.0, unit="percent"
    )
    step_s: NotNegative = key("time of a round for optimizer and compression", default=0.0, unit="seconds")
    apply_s: NotNegative = key("time to apply a round's results", default=0.2, unit="seconds")
    load_s: NotNegative = key("time to load the model", default=10.0, unit="seconds")
    fails_every_h: Positive | None = key("mean time to a failure; left out: never", default=None, unit="hours")
    back_after_min: Positive | None = key(
        "time until it is back after a failure; left out: it stays away", default=None, unit="minutes"
    )
    joins_after_min: NotNegative = key("time after the start of the run; 0: at once", default=0.0, unit="minutes")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.count is None) == (self.share is None):
            raise PydanticCustomError("count_or_share", "needs one of count and share, not both")
        if self.back_after_min is not None and self.fails_every_h is None:
            raise PydanticCustomError("back_without_failure", "back_after_min has no effect without fails_every_h")
        return self


class ProfileFile(Table):
    """A profile.toml."""

    classes: Annotated[list[ClassTable], Field(min_length=1)] = key("the classes", alias="class", allowed="at least 1")


def load_profile(path: Path) -> list[ClassTable]:
    """The classes of a profile, in the order of the file.

    Raises:
        ConfigProblems: the file has problems; each has file, line, key, rule and remedy.
    """
    classes = read_table(path, ProfileFile).classes
    names = [one.name for one in classes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigProblems([Problem(path, None, "class", f"two classes are called {name!r}") for name in twice])
    return classes


def get_counts(classes: list[ClassTable], clients: int, path: Path) -> list[int]:
    """The number of machines of each class for `clients` in total: fixed counts, then shares of the rest.

    Raises:
        ConfigProblems: the counts exceed `clients`, or fall short of it and no class has a share.
    """
    fixed = sum(one.count or 0 for one in classes)
    # Exact, as typed: a tie between classes goes to the first, on every version of Python.
    shares = [Fraction(repr(one.share or 0.0)) for one in classes]
    left = clients - fixed
    if left < 0 or (left > 0 and not any(shares)):
        what = f"the counts add up to {fixed}, but there are {clients} clients"
        raise ConfigProblems([Problem(path, None, "class", what, f"--clients {fixed}, or a class with a share")])
    exact = [left * share / sum(shares) if share else Fraction(0) for share in shares]
    counts = [int(number) for number in exact]
    by_rest = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_rest[: left - sum(counts)]:
        counts[place] += 1
    return [one.count or count for one, count in zip(classes, counts, strict=True)]
