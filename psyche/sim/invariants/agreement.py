"""Computes each round's decision from its records alone, and checks that all honest members decide the same.

The state machine's own flags, and the sets that clients log, are compared with this result (I4, I9).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.bloom import compute_positions
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import get_members
from psyche.core.state.state import ZERO32, Coordinator, Round, RoundFlag, WitnessFlag, WitnessRecord
from psyche.core.state.timeline import get_round
from psyche.sim.invariants.views import Check, ClientView
from psyche.telemetry import types

_NO_DIGEST: Final = WitnessFlag.NO_DIGEST
_MOST_WITNESSES: Final = 32


@dataclass(frozen=True, slots=True)
class Decision:
    """The set of a closed round: members it must have, and members it may have (what a liar signed is unknown here)."""

    must: frozenset[int]
    may: frozenset[int]

    def allows(self, found: frozenset[int]) -> bool:
        return self.must <= found <= self.may

    def __str__(self) -> str:
        maybe = sorted(self.may - self.must)
        return f"{sorted(self.must)}{f', perhaps with {maybe}' if maybe else ''}"


NOTHING: Final = Decision(frozenset(), frozenset())


def count_needed(n: int) -> int:
    """The quorum among n elected witnesses, as section 2.5 has it: more than two thirds; two of three.

    A second implementation on purpose: the state machine's quorum is compared with this one.
    """
    return 2 if n == 3 else next((q for q in range(n + 1) if 3 * q > 2 * n), 1)


def count_least_shown(n: int) -> int:
    """E: how many tables of n elected witnesses must list a result that is in, where no root is agreed (C2)."""
    return count_needed(n) - max(0, n - 1) // 3


def count_elected(witness_nodes: int, electors: int) -> int:
    """The number of witnesses of a round with that many electors (section 2.5)."""
    return min(witness_nodes or _MOST_WITNESSES, electors, _MOST_WITNESSES)


class Outcomes:
    """Follows what clients decide about their own results, and what they tell their trainers.

    Args:
        check: notes a violation if its condition does not hold.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._decided: dict[tuple[str, int, int, int], bool] = {}  # by name, life, epoch, height: is it applied

    def note(self, host: ClientView, epoch: int, height: int, *, applied: bool) -> None:
        self._decided[host.name, host.lives, epoch, height] = applied

    def check_told(self, host: ClientView, life: int, epoch: int, height: int, applied: bool) -> None:
        """A trainer is told an outcome: it is the decided one, or "not applied" if its client could not decide."""
        if not host.is_honest or not host.is_living(life):
            return  # a killed process's log is lost
        expected = self._decided.get((host.name, life, epoch, height), False)
        self._check(
            applied is expected, "R8", f"{host.name}'s result of round {(epoch, height)}: applied {expected}",
            f"the trainer is told {applied}",
        )  # fmt: skip


