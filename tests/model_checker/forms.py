"""Copies of a state, and its form: what of it can still matter. Two states of one form are one to the search.

What a form leaves out, and why nothing is lost by that:

- **Names of members.** The core compares indexes of slots and members in elections and assignments alone,
  and there by the seed. So honest members may change places (*symmetry*): a form lists members in an order
  of its own, and counts as equal what differs by a renaming that keeps the faulty member apart.
- **Seeds, mixes, entropy, nonces.** In a small world every elector is elected and everybody trains, so the seed
  decides nothing that a transition reads; `process_normalization` makes it zero.
- **Times.** T1 reads differences to the start of the phase only, and only against deadlines. A form keeps
  the elapsed time of the phase, which takes no other values than the deadlines of `World.get_deadlines`.
- **Who sent which record.** A record is counted by its content (W5, C2, H1); whose it is matters only in
  that nobody reports twice. So a form has the senders and, apart from them, the contents, sorted.
- **What is decided.** Once a root (a digest) is agreed, no root (no digest) of a record is read again; from
  RoundWitness on `complete` is not; when the round has closed nothing of it is, but for what H4 asks of it:
  whether it closed by time-out, who reported, and whom more than n - q heard.
- **What no transition reads.** `good_streak` (clients do, A1), `exited_height` but for whether it is of the next
  round (E1), `stop_reason`, `joined_unix`, `started_unix`, counters of members that are gone, and rounds older than
  the last one.
- **What none will read.** Credits where nothing is paid, and open latenesses, count only for a Healthy
  member with strikes (H5); in the last drain round nothing is due any more, so nobody gets later (H1) and no round is
  void (C4); where a world has no accusations, H4 has nothing to count, and where it names no
  checkpoints, S10 does not ask for the members of the last epoch.
"""

import hashlib
import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import permutations, product
from operator import attrgetter
from typing import Any, Final, TypeVar

from psyche.core.rules.timing import get_duration_s
from psyche.core.state.enums import ClientFlag, ClientState, RoundFlag, RunState, SlotState, WitnessFlag
from psyche.core.state.limits import DIGEST_LIMIT_ROUNDS, STORED_ROUNDS, VOID_LIMIT_ROUNDS
from psyche.core.state.state import (
    ZERO32,
    Challenge,
    Client,
    Coordinator,
    Epoch,
    Mark,
    Model,
    Progress,
    Registry,
    Round,
    Slot,
    StartCandidate,
    WitnessRecord,
)
from psyche.core.state.timeline import is_last_drain
from psyche.testing.builders import build_hash

T = TypeVar("T")

DIGESTS: Final = {"X": build_hash("digest", "X"), "Y": build_hash("digest", "Y"), "-": ZERO32}
ROOTS: Final = {"A": build_hash("root", "A"), "B": build_hash("root", "B"), "-": ZERO32}
_SYMBOLS: Final = {DIGESTS["X"]: 1, DIGESTS["Y"]: 2, ROOTS["A"]: 1, ROOTS["B"]: 2, ZERO32: 0}
_EMPTY: Final = Round()
_CANDIDATE: Final = int(ClientFlag.CANDIDATE_LOW | ClientFlag.CANDIDATE_HIGH)
_CANDIDATE_SHIFT: Final = int(ClientFlag.CANDIDATE_LOW).bit_length() - 1
_AGREED: Final = int(RoundFlag.ROOT | RoundFlag.DIGEST | RoundFlag.FULL | RoundFlag.DRAIN)
_COMPLETE, _ROOT, _DIGEST = int(WitnessFlag.COMPLETE), int(RoundFlag.ROOT), int(RoundFlag.DIGEST)

Form = tuple[Any, ...]


def _build_copier(cls: type[T]) -> Callable[[T], T]:
    """Copies the attributes of a dataclass, not what they hold."""
    get = attrgetter(*(field.name for field in fields(cls)))  # pyright: ignore[reportArgumentType]
    return lambda value: cls(*get(value))


