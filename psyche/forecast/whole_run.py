"""The whole run of which a forecast plays a few rounds: how long it takes, and what each member sends and receives."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from psyche.analysis.summary import format_percent
from psyche.telemetry.text import format_bytes, format_count, format_number, format_seconds

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    steps: int  # of the run
    epochs: int
    round_s: float  # of a round with data
    around_s: float  # of an epoch outside of these: waiting for members, Warmup, drains, Cooldown
    train_s: float  # that a member trains in a round
    tokens: float  # of a round, applied
    sent_bytes: float  # of payloads, by a member in a round; as many are received
    send_s: float  # time that a member has to send them without anybody waiting for it

    @property
    def seconds(self) -> float:
        return self.steps * self.round_s + self.epochs * self.around_s

    @property
    def training_share(self) -> float:
        return self.steps * self.train_s / self.seconds

    @property
    def upload_mbit_s(self) -> float:
        return 8e-6 * self.sent_bytes / self.send_s


def format_whole_run(run: WholeRun, basis: str) -> list[str]:
    in_all = run.sent_bytes * run.steps
    daily = f"{format_bytes(in_all * DAY_S / run.seconds)} a day, " if run.seconds > DAY_S else ""
    return [
        f"the whole run, {run.steps:,} steps in {format_number(run.epochs, 'epoch')}, {basis}:",
        (
            f"  it takes             {format_seconds(run.seconds)} for {format_count(run.tokens * run.steps)} tokens: "
            f"{format_seconds(run.round_s)} a round, {format_seconds(run.around_s)} between two epochs"
        ),
        f"  a member trains      {format_percent(run.training_share)} of that time",
        f"  a member sends       {daily}{format_bytes(in_all)} in all, and receives as much",
        f"  upload it needs      {run.upload_mbit_s:.3g} Mbit/s; with less, others wait for its results",
    ]


def build_whole_json(run: WholeRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    figures = ("seconds", "training_share", "upload_mbit_s")
    return asdict(run) | {name: getattr(run, name) for name in figures}
