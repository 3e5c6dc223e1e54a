"""The participants of a simulated run, as a TOML file of classes of similar machines.

[[class]]
name = "gaming PC"
share = 0.6
tokens_per_s = 3000
up_mbit_s = 40
down_mbit_s = 250
latency_ms = 25

A table [chain] describes the chain that keeps the run, if one does.
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
Percent = Annotated[float, Field(ge=0, lt=100)]
MAX_ENDPOINTS: Final = 16
MAX_LAMPORTS: Final = 10**12
MOST_LAG_SLOTS: Final = 100  # a transaction expires after 150 blocks
Lamports = Annotated[int, Field(ge=0, le=MAX_LAMPORTS)]


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
    loss_percent: Percent = key("share of packets that are lost", default=0.0, unit="percent")
    spread_percent: Percent = key("largest change of training times, to both sides", default=5.0, unit="percent")
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


class ChainTable(Table):
    """`[chain]`: the chain that keeps the run; without effect with a server."""

    slot_ms: Annotated[float, Field(ge=10, le=60_000)] = key(
        "length of a slot", default=400.0, unit="milliseconds", example=400.0
    )
    skipped_percent: Percent = key("share of slots without a block", default=5.0, unit="percent")
    lag_min_s: NotNegative = key("least time until an endpoint shows a block as confirmed", default=0.4, unit="seconds")
    lag_max_s: NotNegative = key(
        "greatest time until an endpoint shows it; each client's lies between the two", default=3.0, unit="seconds",
        example=3.0,
    )  # fmt: skip
    answer_ms: NotNegative = key("time that an endpoint takes to answer", default=100.0, unit="milliseconds")
    clock_lag_s: Annotated[float, Field(ge=0, le=600)] = key(
        "how far the chain's clock is behind, at most", default=2.0, unit="seconds"
    )
    lost_percent: Percent = key("share of transactions that reach no leader", default=5.0, unit="percent", example=5.0)
    late_percent: Percent = key("share of transactions that land up to 30 s later", default=0.0, unit="percent")
    endpoints: Annotated[int, Field(ge=1, le=MAX_ENDPOINTS)] = key(
        "RPC endpoints that each client knows", default=2, unit="endpoints"
    )
    lamports_per_signature: Lamports = key("fee of a signature", default=5_000, unit="lamports")
    priority_lamports: Lamports = key("priority fee of a transaction", default=0, unit="lamports", example=1_000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lag_min_s > self.lag_max_s:
            raise PydanticCustomError("lags", "lag_min_s must be at most lag_max_s")
        if 1_000 * self.lag_max_s > MOST_LAG_SLOTS * self.slot_ms:
            raise PydanticCustomError(
                "late",
                "lag_max_s must be at most {slots} slots, or transactions expire before they land",
                {"slots": MOST_LAG_SLOTS},
            )
        return self


class ProfileFile(Table):
    """A profile.toml."""

    classes: Annotated[list[ClassTable], Field(min_length=1)] = key("the classes", alias="class", allowed="at least 1")
    chain: ChainTable = key("the chain that keeps the run", default=ChainTable())


def load_profile(path: Path) -> ProfileFile:
    """Read a profile; its classes are in the order of the file."""
    profile = read_table(path, ProfileFile)
    names = [one.name for one in profile.classes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigProblems([Problem(path, None, "class", f"two classes are called {name!r}") for name in twice])
    return profile


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