_copy_state, _copy_model = _build_copier(Coordinator), _build_copier(Model)
_copy_progress, _copy_epoch = _build_copier(Progress), _build_copier(Epoch)
_copy_candidate, _copy_round = _build_copier(StartCandidate), _build_copier(Round)
_copy_challenge = _build_copier(Challenge)
_copy_client, _copy_registry, _copy_slot = _build_copier(Client), _build_copier(Registry), _build_copier(Slot)


def build_copy(state: Coordinator) -> Coordinator:
    """A state that can be changed without changing this one.

    They share what no transition changes in place: records, marks, checkpoints, the configuration and
    the rounds that are over. The search watches that states it has left behind stay as they were.
    """
    copied = _copy_state(state)
    copied.model = _copy_model(state.model)
    copied.model.extra_checkpoints = [*state.model.extra_checkpoints]
    copied.progress, copied.epoch = _copy_progress(state.progress), _copy_epoch(state.epoch)
    copied.epoch.start_candidates = [_copy_candidate(c) for c in state.epoch.start_candidates]
    copied.rounds = [*state.rounds]
    for back in (0, 1):  # verifiers of the round before may still report
        place = (state.epoch.rounds_head - back) % STORED_ROUNDS
        round_ = copied.rounds[place] = _copy_round(state.rounds[place])
        round_.witnesses, round_.audits = [*round_.witnesses], [*round_.audits]
    copied.challenges = [_copy_challenge(one) for one in state.challenges]
    copied.clients = [_copy_client(c) for c in state.clients]
    copied.registry = _copy_registry(state.registry)
    copied.registry.slots = [_copy_slot(s) for s in state.registry.slots]
    return copied


def process_normalization(state: Coordinator) -> None:
    """Make zero what decides nothing: seeds, mixes, and rounds before the last one (see above)."""
    head = state.epoch.rounds_head % STORED_ROUNDS
    height = state.current.height
    for place, round_ in enumerate(state.rounds):
        if place != head and not (round_.members and round_.height == height - 1):
            state.rounds[place] = _EMPTY
    current = state.current
    current.seed = current.mix = state.last_seed = ZERO32
    current.random_seed = 0


def compute_key(form: Form) -> int:
    """A number of 128 bits for a form: two forms share one with a chance of about 1e-24 among ten million."""
    return int.from_bytes(hashlib.blake2b(marshal.dumps(form, 2), digest_size=16).digest(), "little")


@dataclass(frozen=True)
class Lens:
    """What a form of one world looks at.

    `faulty` maps the signers that must be told apart from the others to numbers above 0; `accuses` says
    whether anybody is ever accused (H4), `names_sources` whether anybody names checkpoints (S10).
    """

    faulty: Mapping[bytes, int]
    accuses: bool = True
    names_sources: bool = True


class _View:
    """A state with what its form asks more than once."""

    __slots__ = (
        "accusable",
        "current",
        "in_epoch",
        "in_round",
        "is_due",
        "last",
        "lens",
        "paying",
        "run_state",
        "state",
    )

    def __init__(self, state: Coordinator, lens: Lens) -> None:
        self.state, self.lens = state, lens
        self.run_state, self.current = state.run_state, state.current
        self.in_round = self.run_state in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
        self.in_epoch = self.in_round or self.run_state in (RunState.WARMUP, RunState.COOLDOWN)
        registry = state.registry
        self.paying = bool(registry.current_earning_rate or registry.carry or registry.future_earning_rate)
        # from the last drain round on nothing is attested any more in this epoch
        self.is_due = not is_last_drain(state.config, state.epoch, self.current.height)
        self.last = self._get_last_round() if self.in_round else None
        self.accusable = _get_accusable(state, self.last) if lens.accuses and self.last is not None else 0

    def _get_last_round(self) -> Round | None:
        height = self.current.height - 1
        return next((r for r in self.state.rounds if r.members and r.height == height), None) if height >= 0 else None


def compute_form(state: Coordinator, now: int, lens: Lens) -> Form:
    """What of the state matters, in an order of members that does not depend on their names."""
    view = _View(state, lens)
    records = view.current.witnesses if view.in_round else []
    rows = _build_rows(view, records)
    epoch_time = state.config.epoch_time
    is_over = bool(epoch_time) and now - state.epoch.start_timestamp >= epoch_time
    common = (*_build_head(view, now), is_over, *_build_round(view, records))
    return (*common, *min(_arrange(view, rows, records)))


