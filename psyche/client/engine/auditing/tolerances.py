"""How much honest machines differ in this epoch, and whose arithmetic is off (V6, V10)."""

from dataclasses import dataclass, field

from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import RoundRecord
from psyche.core.committee.verdicts import (
    compute_calibration,
    compute_own_tolerance,
    compute_tolerance,
    find_odd,
)
from psyche.core.encoding.header import NumericClass
from psyche.core.encoding.work import Values
from psyche.telemetry import types


@dataclass(slots=True)
class Tolerances:
    context: EngineContext
    odd: dict[int, float] = field(default_factory=dict)  # member -> how far it is off; they accuse and judge nobody
    _distances: dict[NumericClass, dict[int, float]] = field(default_factory=dict)
    _counted: int = -1

    def clear(self) -> None:
        self.odd.clear()
        self._distances.clear()
        self._counted = -1

    def get(self, numeric_class: int, member: int) -> float:
        """How far this member's work in this class may be from what others compute."""
        return compute_own_tolerance(self.get_of_class(numeric_class), self.odd.get(member, 0.0))

    def get_of_class(self, numeric_class: int) -> float:
        kind = NumericClass(numeric_class)
        return compute_tolerance(self.context.state.config, kind, self._distances.get(kind, {}))

    def follow(self) -> None:
        """Compare the calibration rows of the epoch's first round, as they arrive."""
        first = self.context.book.get(0)
        if first is None or len(rows := _get_rows(first)) == self._counted:
            return
        self._counted = len(rows)
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


def _get_rows(record: RoundRecord) -> dict[int, tuple[NumericClass, Values]]:
    found: dict[int, tuple[NumericClass, Values]] = {}
    for member, known in record.iter_held():
        if known.work is not None and known.work.calibration is not None:
            found[member] = known.header.numeric_class, known.work.calibration
    return found
