"""Which verifier recomputes what of whom, by the seed alone (`docs/protocol-reference.md`, V7)."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_verifiers
from psyche.core.committee.shuffle import compute_order
from psyche.core.state.state import Config, Round

AUDIT_TAG: Final = b"psyche/audit/1"
REPORTS_EVERY: Final = 8  # one in so many audits is of a verifier's report
LINK_EVERY: Final = 5  # one in so many verifiers looks at a whole round


class AuditTask(NamedTuple):
    """One piece that a verifier recomputes."""

    verifier: int
    target: int
    is_report: bool  # a row of the target's own report as a verifier, not a piece that it trained
    draw: int  # 64 bits; modulo the number of the target's pieces, or of its report's rows, it says which one

    def get_piece(self, pieces: range) -> int | None:
        """The piece or row, of these; None if there is none that anybody could compute again."""
        return pieces[self.draw % len(pieces)] if pieces else None


def looks_at_whole(seed: bytes, verifier: int) -> bool:
    """Whether a verifier of the round with this seed also looks at one member's whole round (V11)."""
    return (seed[1] + verifier) % LINK_EVERY == 0


def is_opened(seed: bytes, tasks: Iterable[AuditTask], target: int) -> bool:
    """Whether one of these verifiers may look at the whole round of this member, which opens its momenta then (V11)."""
    return any(t.target == target and not t.is_report and looks_at_whole(seed, t.verifier) for t in tasks)


class _Turns:
    """Members in turn, over and over."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = members
        self._place = 0

    def take(self, verifier: int) -> int | None:
        """The member whose turn it is; nobody audits itself, so the verifier's own turn is the next one's."""
        for _ in range(min(2, len(self._members))):
            member = self._members[self._place % len(self._members)]
            self._place += 1
            if member != verifier:
                return member
        return None


def compute_audits(round_: Round, audited: Round, config: Config, first: Iterable[int] = ()) -> list[AuditTask]:
    """The audits of a round's verifiers, in their order; `audited` is the round before (V7).

    The verifiers take turns, each with as many audits as a trainer of the audited round has samples on average. The
    targets are the trainers of that round with samples, in the seed's order: first those in `first`, whose last
    audits decided nothing. Every eighth audit is of a verifier of that round, if there is another one.
    """
    verifiers, shares = get_verifiers(round_, config), compute_assignments(audited, config)
    if not verifiers or not shares:
        return []
    key = hashlib.sha256(AUDIT_TAG + round_.seed).digest()
    doubted = frozenset(first)
    trainers = _Turns(sorted(_order(sorted(shares), key), key=lambda member: member not in doubted))
    reporters = _Turns(_order(sorted(get_verifiers(audited, config)), key))
    tasks: list[AuditTask] = []
    for number in range(len(verifiers) * max(1, audited.batch_size // len(shares))):
        verifier = verifiers[number % len(verifiers)]
        reporter = reporters.take(verifier) if number % REPORTS_EVERY == REPORTS_EVERY - 1 else None
        target = trainers.take(verifier) if reporter is None else reporter
        if target is not None:
            draw = int.from_bytes(hashlib.sha256(key + number.to_bytes(4, "little")).digest()[:8], "little")
            tasks.append(AuditTask(verifier, target, reporter is not None, draw))
    return tasks


def _order(members: Sequence[int], key: bytes) -> list[int]:
    return [members[rank] for rank in compute_order(len(members), key)]
