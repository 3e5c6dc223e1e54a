"""A run as rows for experiment trackers: one for each round, under the keys that the original client gives to wandb."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from psyche.analysis.members import LossPoint, MemberView
from psyche.analysis.run_view import Energies, RunView
from psyche.wire.history import HistoryPoint

MAX_MEMBERS: Final = 64  # whose own figures are written; of more, only the whole
MAX_PERPLEXITY_LOSS: Final = 700.0  # e to more is no double
MAX_TRAINED_S: Final = 1e9
MAX_NUMBER: Final = 1e308
MAX_KEY: Final = 200  # letters of a tensor's name
KEYS: Final = (
    "train/loss", "train/perplexity", "train/lr", "train/total_tokens", "train/tokens_per_sec",
    "train/global_token_batch_size", "train/efficency", "coordinator/num_clients", "coordinator/epoch",
    "coordinator/round",
)  # fmt: skip
MEMBER_KEYS: Final = ("loss", "train_seconds", "tokens_per_sec", "bytes_sent", "bytes_received")
Values = dict[str, float]
_NO_KEY: Final = re.compile(r"[^-\w.]")


class Row(NamedTuple):
    """A round; `members` has what is known of each one, by name."""

    run: str
    total_steps: int
    step: int
    unix: int
    values: Values
    members: dict[str, Values]

    def flatten(self) -> Values:
        """All values in one dictionary; names of strangers become parts of keys."""
        own = {
            f"p2p/nodes.{_NO_KEY.sub('_', name)}.{key}": value
            for name, values in self.members.items()
            for key, value in values.items()
        }
        return self.values | own


class RowReader:
    """Gives each round of a run once; those that are trained again after a rewind come again."""

    def __init__(self, view: RunView) -> None:
        self._view, self._run = view, ""
        self._read: frozenset[HistoryPoint] = frozenset()

    def read(self, run: str, *, is_last: bool = True) -> list[Row]:
        """What is new; the run keeps the name that it has at its first round, before which it may not be known.

        Unless `is_last` or the run rests, the newest round waits for what its members' own logs still tell of it.
        """
        points = [*self._view.curve]
        if not is_last and not self._view.is_at_rest:
            points = points[:-1]
        if not points or points[-1] in self._read:
            return []
        first = max((place + 1 for place, point in enumerate(points) if point in self._read), default=0)
        self._read, self._run = frozenset(points), self._run or run
        members = self._view.get_members()
        named = name_members(members if len(members) <= MAX_MEMBERS else ())
        losses = {name: _find_losses(one, points[first].step - 1) for name, one in named.items()}
        rows = [
            make_row(self._view, self._run, point, points[place - 1] if place else None, losses)
            for place, point in enumerate(points[first:], first)
        ]
        rows[-1].values.update(describe_scores(self._view))
        for name, one in named.items():
            rows[-1].members.setdefault(name, {}).update(_describe_now(one))
        return rows


def make_row(
    view: RunView, run: str, point: HistoryPoint, before: HistoryPoint | None,
    losses: Mapping[str, Mapping[int, LossPoint]],
) -> Row:  # fmt: skip
    found = {name: own[point.step] for name, own in losses.items() if point.step in own}
    members = {
        name: keep_numbers({"loss": one.loss, "train_seconds": one.seconds or None}) for name, one in found.items()
    }
    trained_s = [one.seconds for one in found.values() if 0.0 < one.seconds < MAX_TRAINED_S]
    values = describe_point(point, before, trained_s) | describe_tensors(view.measured.get(point.step, {}))
    return Row(run, view.total_steps, point.step, point.unix, values, members)


def describe_tensors(measured: Mapping[str, Energies]) -> Values:
    """What `--optim-stats-steps` measured in a step: the mean over members."""
    return keep_numbers({
        f"optim/{_NO_KEY.sub('_', name)[:MAX_KEY]}.{key}": energy / count
        for name, (count, update, grad) in measured.items()
        for key, energy in (("delta_energy", update), ("grad_energy", grad))
    })  # fmt: skip


def describe_scores(view: RunView) -> Values:
    """What members have found in known tasks, of the newest weights."""
    return keep_numbers({f"eval/{_NO_KEY.sub('_', task)[:MAX_KEY]}": one.value for task, one in view.scores.items()})


def make_last_row(view: RunView, run: str = "") -> Row | None:
    """The last round, without what is only known of now."""
    *before, last = [None, *view.curve][-2:]
    if last is None:
        return None
    losses = {one.key: _find_losses(one, last.step - 1) for one in view.get_members()}
    return make_row(view, run, last, before[0], losses)


def describe_point(point: HistoryPoint, before: HistoryPoint | None = None, trained_s: Sequence[float] = ()) -> Values:
    """The figures of a round; `trained_s` are the seconds that each member trained."""
    batch = None
    if before is not None and before.step < point.step and before.tokens < point.tokens:
        batch = (point.tokens - before.tokens) // (point.step - before.step)
    busy = min(1.0, math.fsum(trained_s) / len(trained_s) / point.seconds) if trained_s and point.seconds else None
    values = (
        point.loss, compute_perplexity(point.loss), point.learning_rate, point.tokens or None, point.tokens_per_s,
        batch, busy, point.members, point.epoch, point.height,
    )  # fmt: skip
    return keep_numbers(dict(zip(KEYS, values, strict=True)))


def compute_perplexity(loss: float | None) -> float | None:
    return None if loss is None or loss > MAX_PERPLEXITY_LOSS else math.exp(loss)


def keep_numbers(values: Mapping[str, float | None]) -> Values:
    """The values that are finite; an integer of a stranger may be more than any float."""
    return {key: value for key, value in values.items() if value is not None and abs(value) <= MAX_NUMBER}


def name_runs(views: Iterable[RunView]) -> list[str]:
    """A name of its own for each run."""
    names = [view.run_id or view.name for view in views]
    return [name if names.index(name) == place else f"{name} ({place})" for place, name in enumerate(names)]


def name_members(members: Sequence[MemberView]) -> dict[str, MemberView]:
    """Members by a name of their own: what two of them call themselves gets their keys."""
    times = Counter(one.name for one in members)
    return {one.name if times[one.name] == 1 else f"{one.name} ({one.key})": one for one in members}


def _find_losses(one: MemberView, after: int) -> dict[int, LossPoint]:
    return {} if one.curve is None else {point.step: point for point in one.curve.after(after)}


def _describe_now(one: MemberView) -> Values:
    known = (None, None, one.tokens_per_s, one.bytes_sent, one.bytes_received)
    return keep_numbers(dict(zip(MEMBER_KEYS, known, strict=True)))