def _build_head(view: _View, now: int) -> Form:
    state, epoch, progress = view.state, view.state.epoch, view.state.progress
    longest_s = get_duration_s(state.config, view.run_state) or 0  # after it nothing depends on how long after
    elapsed_s = min(max(0, now - state.state_start_unix), longest_s)
    return (
        int(view.run_state),
        elapsed_s,
        bool(state.pending_pause),
        (progress.epoch, progress.step, progress.epoch_start_data_index),
        _build_mark(state.certified),
        _build_mark(state.checkpoint),
        (epoch.warmup_failures, bool(epoch.cold_start), epoch.start_step),
        _build_warmup(state, longest_s) if view.run_state is RunState.WARMUP else (),
        _build_credits(view),
        (state.registry.carry, state.registry.current_earning_rate, state.registry.future_earning_rate),
        (state.model.checkpoint.name, *(c.name for c in state.model.extra_checkpoints)),
    )


def _build_credits(view: _View) -> int:
    """What credits pay, or at least whether there are any (M10)."""
    total = view.state.epoch.credit_total if view.in_epoch else 0
    return total if view.paying else min(total, 1)


def _build_warmup(state: Coordinator, longest_s: int) -> Form:
    quorum_unix = state.epoch.ready_quorum_unix
    quorum_after = quorum_unix and 1 + min(quorum_unix - state.state_start_unix, longest_s)
    return quorum_after, bool(state.current.entropy_slot)


def _build_mark(mark: Mark) -> Form:
    return _SYMBOLS[mark.digest], mark.epoch, mark.step, mark.data_index


def _build_round(view: _View, records: Sequence[WitnessRecord]) -> Form:
    round_, epoch = view.current, view.state.epoch
    if view.run_state is RunState.COOLDOWN:
        return (round_.height,)
    if not view.in_round:
        return ()
    training = view.run_state is RunState.ROUND_TRAIN
    flags = int(round_.flags) & _AGREED
    agreed = _SYMBOLS[round_.agreed_digest] if flags & _DIGEST and not view.is_due else 0
    complete = sum(int(r.flags) & _COMPLETE for r in records) if training else 0
    void = min(epoch.void_streak, VOID_LIMIT_ROUNDS) if view.is_due else 0
    streaks = epoch.drain_from_height, void, min(epoch.digest_streak, DIGEST_LIMIT_ROUNDS)
    return (round_.height, round_.data_index, round_.batch_size, flags, agreed, complete, streaks)


# --- one row for each slot


def _build_rows(view: _View, records: Sequence[WitnessRecord]) -> list[tuple[Form, int]]:
    """What belongs to each slot, and its member (or -1)."""
    state = view.state
    slots = state.registry.slots
    are_members = view.in_epoch or view.lens.names_sources  # S10 asks who was a member of an epoch that is over
    member_of = {client.slot: member for member, client in enumerate(state.clients)} if are_members else {}
    sent = {record.member for record in records}
    rows: list[tuple[Form, int]] = []
    for number, slot in enumerate(slots):
        member = member_of.get(number, -1)
        row: Form = (view.lens.faulty.get(slot.signer, 0), _build_slot(state, slot))
        if member >= 0:
            client = _build_client(view, state.clients[member], slot.strikes > 0)
            row += (client, _build_part(view, member) if view.in_round else (), member in sent)
        rows.append((row, member))
    return rows


def _build_slot(state: Coordinator, slot: Slot) -> Form:
    if slot.state is SlotState.FREE:
        return ()
    next_active = state.registry.next_active
    waits = max(0, slot.until - next_active)
    known = slot.strikes, bool(slot.proven), slot.fruitless
    return int(slot.state), max(-1, slot.active - next_active), waits, *known, slot.earned, slot.slashed


