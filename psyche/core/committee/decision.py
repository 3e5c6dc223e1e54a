"""Which results of a round are applied, computed by every client from the record alone (C1 to C6, W6 b).

The record of the *deciding* round (with overlap the round after the one that trained) tells which
members did their duty; the tables behind the roots on record tell which commitment is meant. A
client either comes to the one answer that all others come to, or knows what it must ask for: never
a decision by deadline.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

from psyche.core.committee.bloom import is_in_bloom
from psyche.core.committee.elections import compute_liar_bound
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import compute_at_least, get_members
from psyche.core.state.state import Config, WitnessRecord

MAX_COMBINATIONS: Final = 8  # lists tried for a root: what several equivocators leave open is asked for instead
Table = Mapping[int, bytes]  # member to commitment: what a witness held


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What one client knows of one round that is to be decided.

    `members`, `owed` and `agreed_held` are bitmaps; `owed` are the members of the attested round
    that owed a payload. `tables` are the *shown* ones, by witness: the list over `held & owed` that
    gives the root on record of that witness, every entry signed by its member (W7).
    """

    members: int
    owed: int
    seed: bytes  # of the deciding round: the key of its blooms (W3)
    n: int
    q: int
    agreed_root: bytes | None  # None: no root is on record
    agreed_held: int
    records: Sequence[WitnessRecord]
    tables: Mapping[int, Table]


