"""How much honest machines differ in this epoch, and whose arithmetic is off (V6, V10)."""

from dataclasses import dataclass, field
from typing import NamedTuple

from psyche.client.engine.actions import Case
from psyche.client.engine.auditing.desk import Answer, Desk
from psyche.client.engine.auditing.works import has_local_steps
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import RoundRecord
from psyche.core.committee.verdicts import (
    MAX_TOLERANCE,
    compute_calibration,
    compute_own_tolerance,
    compute_tolerance,
    find_odd,
    find_unfit,
)
from psyche.core.encoding.header import NumericClass, ResultHeader
from psyche.core.encoding.work import Values
from psyche.core.state.state import ZERO32
from psyche.telemetry import types


class Trial(NamedTuple):
    """The calibration of who does not train in the epoch's first round."""

    seed: bytes
    case: Case


@dataclass(slots=True)
class Tolerances:
    context: EngineContext
    desk: Desk
    odd: dict[int, float] = field(default_factory=dict)  # member -> how far it is off; they accuse and judge nobody
    unfit: frozenset[int] = frozenset()  # those that are so far off that they leave the epoch
    leaves_if_unfit: bool = True  # as honest clients do
    _distances: dict[NumericClass, dict[int, float]] = field(default_factory=dict)
    _counted: int = -1
    _own: Values | None = None  # the row of who does not show one
    _has_failed: bool = False

    def clear(self) -> None:
        self.odd.clear()
        self.unfit = frozenset()
        self._distances.clear()
        self._counted = -1
        self._own, self._has_failed = None, False

    def calibrate(self, record: RoundRecord) -> None:
        """Have the calibration row computed that is not shown, since this client has no samples in the first round."""
        x = self.context
        if record.height or self._own is not None or self._has_failed or self.desk.is_busy:
            return
        if x.member is None or x.member in record.assignments:
            return
        case = Case(
            member=x.member, height=0, start=record.data_index, end=record.data_index, piece_samples=1, pieces=(0,),
            numeric_class=x.facts.numeric_class, payload=ZERO32,
        )  # fmt: skip
        self.desk.ask([Trial(record.seed, case)], record.seed, self._take_own)

    def _take_own(self, _trial: Trial, answer: Answer | None) -> None:
        self._own, self._has_failed = None if answer is None else answer.values, answer is None
        self._counted = -1

    def get(self, numeric_class: int, member: int) -> float:
        """How far this member's work in this class may be from what others compute."""
        return compute_own_tolerance(self.get_of_class(numeric_class), self.odd.get(member, 0.0))

    def get_of_class(self, numeric_class: int) -> float:
        kind = NumericClass(numeric_class)
        if kind is NumericClass.BF16 and has_local_steps(self.context.state):
            return MAX_TOLERANCE  # inner steps differ by more than one gradient does
        return compute_tolerance(self.context.state.config, kind, self._distances.get(kind, {}))

    def follow(self) -> None:
        """Compare the calibration rows of the epoch's first round, as they arrive."""
        first = self.context.book.get(0)
        if first is None or len(rows := _get_rows(first)) == self._counted:
            return
        self._counted = len(rows)
        if self._own is not None and self.context.member is not None:
            rows[self.context.member] = NumericClass(self.context.facts.numeric_class), self._own
        for kind in NumericClass:
            alike = {member: values for member, (of, values) in rows.items() if of is kind}
            self._distances[kind] = compute_calibration(alike)
        # with two rows the median lies between them, and nobody can say which one is off
        compared = {kind: known for kind, known in self._distances.items() if len(known) > 2}
        odd = {m: known[m] for kind, known in compared.items() for m in find_odd(known, self.get_of_class(kind))}
        for member in sorted(odd.keys() - self.odd):
            key = self.context.get_key(member).hex()[:16]
            self.context.log(types.ArithmeticOff(member=member, epoch=first.epoch, distance=odd[member], key=key))
        self.odd = odd
        from_all = compute_calibration({member: values for member, (_, values) in rows.items()})
        is_most = 2 * len(rows) > len(first.assignments)  # else the others may be the ones that are off
        self.unfit = frozenset(find_unfit(odd, from_all)) if is_most else frozenset()

    def find_reason_to_leave(self) -> str:
        """Why this client's machine cannot take part in this epoch; empty if it can.

        If it has shown no row, nobody allows for what it is off by.
        """
        member = self.context.member
        unfit = self.unfit if self._own is None else self.odd
        if member is None or member not in unfit or not self.leaves_if_unfit:
            return ""
        off = f"its results are off by {self.odd[member]:.1e} from those of most members"
        return f"this machine computes wrong numbers: {off}; test its memory, and install its packages anew"

    def excuses(self, header: ResultHeader) -> bool:
        """Whether this is the round that has shown its member to be unfit, and the member has left since."""
        if header.height or header.member not in self.unfit:
            return False
        return not any(header.member in record.results for record in self.context.book.all() if record.height)


def _get_rows(record: RoundRecord) -> dict[int, tuple[NumericClass, Values]]:
    found: dict[int, tuple[NumericClass, Values]] = {}
    for member, known in record.iter_held():
        if known.work is not None and known.work.calibration is not None:
            found[member] = known.header.numeric_class, known.work.calibration
    return found