def _build_client(view: _View, client: Client, is_struck: bool) -> Form:
    if not view.in_epoch:
        return (client.state is ClientState.EJECTED,)
    paid = client.credits if view.paying else 0
    was_ready = bool(client.flags & ClientFlag.READY)  # M10 asks when the epoch is over
    if client.state is not ClientState.HEALTHY:
        is_drawn = view.run_state is RunState.ROUND_WITNESS and client.exited_height > view.current.height
        return int(client.state), paid, was_ready, is_drawn, _build_shown(view, client)
    shown = _build_shown(view, client)
    late = client.late if is_struck or view.is_due else 0
    cleared = int(is_struck and client.credits > 0)
    silences = client.witness_missed if view.lens.accuses else 0
    return 0, paid, cleared, client.missed, late, silences, shown, bool(client.flags & ClientFlag.PROBATION)


def _build_shown(view: _View, client: Client) -> int:
    """Which weights a ready member has shown in this Warmup."""
    if view.run_state is not RunState.WARMUP or not client.flags & ClientFlag.READY:
        return 0
    candidates = view.state.epoch.start_candidates
    candidate = (int(client.flags) & _CANDIDATE) >> _CANDIDATE_SHIFT
    return 1 + (_SYMBOLS[candidates[candidate].digest] if candidates else 0)


def _build_part(view: _View, member: int) -> Form:
    """Which of the running round's bitmaps name the member; the last round's too, for the attested one is there."""
    round_ = view.current
    last = view.last.members >> member & 1 if view.last is not None else 0
    agreed = int(round_.flags) & _ROOT and round_.agreed_held >> member & 1
    electors = round_.electors >> member & 1
    return round_.members >> member & 1, electors, last, agreed, view.accusable >> member & 1


def _get_accusable(state: Coordinator, last: Round) -> int:
    """Bitmap of the members that H4 can count now."""
    if not last.flags & RoundFlag.BY_TIMEOUT:
        return 0
    bits = last.electors & ~sum(1 << record.member for record in last.witnesses)
    for member, client in enumerate(state.clients):
        heard = sum(record.heard >> member & 1 for record in last.witnesses)
        counted = client.witness_checked_height == last.height + 1
        if counted or heard <= last.witnesses_expected - last.quorum or client.state is not ClientState.HEALTHY:
            bits &= ~(1 << member)
    return bits


# --- an order of the rows that does not depend on names


def _arrange(view: _View, rows: Sequence[tuple[Form, int]], records: Sequence[WitnessRecord]) -> Iterator[Form]:
    """The rows and the records' contents, for each order of the rows that may be the least one.

    Rows are sorted by what they hold and by how often the records name them. Rows that are still equal
    and that no record tells apart may stand in any order; only the others are tried in all orders.
    """
    columns = {m: [(r.held >> m & 1, r.heard >> m & 1) for r in records] if m >= 0 else [] for _, m in rows}
    signed = sorted(((row, sorted(columns[m])), m) for row, m in rows)
    shown = tuple(row for (row, _), _ in signed)
    if not records:
        yield shown, ()
        return
    groups: list[list[list[int]]] = []
    start = 0
    while start < len(signed):
        end = start + 1
        while end < len(signed) and signed[end][0] == signed[start][0]:
            end += 1
        members = [m for _, m in signed[start:end]]
        alike = all(columns[m] == columns[members[0]] for m in members)
        groups.append([members] if alike else [list(order) for order in permutations(members)])
        start = end
    for chosen in product(*groups):
        yield shown, _build_contents(view, [m for group in chosen for m in group], records)


def _build_contents(view: _View, order: Sequence[int], records: Sequence[WitnessRecord]) -> Form:
    flags = int(view.current.flags)
    contents: list[Form] = []
    for record in records:
        held, heard = (
            sum((bits >> m & 1) << place for place, m in enumerate(order) if m >= 0)
            for bits in (record.held, record.heard)
        )
        root = 0 if flags & _ROOT else _SYMBOLS[record.results_root]
        digest = (0, 0) if flags & _DIGEST else (_SYMBOLS[record.state_digest], int(record.flags) & ~_COMPLETE)
        contents.append((held, heard, root, digest))
    return tuple(sorted(contents))
