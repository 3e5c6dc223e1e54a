"""Which results of a round are applied, computed by every client from the record alone (C1 to C6, W6 b).

The record of the *deciding* round (with overlap the round after the one that trained) tells which
members did their duty; what a client knows of the commitments tells which one is meant. A client
either comes to the one answer that all others come to, or knows what it must ask for: never a
decision by deadline.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

from psyche.core.bits import compute_bits, get_members
from psyche.core.bloom import is_in_bloom
from psyche.core.results import compute_results_root
from psyche.core.state import Config, WitnessRecord
from psyche.core.tally import compute_at_least

_MAX_COMBINATIONS: Final = 256  # lists tried for a root; equivocation that no bloom resolves is rarer still


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What one client knows of one round that is to be decided.

    `members`, `owed` and `agreed_held` are bitmaps; `owed` are the members of the attested round
    that owed a payload. `known` maps a member to the commitments that it has signed, as far as this
    client has seen them, those out of witnesses' tables included. `answered` are the witnesses
    whose signed table this client has read (W7).
    """

    epoch: int
    attested_height: int
    members: int
    owed: int
    seed: bytes  # of the deciding round: the key of its blooms (W3)
    n: int
    q: int
    agreed_root: bytes | None  # None: no root is on record
    agreed_held: int
    records: Sequence[WitnessRecord]
    known: Mapping[int, Collection[bytes]]
    answered: Collection[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Decided:
    """The set: `held` as on record (who gets credit), `commitments` what is applied."""

    held: int
    commitments: Mapping[int, bytes]
    by_root: bool


@dataclass(frozen=True, slots=True)
class Void:
    """Nothing is applied: no root, and no slot with q (C4). The apply step still runs, with the empty set."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """What is missing: tables of these witnesses (members' indexes); any one of them if it is for the root.

    `members` are those whose commitment is open; all of the list where the root is (C1, C3).
    """

    ask: tuple[int, ...]
    members: int
    for_root: bool


Decision = Decided | Void | Undecided


def get_deciding_height(config: Config, height: int) -> int:
    """The round whose records decide the results of round `height` (section 4)."""
    return height + 1 if config.overlap else height


def decide(view: DecisionView) -> Decision:
    """The set of results that everybody applies, or what this client lacks to know it (C1 to C4)."""
    if view.agreed_root is not None:
        return _decide_by_root(view, view.agreed_root)
    slots = compute_at_least((r.held for r in view.records), view.q, view.members)
    if not slots:
        return Void()
    return _decide_by_slots(view, slots)


def _decide_by_root(view: DecisionView, root: bytes) -> Decided | Undecided:
    """C1: the list whose root is on record, found in the own table or else to be fetched."""
    backers = [r for r in view.records if r.results_root == root and r.held == view.agreed_held]
    listed = get_members(view.agreed_held & view.owed)
    choices = [_get_listed(view, member, backers) for member in listed]
    for combination in islice(product(*choices), _MAX_COMBINATIONS):
        commitments = dict(zip(listed, combination, strict=True))
        if compute_results_root(view.epoch, view.attested_height, view.agreed_held, commitments) == root:
            return Decided(view.agreed_held, commitments, by_root=True)
    ask = tuple(r.member for r in backers if r.member not in view.answered)
    return Undecided(ask, view.agreed_held & view.owed, for_root=True)


def _get_listed(view: DecisionView, member: int, backers: Sequence[WitnessRecord]) -> list[bytes]:
    """The known commitments of a member, the best backed first; there is more than one only by equivocation.

    A backer may lie in its bloom, so none is ruled out; the root itself tells which is right.
    """
    known = view.known.get(member, ())
    if len(known) < 2:
        return list(known)
    votes = {c: _count_votes(view, c, backers) for c in known}
    return sorted(votes, key=lambda commitment: (-votes[commitment], commitment))


def _count_votes(view: DecisionView, commitment: bytes, records: Sequence[WitnessRecord]) -> int:
    return sum(is_in_bloom(r.broadcast_bloom, view.seed, r.member, commitment) for r in records)


def _decide_by_slots(view: DecisionView, slots: int) -> Decided | Undecided:
    """C2 and C3, member by member."""
    commitments: dict[int, bytes] = {}
    open_members, ask = 0, set[int]()
    for member in get_members(slots & view.owed):
        holders = [r for r in view.records if r.held >> member & 1]
        chosen = _find_chosen(view, member, holders)
        if chosen is not None:
            commitments[member] = chosen
        elif len(unanswered := _get_unanswered(view, member, holders)) >= _get_honest_minimum(view):
            open_members |= 1 << member
            ask.update(unanswered)
    if open_members:
        return Undecided(tuple(sorted(ask)), open_members, for_root=False)
    return Decided(slots, commitments, by_root=False)


def _find_chosen(view: DecisionView, member: int, holders: Sequence[WitnessRecord]) -> bytes | None:
    """The commitment that q holders have in their bloom; at most one can, for 2q > n + f (C2).

    False positives could lift a second one there: then the better backed, so that the choice does
    not depend on the order of arrival.
    """
    votes = {c: _count_votes(view, c, holders) for c in view.known.get(member, ())}
    chosen = [(-count, commitment) for commitment, count in votes.items() if count >= view.q]
    return min(chosen)[1] if chosen else None


def _get_unanswered(view: DecisionView, member: int, holders: Sequence[WitnessRecord]) -> list[int]:
    """Holders that hold none of the known commitments and have not shown which one they mean (C3)."""
    known = view.known.get(member, ())
    strange = [
        r.member for r in holders if not any(is_in_bloom(r.broadcast_bloom, view.seed, r.member, c) for c in known)
    ]
    return [witness for witness in strange if witness not in view.answered]


def find_contradictors(view: DecisionView, decided: Decided) -> tuple[int, ...]:
    """Witnesses that hold a result, of a member left out of a decided set, that is none of those known here.

    The set stands without them (C3), but their lists show what the member signed beside what is known: evidence (R7).
    """
    left_out = get_members(decided.held & view.owed & ~compute_bits(decided.commitments))
    holders = {m: [r for r in view.records if r.held >> m & 1] for m in left_out if view.known.get(m)}
    return tuple(sorted({w for member, found in holders.items() for w in _get_unanswered(view, member, found)}))


def _get_honest_minimum(view: DecisionView) -> int:
    """How many honest witnesses at least hold a commitment that q have: fewer silent ones count for nothing (C3)."""
    return view.q - (view.n - 1) // 3


def compute_apply_order(commitments: Mapping[int, bytes], assignments: Mapping[int, tuple[int, int]]) -> list[int]:
    """The members of a decided set in ascending batch start, the order in which they are applied (C5)."""
    return sorted(commitments, key=lambda member: assignments[member][0])


def compute_followed(
    records: Sequence[WitnessRecord], epoch: int, attested_height: int, held: int, commitments: Mapping[int, bytes],
    recent: int,
) -> int | None:  # fmt: skip
    """Which `held` a witness reports in RoundWitness so that more roots agree; None: none to follow (W6 b).

    Its own if that is on record. Else the best backed one on record that it can verify from its own
    table and that leaves out only members of `recent`: those whose payload came within the last
    5 seconds (`FOLLOW_WINDOW_S`). So a malicious first witness cannot censor.
    """
    backing: dict[tuple[int, bytes], int] = {}
    for record in records:
        key = (record.held, record.results_root)
        backing[key] = backing.get(key, 0) + 1
    for listed, root in sorted(backing, key=lambda key: (key[0] != held, -backing[key], key)):
        is_near = listed & ~held == 0 and held & ~listed & ~recent == 0
        if is_near and compute_results_root(epoch, attested_height, listed, commitments) == root:
            return listed
    return None
