"""A client's knowledge of each round: announcements, payloads, presence. Pure data and pure queries."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final

from psyche.client.engine.auditing.works import Work, is_verified
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.audits import AuditTask, compute_audits
from psyche.core.committee.elections import compute_quorum, get_witnesses
from psyche.core.encoding.header import ResultHeader, ResultKind
from psyche.core.rules.audits import get_doubted
from psyche.core.state.bits import BitCounter, compute_bits, get_members
from psyche.core.state.gossip import Finished, Gossip, Ready
from psyche.core.state.limits import MIN_STRAGGLER_SLACK_S, STORED_ROUNDS
from psyche.core.state.state import Coordinator, Round, RoundFlag
from psyche.core.state.timeline import get_round

AUDITED_ROUNDS: Final = 2  # kept longer where the run is verified


class PayloadStatus(Enum):
    ANNOUNCED = "announced"
    FETCHING = "fetching"
    HELD = "held"
    REFUSED = "refused"


@dataclass(slots=True)
class KnownResult:
    raw: bytes  # encoded gossip
    header: ResultHeader
    commitment: bytes
    status: PayloadStatus = PayloadStatus.ANNOUNCED
    held_at: float = 0.0
    retry_at: float = 0.0
    attempts: int = 0
    work: Work | None = None  # what its member shows of it, in a run with verification


@dataclass(frozen=True, slots=True)
class ShownTable:
    """The list behind a results root: member to commitment, and the signed results in that order (W7)."""

    held: int
    commitments: Mapping[int, bytes]
    items: tuple[bytes, ...]


@dataclass(slots=True)
class RoundRecord:
    """Everything known of one round. `started_at` is when this client first saw it, on its own clock."""

    epoch: int
    height: int
    step: int
    seed: bytes
    data_index: int
    members: int
    electors: int
    drain: bool
    started_at: float
    assignments: dict[int, tuple[int, int]]
    witnesses: tuple[int, ...]
    audits: tuple[AuditTask, ...] = ()  # of its verifiers, in their order (V7)
    tasks: dict[int, list[AuditTask]] = field(default_factory=dict)  # the same by verifier
    excused: int = 0  # bitmap of reporters that this client knows no result for to audit: they owe nothing
    seen: Coordinator | None = None  # the record as it first had this round, in a run that is verified (V13)
    has_deadline: bool = False  # R5: a commitment counts only if it was out before the next round began
    applied: frozenset[bytes] = frozenset()  # commitments that were decided to be applied
    is_decided: bool = False
    timely: set[bytes] = field(default_factory=set)  # commitments that were in time
    results: dict[int, dict[bytes, KnownResult]] = field(default_factory=dict)
    trainers: dict[bytes, int] = field(default_factory=dict)  # commitment -> member, of all results
    deferred: dict[bytes, Gossip] = field(default_factory=dict)  # by commitment (R3)
    signed: dict[int, dict[bytes, bytes]] = field(default_factory=dict)  # member -> commitment -> gossip, two at most
    finished: dict[int, Finished] = field(default_factory=dict)
    finished_at: dict[int, float] = field(default_factory=dict)
    finished_raw: dict[int, bytes] = field(default_factory=dict)
    ready: dict[int, Ready] = field(default_factory=dict)
    heard: int = 0
    left: int = 0  # members that said Leave
    tables: dict[bytes, ShownTable] = field(default_factory=dict)  # by results root, of records and its own (W7)
    _seen: BitCounter = field(default_factory=BitCounter)  # sums `seen` of the first `_counted` in `finished`
    _counted: int = 0

    def get_single(self, member: int) -> KnownResult | None:
        """The member's result if exactly one commitment by it is known, accepted or not (W1)."""
        known = self.results.get(member, {})
        if len(known) != 1 or len(self.signed.get(member, {})) > 1:
            return None
        return next(iter(known.values()))

    def compute_held(self) -> int:
        """Bitmap of the members that this client reports as held: it has what they owed the round (W1)."""
        bits = compute_bits(m for m, _ in self.iter_held() if m in self.assignments or m in self.reporters)
        if self.has_deadline:  # R5
            known = ((m, self.get_single(m)) for m in get_members(bits & ~self.get_widely_seen()))
            bits &= ~compute_bits(m for m, result in known if result is None or result.commitment not in self.timely)
        owing = compute_bits(self.reporters) & ~self.excused
        idle = compute_bits(self.finished.keys() - self.assignments.keys()) & ~owing  # nothing to show but Finished
        return (bits | idle) & self.members

    def iter_held(self) -> Iterable[tuple[int, KnownResult]]:
        """Members with exactly one known result whose payload is held, and that result."""
        for member in self.results:
            result = self.get_single(member)
            if result is not None and result.status is PayloadStatus.HELD:
                yield member, result

    @property
    def reporters(self) -> Collection[int]:
        """The verifiers that have audits."""
        return self.tasks.keys()

    def find_audited(self, task: AuditTask) -> KnownResult | None:
        """The single result of this round that an audit is of."""
        known = self.get_single(task.target)
        is_meant = known is not None and (known.header.result_kind is ResultKind.AUDIT) == task.is_report
        return known if is_meant else None

    def is_held(self, member: int) -> bool:
        known = self.get_single(member)
        return known is not None and known.status is PayloadStatus.HELD

    def get_widely_seen(self) -> int:
        """Bitmap of the members whose Result more than a third of the electors say they have seen (R5)."""
        for member, finished in islice(self.finished.items(), self._counted, None):  # entries are never replaced
            if self.electors >> member & 1:  # only electors: newcomers may be half of the members (M10)
                self._seen.add(finished.seen)
        self._counted = len(self.finished)
        return self._seen.get_at_least(self.electors.bit_count() // 3 + 1)

    def get_commitments(self, held: int) -> dict[int, bytes]:
        """Member to commitment, for the members of `held` that owed a payload (W2)."""
        found: dict[int, bytes] = {}
        for member in get_members(held):
            single = self.get_single(member)
            if member in self.assignments and single is not None:
                found[member] = single.commitment
        return found

    def get_signed(self) -> dict[int, dict[bytes, bytes]]:
        """All known signed results, accepted or not: member to commitment to encoded gossip."""
        found = {member: dict(signed) for member, signed in self.signed.items()}
        for member, results in self.results.items():
            found.setdefault(member, {}).update((c, result.raw) for c, result in results.items())
        for table in self.tables.values():
            for (member, commitment), raw in zip(table.commitments.items(), table.items, strict=True):
                found.setdefault(member, {}).setdefault(commitment, raw)
        return found

    def count_known(self) -> int:
        """A count that grows with every result and every table that becomes known."""
        return sum(map(len, self.signed.values())) + sum(map(len, self.results.values())) + len(self.tables)

    def find_signed(self, member: int, commitment: bytes) -> bytes | None:
        """The signed result with this commitment, if gossip or a table has shown it."""
        signed = self.signed.get(member, {}).get(commitment)
        for table in self.tables.values():
            if signed is None and table.commitments.get(member) == commitment:
                return table.items[list(table.commitments).index(member)]
        return signed

    def keep_table(
        self, root: bytes, held: int, commitments: Mapping[int, bytes], signed: Mapping[int, Mapping[bytes, bytes]]
    ) -> ShownTable:
        """Keep the signed results behind a root, even if their trainers turn out to equivocate later (W7)."""
        listed = dict(sorted(commitments.items()))
        table = self.tables[root] = ShownTable(held, listed, tuple(signed[m][c] for m, c in listed.items()))
        return table

    def get_seen(self) -> int:
        return compute_bits(self.results)

    def get_held_times(self) -> dict[int, float]:
        return {member: result.held_at for member, result in self.iter_held()}


def _find_audits(state: Coordinator, round_: Round) -> tuple[AuditTask, ...]:
    """The audits of a round, as long as the record still has what they follow from."""
    audited = get_round(state, round_.height - 1) if round_.height else None
    if audited is None or round_.height < state.current.height - 1 or not is_verified(state):
        return ()
    return tuple(compute_audits(round_, audited, state.config, get_doubted(state, round_.height)))


def _make_record(state: Coordinator, round_: Round, now: float) -> RoundRecord:
    audits = _find_audits(state, round_)
    return RoundRecord(
        epoch=state.progress.epoch,
        height=round_.height,
        step=round_.step,
        seed=round_.seed,
        data_index=round_.data_index,
        members=round_.members,
        electors=round_.electors,
        drain=bool(round_.flags & RoundFlag.DRAIN),
        started_at=now,
        assignments=compute_assignments(round_, state.config),
        witnesses=tuple(get_witnesses(round_)),
        audits=audits,
        tasks={v: [task for task in audits if task.verifier == v] for v in dict.fromkeys(t.verifier for t in audits)},
        seen=state if is_verified(state) else None,
        has_deadline=state.config.verification_percent > 0,
    )


class RoundBook:
    def __init__(self) -> None:
        self._records: dict[int, RoundRecord] = {}

    def follow(self, state: Coordinator, now: float, needed: int | None = None) -> list[RoundRecord]:
        """Add the state's new rounds, in order, and return their records.

        Forget rounds that have left the state, except those from height `needed` on.
        """
        rounds = [r for r in state.rounds if r.members and r.height <= state.current.height]
        unknown = sorted((r for r in rounds if r.height not in self._records), key=lambda r: r.height)
        new = [_make_record(state, r, now) for r in unknown]
        self._records.update((record.height, record) for record in new)
        # audits of reports look at rounds before those of the record (V7)
        oldest = state.current.height - STORED_ROUNDS + 1 - AUDITED_ROUNDS * is_verified(state)
        if needed is not None:
            oldest = min(oldest, needed)
        self._records = {h: r for h, r in self._records.items() if h >= oldest}
        return new

    def go_back(self, state: Coordinator) -> None:
        """Forget the rounds that the record, which has gone back, does not have, or not as they were."""
        rounds = {r.height: r.seed for r in state.rounds if r.members}
        self._records = {
            h: r for h, r in self._records.items() if h <= state.current.height and rounds.get(h, r.seed) == r.seed
        }

    def get(self, height: int | None) -> RoundRecord | None:
        return None if height is None else self._records.get(height)

    def clear(self) -> None:
        self._records.clear()

    def all(self) -> list[RoundRecord]:
        return [self._records[h] for h in sorted(self._records)]


def compute_pace(members: Collection[int], at: Mapping[int, float], start: float) -> float | None:
    """t_q: seconds from `start` until a quorum of `members` has an entry in `at`; None while it has not (A2)."""
    if not members:
        return 0.0
    times = [at[m] for m in members if m in at]
    quorum = compute_quorum(len(members))
    return max(0.0, sorted(times)[quorum - 1] - start) if len(times) >= quorum else None


def compute_patience(paces: Iterable[float | None], straggler_percent: int) -> float | None:
    """Seconds from a round's start after which the client stops waiting for others; None: wait for all (A3, A4)."""
    known = list(paces)
    if straggler_percent == 0 or any(p is None for p in known):
        return None
    pace = max((p for p in known if p is not None), default=0.0)
    return max(pace * straggler_percent / 100, pace + MIN_STRAGGLER_SLACK_S)
