"""When this client considers a round done, and its witness report of it (A1 to A3, W1 to W6)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from psyche.client.engine.records import PayloadStatus, RoundRecord, compute_pace, compute_patience
from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.decision import compute_followed
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.limits import FOLLOW_WINDOW_S, GOOD_STREAK_ROUNDS
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, ClientState, Coordinator, Round, RunState, WitnessFlag
from psyche.core.state.timeline import get_round

GOSSIP_BUDGET = 20  # messages per second of all members together; above that Ready is sent inside Finished
NEWCOMER_LATE_LIMIT = 2  # late results (H2) after which rounds stop waiting for a member on probation (A1)
_OPEN = (PayloadStatus.ANNOUNCED, PayloadStatus.FETCHING)
_MESSAGES = 3  # per member and round: Ready, Result, Finished


@dataclass(frozen=True, slots=True)
class RoundStanding:
    """Progress of a round, as this client sees it.

    `all_in`: every awaited member has finished and its payload is here. `due_in`: the announced payloads of awaited
    electors are here. `fetched_all`: every announced payload of the attested round is here. `patience_s`: seconds
    from the round's start after which the client stops waiting for others (None: not yet known, or never).
    `fetch_patience_s`: the same for payloads alone.
    """

    all_in: bool
    due_in: bool
    fetched_all: bool
    patience_s: float | None
    fetch_patience_s: float | None
    missing: int  # bitmap of the awaited members that are not in


def get_awaited(state: Coordinator, record: RoundRecord) -> list[int]:
    """The members that a round waits for (A1).

    Steady electors (if a common glitch leaves few of them, those without a miss instead), and electors heard in this
    round. Members on probation only until rounds have waited for them in vain, so that idle newcomers cost little.
    """
    present = get_members(record.members & ~record.left & ((1 << len(state.clients)) - 1))
    healthy = {m: state.clients[m] for m in present if state.clients[m].state is ClientState.HEALTHY}
    electors = {m: client for m, client in healthy.items() if record.electors >> m & 1}
    steady = {m for m, client in electors.items() if client.good_streak >= GOOD_STREAK_ROUNDS}
    if 2 * len(steady) < record.electors.bit_count():
        steady = {m for m, client in electors.items() if client.missed == 0}
    heard = set(get_members(record.heard))
    newcomers = healthy.keys() - electors.keys()
    tried = {m for m in newcomers if healthy[m].late < NEWCOMER_LATE_LIMIT and (m in heard or healthy[m].missed == 0)}
    return sorted(steady | heard & electors.keys() | tried)


def get_pacing(record: RoundRecord, awaited: Iterable[int]) -> list[int]:
    """The awaited electors: only they count for t_q (A2). Otherwise idle newcomers would set the pace."""
    return [m for m in awaited if record.electors >> m & 1]


def compute_standing(state: Coordinator, record: RoundRecord, attested: RoundRecord | None) -> RoundStanding:
    awaited = get_awaited(state, record)
    announced = 0 if attested is None else get_announced(attested)
    due = [m for m in awaited if announced >> m & 1]
    lacking = compute_bits(m for m in awaited if m not in record.finished_at)
    # nor wait for payloads that were refused, or are held under two commitments
    unsettled = 0 if attested is None else announced & ~_get_settled(attested)
    unfetched = compute_bits(due) & unsettled
    straggler = state.config.straggler_percent
    held_at = {} if attested is None else attested.get_held_times()
    fetch_pace = compute_pace(get_pacing(record, due), held_at, record.started_at)
    finish_pace = compute_pace(get_pacing(record, awaited), record.finished_at, record.started_at)
    return RoundStanding(
        all_in=not lacking and not unfetched,
        due_in=not unfetched & record.electors,
        fetched_all=not unsettled,
        patience_s=compute_patience((fetch_pace, finish_pace), straggler),
        fetch_patience_s=compute_patience((fetch_pace,), straggler),
        missing=lacking | unfetched,
    )


def compute_work_deadline(state: Coordinator, record: RoundRecord, now: float) -> float:
    """When a member that does local steps ends its round, so that those who wait for it get what it has done (LS9)."""
    if state.run_state is not RunState.ROUND_TRAIN:
        return now
    pace = compute_pace(get_pacing(record, get_awaited(state, record)), record.finished_at, record.started_at)
    patience = compute_patience((pace,), state.config.straggler_percent)
    return math.inf if pace is None or patience is None else record.started_at + (pace + patience) / 2


def get_announced(attested: RoundRecord) -> int:
    """Bitmap of members whose Result of the attested round is known, or seen by more than a third of electors (R5).

    No payload is expected from the others: commitments must be out before the next round begins.
    """
    seen = get_members(attested.get_widely_seen())
    owing = attested.assignments.keys() | attested.reporters
    return compute_bits(attested.results) | compute_bits(m for m in seen if m in owing)


def _get_settled(attested: RoundRecord) -> int:
    results = attested.results.items()
    return compute_bits(m for m, known in results if not any(result.status in _OPEN for result in known.values()))


def is_over_gossip_budget(state: Coordinator) -> bool:
    """Whether three messages per member exceed the budget, if this round lasts as long as the previous one.

    Computed from the record alone, so that all members come to the same answer.
    """
    current = state.current
    last = get_round(state, current.height - 1) if current.height else None
    if last is None:
        return False
    seconds = max(1, current.started_unix - last.started_unix)
    return _MESSAGES * current.members.bit_count() > GOSSIP_BUDGET * seconds


@dataclass(frozen=True, slots=True)
class Report:
    held: int
    root: bytes
    commitments: dict[int, bytes]


def compute_report(attested: RoundRecord | None, held: int | None = None) -> Report:
    """Compute the report of the attested round; `held` restricts it to these members (W6 b)."""
    if attested is None:
        return Report(0, ZERO32, {})
    bits = attested.compute_held() if held is None else held & attested.compute_held()
    commitments = attested.get_commitments(bits)
    root = compute_results_root(attested.epoch, attested.height, bits, commitments) if bits else ZERO32
    return Report(bits, root, commitments)


def find_followed(reporting: Round, attested: RoundRecord | None, now: float) -> Report | None:
    """A report already on record in the running round that this client can repeat as its own (W6 b)."""
    # with nothing attested all honest reports are alike: any record shows that others are done
    own, records = compute_report(attested), reporting.witnesses
    if attested is None:
        return own if records else None
    times = {**attested.finished_at, **attested.get_held_times()}
    recent = compute_bits(m for m in get_members(own.held) if now - times.get(m, now) <= FOLLOW_WINDOW_S)
    n = reporting.witnesses_expected
    held = compute_followed(records, n, attested.epoch, attested.height, own.held, own.commitments, recent)
    return None if held is None else compute_report(attested, held)


def build_witness(
    record: RoundRecord, member: int, report: Report, *, digest: bytes | None, is_full: bool, is_complete: bool,
    now: float, metadata: bytes,
) -> WitnessMessage:  # fmt: skip
    """Build the witness message of this round; `digest` None: this client vouches for no digest (S4)."""
    flags = WitnessFlag(0)
    if is_complete:
        flags |= WitnessFlag.COMPLETE
    if digest is None:
        flags |= WitnessFlag.NO_DIGEST
    elif is_full:
        flags |= WitnessFlag.FULL_DIGEST
    bloom = compute_bloom(record.seed, member, report.commitments.values()) if report.held else bytes(320)
    return WitnessMessage(
        epoch=record.epoch,
        height=record.height,
        member=member,
        flags=flags,
        at_s=max(0, min(int(now - record.started_at), 2**32 - 1)),
        held=report.held,
        heard=record.heard & record.members,
        missing=0,
        broadcast_bloom=bloom,
        results_root=report.root,
        state_digest=ZERO32 if digest is None else digest,
        metadata=metadata,
    )