@dataclass(frozen=True, slots=True)
class Decided:
    """The set: `held` as on record (who gets credit), `commitments` what is applied."""

    held: int
    commitments: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Void:
    """Nothing is applied: no root, and no slot with q (C4). The apply step still runs, with the empty set."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """What is missing: tables of these witnesses (members' indexes); any one of them where all are alike (C1)."""

    ask: tuple[int, ...]
    is_one_enough: bool


Decision = Decided | Void | Undecided


def get_deciding_height(config: Config, height: int) -> int:
    """The round whose records decide the results of round `height` (section 4)."""
    return height + 1 if config.overlap else height


def find_table(
    record: WitnessRecord, owed: int, seed: bytes, epoch: int, attested_height: int,
    known: Mapping[int, Collection[bytes]],
) -> dict[int, bytes] | None:  # fmt: skip
    """The list behind a witness's root, if commitments that this client knows make it up; else None (W7).

    `known` maps a member to the commitments that it signed, as far as this client has seen them. Of
    several only those in the witness's bloom are tried: an honest witness's own are. A root stands
    for one list at most, so there is nothing to choose between.
    """
    listed = get_members(record.held & owed)
    choices = [_get_likely(record, seed, known.get(member, ())) for member in listed]
    for combination in islice(product(*choices), MAX_COMBINATIONS):
        table = dict(zip(listed, combination, strict=True))
        if compute_results_root(epoch, attested_height, record.held, table) == record.results_root:
            return table
    return None


def _get_likely(record: WitnessRecord, seed: bytes, known: Collection[bytes]) -> list[bytes]:
    """The commitments of one member that the witness can mean; several are there only by equivocation."""
    if len(known) < 2:
        return list(known)
    return sorted(c for c in known if is_in_bloom(record.broadcast_bloom, seed, record.member, c))


def decide(view: DecisionView) -> Decision:
    """The set of results that everybody applies, or what this client lacks to know it (C1 to C4)."""
    if view.agreed_root is not None:
        return _decide_by_root(view, view.agreed_root)
    slots = compute_at_least((r.held for r in view.records), view.q, view.members)
    if not slots:
        return Void()
    return _decide_by_slots(view, slots)


def _decide_by_root(view: DecisionView, root: bytes) -> Decided | Undecided:
    """C1: the list whose root is on record; any table that gives it is that list."""
    backers = [r.member for r in view.records if r.results_root == root and r.held == view.agreed_held]
    shown = next((view.tables[member] for member in backers if member in view.tables), None)
    if shown is None:
        return Undecided(tuple(backers), is_one_enough=True)
    return Decided(view.agreed_held, dict(shown))


def _decide_by_slots(view: DecisionView, slots: int) -> Decided | Undecided:
    """C2 and C3, member by member."""
    holders = {m: [r for r in view.records if r.held >> m & 1] for m in get_members(slots & view.owed)}
    lacking = {m: _get_unshown(view, found) for m, found in holders.items()}
    open_ = {m: witnesses for m, witnesses in lacking.items() if len(witnesses) >= _get_least_shown(view)}
    commitments: dict[int, bytes] = {}
    if not open_:  # only then a commitment that may be in is known for certain to be in a shown table
        for member, found in holders.items():
            chosen, witnesses = _judge(view, member, found)
            if witnesses:
                open_[member] = witnesses
            elif chosen is not None:
                commitments[member] = chosen
    if open_:
        ask = {witness for witnesses in open_.values() for witness in witnesses}
        return Undecided(tuple(sorted(ask)), is_one_enough=False)
    return Decided(slots, commitments)


def _judge(view: DecisionView, member: int, holders: Sequence[WitnessRecord]) -> tuple[bytes | None, list[int]]:
    """The member's commitment that is in, or None; or else the witnesses whose tables would tell (C2, C3).

    Votes are blooms, a function of the record alone. Of the tables that list a commitment those count
    whose witness has it in its bloom; as many more may, as are not shown and have it in their bloom.
    """
    shown = {r.member: table[member] for r in holders if (table := view.tables.get(r.member)) is not None}
    signed = set(shown.values())
    if len(signed) == 1:
        (only,) = signed
        if _is_clear(view, shown, only, holders):
            return only, []
    ranked: list[tuple[int, bytes, int, list[int]]] = []
    for commitment in signed:
        voters = [r.member for r in holders if is_in_bloom(r.broadcast_bloom, view.seed, r.member, commitment)]
        listed = sum(shown.get(witness) == commitment for witness in voters)
        if len(voters) >= view.q:
            ranked.append((-len(voters), commitment, listed, [w for w in voters if w not in shown]))
    for _, commitment, listed, unshown in sorted(ranked):  # most votes first, then the smaller bytes
        if listed >= _get_least_shown(view):
            return commitment, []
        if listed + len(unshown) >= _get_least_shown(view):
            return None, unshown
    return None, []


def _is_clear(
    view: DecisionView, shown: Mapping[int, bytes], commitment: bytes, holders: Sequence[WitnessRecord]
) -> bool:  # fmt: skip
    """Whether a member's only commitment is in, asked of no more blooms than that takes: it is so mostly."""
    voters = listed = 0
    for record in holders:
        if is_in_bloom(record.broadcast_bloom, view.seed, record.member, commitment):
            voters += 1
            listed += record.member in shown
            if voters >= view.q and listed >= _get_least_shown(view):
                return True
    return False


def _get_unshown(view: DecisionView, holders: Sequence[WitnessRecord]) -> list[int]:
    return [r.member for r in holders if r.member not in view.tables]


def _get_least_shown(view: DecisionView) -> int:
    """E: so many tables at least list what q hold, whoever lies, where a member signed one result only (C2)."""
    return view.q - compute_liar_bound(view.n)


def find_contradictors(
    view: DecisionView, decided: Decided, known: Mapping[int, Collection[bytes]]
) -> tuple[int, ...]:  # fmt: skip
    """Witnesses that hold a result, of a member left out of a decided set, that is none of those known here.

    The set stands without them (C3), but their lists show what the member signed beside what is known: evidence (R7).
    """
    found: set[int] = set()
    for member in get_members(decided.held & view.owed):
        own = known.get(member, ())
        if member not in decided.commitments and len(own) == 1:
            (only,) = own
            holders = [r for r in view.records if r.held >> member & 1 and r.member not in view.tables]
            found.update(r.member for r in holders if not is_in_bloom(r.broadcast_bloom, view.seed, r.member, only))
    return tuple(sorted(found))


def compute_apply_order(batch_starts: Mapping[int, int]) -> list[int]:
    """The members of a decided set in the order in which their payloads are applied: by batch start (C5)."""
    return sorted(batch_starts, key=batch_starts.__getitem__)


def compute_followed(
    records: Sequence[WitnessRecord], n: int, epoch: int, attested_height: int, held: int,
    commitments: Mapping[int, bytes], recent: int,
) -> int | None:  # fmt: skip
    """Which `held` a witness reports in RoundWitness so that more roots agree; None: none to follow (W6 b).

    Only what so many records report that an honest witness came to it by itself: f liars together can
    neither leave anybody out nor void a round. Of those its own, else the best backed one that it can
    verify from its own table and that leaves out only members of `recent`: those whose payload came
    within the last 5 seconds (`FOLLOW_WINDOW_S`).
    """
    backing: dict[tuple[int, bytes], int] = {}
    for record in records:
        key = (record.held, record.results_root)
        backing[key] = backing.get(key, 0) + 1
    backed = {key: count for key, count in backing.items() if count >= max(2, compute_liar_bound(n) + 1)}
    for listed, root in sorted(backed, key=lambda key: (key[0] != held, -backed[key], key)):
        is_near = listed & ~held == 0 and held & ~listed & ~recent == 0
        if is_near and compute_results_root(epoch, attested_height, listed, commitments) == root:
            return listed
    return None