class Agreement:
    """Follows the rounds of a world.

    Args:
        hosts: the clients, by key.
        check: notes a violation if the condition does not hold.
        overlap: whether rounds overlap in this run.
        outcomes: receives what each member decides about its own results.
    """

    def __init__(self, hosts: Mapping[bytes, ClientView], check: Check, outcomes: Outcomes, *, overlap: int) -> None:
        self._hosts = hosts
        self._check = check
        self._lag = 2 if overlap else 1  # rounds from a result to its apply
        self._decisions: dict[tuple[int, int], Decision] = {}  # by epoch and height of the results
        self.by_slots: dict[tuple[int, int], tuple[int, int]] = {}  # honest ones: (let in, ruled out by blooms alone)
        self._indexes: dict[int, dict[str, int]] = {}  # by epoch: member index by name
        self._signed: dict[tuple[str, int, int], bytes] = {}
        self._named: dict[tuple[str, int, int], tuple[str, frozenset[int]]] = {}  # the first client to name a set
        self._outcomes = outcomes

    # --- the record --------------------------------------------------------------------------------------

    def check_new_round(self, state: Coordinator, round_: Round) -> None:
        """I4: the number of witnesses and the quorum follow the rule; two different sets can never both reach it."""
        n = count_elected(state.config.witness_nodes, round_.electors.bit_count())
        q = count_needed(n)
        found = (round_.witnesses_expected, round_.quorum)
        self._check(found == (n, q) and 2 * q > n, "I4", f"{n} witnesses, of whom {q} must agree", found)

    def check_records(self, state: Coordinator, round_: Round) -> None:
        """W4: each member has at most one record; it names only members that took part, and is consistent."""
        members = [w.member for w in round_.witnesses]
        n = count_elected(state.config.witness_nodes, round_.electors.bit_count())
        few = len(members) == len(set(members)) <= n
        self._check(few, "W4", f"at most {n} records of round {round_.height}, one of each member", sorted(members))
        attested = get_round(state, round_.height - state.config.overlap)
        owed = 0 if attested is None or attested.flags & RoundFlag.DRAIN else attested.members
        for w in round_.witnesses[-1:]:  # the earlier ones were checked when they came
            known = not w.held & ~owed and not w.heard & ~round_.members and round_.members >> w.member & 1
            self._check(known, "W4", f"member {w.member} took part, and names who did", f"{w.held:#x}, {w.heard:#x}")
            whole = (w.results_root == ZERO32) is (w.held == 0) and (w.state_digest != ZERO32 or w.flags & _NO_DIGEST)
            self._check(whole, "W4", "a root where something is held, a digest unless it says none", w.flags)

    def check_agreed(self, state: Coordinator, round_: Round) -> None:
        """I4: q records back whatever is agreed; with fewer than q liars, one of them is honest."""
        q = self._count_needed(state, round_)
        if round_.flags & RoundFlag.ROOT:
            backers = [
                w for w in round_.witnesses if (w.results_root, w.held) == (round_.agreed_root, round_.agreed_held)
            ]
            self._check(len(backers) >= q, "I4", f"{q} records with the agreed root", len(backers))
            if self._check_honest(state, backers, "root"):
                self._check_signatures(state, round_)
        if round_.flags & RoundFlag.DIGEST:
            votes = [w for w in round_.witnesses if w.state_digest == round_.agreed_digest and not w.flags & _NO_DIGEST]
            self._check(len(votes) >= q, "I4", f"{q} records with the agreed digest", len(votes))
            self._check_honest(state, votes, "digest")

    def _check_honest(self, state: Coordinator, backers: list[WitnessRecord], what: str) -> bool:
        """I4: whether an honest witness backs it; only if q of the witnesses lie, nobody honest needs to."""
        liars = sum(self._find_honest(state, w.member) is None for w in state.current.witnesses)
        honest = any(self._find_honest(state, w.member) for w in backers)
        holds = honest or liars >= self._count_needed(state, state.current)
        self._check(holds, "I4", f"an honest witness behind the agreed {what}", "none")
        return honest

    def _check_signatures(self, state: Coordinator, round_: Round) -> None:
        """I9: each member of a set that an honest witness backs signed a result, and the root follows from those."""
        attested = round_.height - state.config.overlap
        found = get_round(state, attested)
        if found is None or found.batch_size < found.members.bit_count():
            return  # a member without a batch is in the set without a result (W1)
        commitments: dict[int, bytes] = {}
        owing = [m for m in get_members(round_.agreed_held) if m in compute_assignments(found, state.config)]
        for member in owing:
            name = self._find_honest(state, member)
            if name is not None:  # what a liar signed is unknown here
                signed = self._signed.get((name, state.progress.epoch, attested))
                self._check(signed, "I9", f"no result of {name} in round {attested}: it sent none", "it is agreed")
                commitments[member] = signed or ZERO32
        if len(commitments) < len(owing):
            return
        root = compute_results_root(state.progress.epoch, attested, round_.agreed_held, commitments)
        self._check(root == round_.agreed_root, "I9", "the root of what the members signed", round_.agreed_root.hex())

    def _find_honest(self, state: Coordinator, member: int) -> str | None:
        host = self._hosts.get(state.clients[member].p2p)
        return host.name if host is not None and host.is_honest else None

    def close(self, state: Coordinator, height: int) -> None:
        """A round has closed: its records decide for good."""
        deciding = get_round(state, height)
        attested = get_round(state, height - state.config.overlap)
        if deciding is None or attested is None or attested.flags & RoundFlag.DRAIN:
            return
        epoch = state.progress.epoch
        names = {member: self._find_honest(state, member) for member in range(len(state.clients))}
        self._indexes[epoch] = {name: member for member, name in names.items() if name is not None}
        root = self._find_root(state, deciding)
        agreed = (deciding.agreed_root, deciding.agreed_held) if deciding.flags & RoundFlag.ROOT else None
        self._check(root == agreed, "I4", f"the root and set of round {height} that its records have: {root}", agreed)
        self._decisions[epoch, attested.height] = self._decide(state, deciding, attested, root)

    def _count_needed(self, state: Coordinator, round_: Round) -> int:
        return count_needed(count_elected(state.config.witness_nodes, round_.electors.bit_count()))

    def _find_root(self, state: Coordinator, deciding: Round) -> tuple[bytes, int] | None:
        """W5: the root and set that a quorum of records has; an empty root never wins."""
        counts = Counter((w.results_root, w.held) for w in deciding.witnesses if w.results_root != ZERO32)
        best = max(counts, key=counts.__getitem__, default=None)
        return best if best is not None and counts[best] >= self._count_needed(state, deciding) else None

    def _decide(self, state: Coordinator, deciding: Round, attested: Round, root: tuple[bytes, int] | None) -> Decision:
        """C1, C2: an honest member is in the set exactly if the records list the one result that it signed."""
        must, may, ruled_out = set[int](), set[int](), 0
        q = self._count_needed(state, deciding)
        for member in compute_assignments(attested, state.config):  # only results of batches are in a set
            name = self._find_honest(state, member)
            holders = [w for w in deciding.witnesses if w.held >> member & 1]
            listed = root[1] >> member & 1 if root is not None else len(holders) >= q
            if not listed:
                continue
            if name is None:
                may.add(member)
                if root is not None:
                    must.add(member)
                continue
            signed = self._signed.get((name, state.progress.epoch, attested.height))
            if signed is not None and (root is not None or self._count_votes(deciding, holders, signed) >= q):
                may.add(member)
                if root is not None or self._is_listed(state, deciding, holders):
                    must.add(member)
            else:
                ruled_out += signed is not None
        if ruled_out or (must and root is None):
            self.by_slots[state.progress.epoch, attested.height] = (len(must), ruled_out)
        return Decision(frozenset(must), frozenset(must | may))

    def _is_listed(self, state: Coordinator, deciding: Round, holders: list[WitnessRecord]) -> bool:
        """Whether enough tables list an honest member's one result; what a liar's table lists is unknown here."""
        n = count_elected(state.config.witness_nodes, deciding.electors.bit_count())
        return sum(self._find_honest(state, w.member) is not None for w in holders) >= count_least_shown(n)

    def _count_votes(self, deciding: Round, holders: list[WitnessRecord], commitment: bytes) -> int:
        """How many blooms contain the commitment; tested bit by bit, independently of the production test."""
        found = 0
        for record in holders:
            places = compute_positions(deciding.seed, record.member, commitment)
            found += all(record.broadcast_bloom[place >> 3] >> (place & 7) & 1 for place in places)
        return found

    # --- what honest members log -------------------------------------------------------------------------

    def check_signed(self, host: ClientView, event: types.ResultSent) -> None:
        """M9: a member signs one result for a round, over all its lives."""
        place = (host.name, event.epoch, event.height)
        known = self._signed.setdefault(place, event.commitment)
        self._check(known == event.commitment, "R7", f"one result of {place}", "a second one was signed")

    def check_decided(self, host: ClientView, event: types.Decided) -> None:
        """I4: an honest member decides what the record says."""
        epoch, height = host.get_state().progress.epoch, event.height
        found = frozenset(event.members)
        self._check_set(host, "decided", (epoch, height), found)
        member = self._indexes.get(epoch, {}).get(host.name)
        self._outcomes.note(host, epoch, height, applied=member in found)

    def check_applied(self, host: ClientView, event: types.Applied) -> None:
        """I4: an honest member applies the set of the round that is due, and nothing else."""
        place = (event.epoch, event.height - self._lag)
        is_due = place in self._decisions
        self._check(
            event.update is is_due, "I4",
            f"{'an' if is_due else 'no'} update at height {event.height}", f"{host.name}: {event.update}",
        )  # fmt: skip
        self._check_set(host, "applied", place, frozenset(event.members))

    def _check_set(self, host: ClientView, what: str, place: tuple[int, int], found: frozenset[int]) -> None:
        decision = self._decisions.get(place, NOTHING)
        self._check(
            decision.allows(found), "I4", f"the set of round {place} is {decision}",
            f"{host.name} {what} {sorted(found)}",
        )  # fmt: skip
        name, first = self._named.setdefault((what, *place), (host.name, found))
        self._check(
            first == found, "I4", f"round {place}: {name} {what} {sorted(first)}", f"{host.name} {sorted(found)}"
        )
