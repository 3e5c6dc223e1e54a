"""The decision which results of a round are applied; every client computes it from the record (C1 to C6, W6 b).

The record of the *deciding* round (with overlap, the round after the training round) says which members delivered;
the tables behind the recorded roots say which commitments they delivered. A client either reaches the same answer
as all others, or learns which tables it must ask for. No deadline ever decides.
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

MAX_COMBINATIONS: Final = 8  # lists tried per root; with more equivocators than that, the client asks for the table
Table = Mapping[int, bytes]  # member -> commitment: the results that a witness held


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What one client knows about a round that is to be decided.

    `members`, `owed` and `agreed_held` are bitmaps; `owed` marks the members of the attested round that owed a
    payload. `tables` holds the *shown* tables by witness: the list over `held & owed` that hashes to that witness's
    recorded root, every entry signed by its member (W7).
    """

    members: int
    owed: int
    seed: bytes  # 32 bytes, of the deciding round: the key of its bloom filters (W3)
    n: int
    q: int
    agreed_root: bytes | None  # None: the record has no agreed root
    agreed_held: int
    records: Sequence[WitnessRecord]
    tables: Mapping[int, Table]


@dataclass(frozen=True, slots=True)
class Decided:
    """The decided set: `held` is the recorded bitmap (who gets credit), `commitments` are the results to apply."""

    held: int
    commitments: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Void:
    """The round is void: no agreed root, and no member held by q witnesses (C4). The empty set is applied."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The client lacks tables of the witnesses `ask` (member indexes); one of them is enough under C1."""

    ask: tuple[int, ...]
    is_one_enough: bool


Decision = Decided | Void | Undecided


def get_deciding_height(config: Config, height: int) -> int:
    """The height of the round whose records decide the results of round `height` (section 4)."""
    return height + 1 if config.overlap else height


def find_table(
    record: WitnessRecord, owed: int, seed: bytes, epoch: int, attested_height: int,
    known: Mapping[int, Collection[bytes]],
) -> dict[int, bytes] | None:  # fmt: skip
    """The table behind a witness's root, if this client knows all its commitments; otherwise None (W7).

    `known` maps a member to the signed commitments of it that this client has seen. If there are several, only
    those in the witness's bloom filter are tried, since an honest witness puts its own there. A root matches at
    most one table, so the result is unique.
    """
    listed = get_members(record.held & owed)
    choices = [_get_likely(record, seed, known.get(member, ())) for member in listed]
    for combination in islice(product(*choices), MAX_COMBINATIONS):
        table = dict(zip(listed, combination, strict=True))
        if compute_results_root(epoch, attested_height, record.held, table) == record.results_root:
            return table
    return None


def _get_likely(record: WitnessRecord, seed: bytes, known: Collection[bytes]) -> list[bytes]:
    """The commitments of one member that the witness may have listed; there are several only after equivocation."""
    if len(known) < 2:
        return list(known)
    return sorted(c for c in known if is_in_bloom(record.broadcast_bloom, seed, record.member, c))


def decide(view: DecisionView) -> Decision:
    """Decide which results everybody applies, or which tables this client lacks to decide (C1 to C4)."""
    if view.agreed_root is not None:
        return _decide_by_root(view, view.agreed_root)
    slots = compute_at_least((r.held for r in view.records), view.q, view.members)
    if not slots:
        return Void()
    return _decide_by_slots(view, slots)


def _decide_by_root(view: DecisionView, root: bytes) -> Decided | Undecided:
    """C1: decide by the agreed root; any table with this root is the decided list."""
    backers = [r.member for r in view.records if r.results_root == root and r.held == view.agreed_held]
    shown = next((view.tables[member] for member in backers if member in view.tables), None)
    if shown is None:
        return Undecided(tuple(backers), is_one_enough=True)
    return Decided(view.agreed_held, dict(shown))


def _decide_by_slots(view: DecisionView, slots: int) -> Decided | Undecided:
    """C2 and C3: without an agreed root, decide member by member."""
    holders = {m: [r for r in view.records if r.held >> m & 1] for m in get_members(slots & view.owed)}
    lacking = {m: _get_unshown(view, found) for m, found in holders.items()}
    open_ = {m: witnesses for m, witnesses in lacking.items() if len(witnesses) >= _get_least_shown(view)}
    commitments: dict[int, bytes] = {}
    if not open_:  # otherwise a commitment that belongs to the set might be in none of the shown tables
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
    """The member's decided commitment (or None), and the witnesses whose tables are needed to decide (C2, C3).

    A witness votes for a commitment if its bloom filter, which is on record, contains it. A shown table that lists
    the commitment counts if its witness voted for it. Tables of voters that are not shown yet may still add to that
    count.
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
    for _, commitment, listed, unshown in sorted(ranked):  # most votes first, ties by the smaller bytes
        if listed >= _get_least_shown(view):
            return commitment, []
        if listed + len(unshown) >= _get_least_shown(view):
            return None, unshown
    return None, []


def _is_clear(
    view: DecisionView, shown: Mapping[int, bytes], commitment: bytes, holders: Sequence[WitnessRecord]
) -> bool:  # fmt: skip
    """Whether a member's only commitment is decided; the common case, which tests as few bloom filters as possible."""
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
    """E = q - f: the least number of honest tables among q that hold a member's only result (C2)."""
    return view.q - compute_liar_bound(view.n)


def find_contradictors(
    view: DecisionView, decided: Decided, known: Mapping[int, Collection[bytes]]
) -> tuple[int, ...]:  # fmt: skip
    """Witnesses that hold an unknown result of a member that the decided set leaves out.

    The decision does not need their tables (C3), but they show what else the member signed: evidence (R7).
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
    """The members of a decided set in the order in which their payloads are applied: ascending batch start (C5)."""
    return sorted(batch_starts, key=batch_starts.__getitem__)


def compute_followed(
    records: Sequence[WitnessRecord], n: int, epoch: int, attested_height: int, held: int,
    commitments: Mapping[int, bytes], recent: int,
) -> int | None:  # fmt: skip
    """The `held` that a witness reports in RoundWitness so that more roots agree; None: nothing to follow (W6 b).

    A candidate needs more than f records (and at least 2) behind it, so that an honest witness stands behind it and
    f liars can neither leave a member out nor void a round. The witness prefers its own `held`. Otherwise it follows
    the candidate with the most records that it can verify from its own table and that leaves out only members of
    `recent`, whose payloads arrived within the last 5 seconds (`FOLLOW_WINDOW_S`).
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
