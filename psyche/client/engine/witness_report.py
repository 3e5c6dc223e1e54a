"""When a round is done for this client, and what it reports of it (A1 to A3, W1 to W6)."""

from collections.abc import Iterable
from dataclasses import dataclass

from psyche.client.engine.records import PayloadStatus, RoundRecord, compute_pace, compute_patience
from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.decision import compute_followed
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.limits import FOLLOW_WINDOW_S, GOOD_STREAK_ROUNDS
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, ClientState, Coordinator, Round, WitnessFlag
from psyche.core.state.timeline import get_round

GOSSIP_BUDGET = 20  # messages a second that all members together send at most; above that Ready rides in Finished
NEWCOMER_LATE_LIMIT = 2  # latenesses (H2): from then on no round waits for who is on probation (A1)
_OPEN = (PayloadStatus.ANNOUNCED, PayloadStatus.FETCHING)
_MESSAGES = 3  # of a member in a round: Ready, Result, Finished


@dataclass(frozen=True, slots=True)
class RoundStanding:
    """How a round stands for those who wait.

    `all_in`: every awaited member is finished and fetched. `due_in`: what is due of awaited electors is in.
    `fetched_all`: every announced payload of the attested round is in. `patience_s`: seconds from the round's start
    after which nobody else is waited for (None: not yet known, or never). `fetch_patience_s`: the same for payloads
    alone.
    """

    all_in: bool
    due_in: bool
    fetched_all: bool
    patience_s: float | None
    fetch_patience_s: float | None
    missing: int  # bitmap: who is not


def get_awaited(state: Coordinator, record: RoundRecord) -> list[int]:
    """Whom a round waits for (A1).

    Electors that are steady, unless a common glitch empties the set, and those that are heard in this round. Members on
    probation until rounds have waited for them in vain, so that strangers that do nothing cost little.
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
    """Of whom t_q is counted: the electors among those (A2). Else strangers that do nothing would set the pace."""
    return [m for m in awaited if record.electors >> m & 1]


def compute_standing(state: Coordinator, record: RoundRecord, attested: RoundRecord | None) -> RoundStanding:
    """How far the awaited members of the running round are (A2)."""
    awaited = get_awaited(state, record)
    announced = 0 if attested is None else get_announced(attested)
    due = [m for m in awaited if announced >> m & 1]
    lacking = compute_bits(m for m in awaited if m not in record.finished_at)
    # what was fetched and refused, or comes under two commitments, is not waited for either
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


def get_announced(attested: RoundRecord) -> int:
    """Members whose Result of the attested round is known, or seen by more than a third of the members (R5).

    Who announced nothing owes this client nothing more: commitments are out before the next round begins.
    """
    seen = get_members(attested.get_widely_seen())
    return compute_bits(attested.results) | compute_bits(m for m in seen if m in attested.assignments)


def _get_settled(attested: RoundRecord) -> int:
    """Members of whom no payload is still to come."""
    settled = 0
    for member, results in attested.results.items():
        for result in results.values():
            if result.status in _OPEN:
                break
        else:
            settled |= 1 << member
    return settled


def is_over_gossip_budget(state: Coordinator) -> bool:
    """Whether three messages of each member are over the budget, if this round is as long as the last one.

    The record says so, and everybody reads it alike.
    """
    current = state.current
    last = get_round(state, current.height - 1) if current.height else None
    if last is None:
        return False
    seconds = max(1, current.started_unix - last.started_unix)
    return _MESSAGES * current.members.bit_count() > GOSSIP_BUDGET * seconds


@dataclass(frozen=True, slots=True)
class Report:
    """What this client would report now of the attested round."""

    held: int
    root: bytes
    commitments: dict[int, bytes]


def compute_report(attested: RoundRecord | None, held: int | None = None) -> Report:
    """held, root and commitments of the attested round; `held` restricts it (W6 b)."""
    if attested is None:
        return Report(0, ZERO32, {})
    bits = attested.compute_held() if held is None else held & attested.compute_held()
    commitments = attested.get_commitments(bits)
    root = compute_results_root(attested.epoch, attested.height, bits, commitments) if bits else ZERO32
    return Report(bits, root, commitments)


def find_followed(reporting: Round, attested: RoundRecord | None, now: float) -> Report | None:
    """A report on record of the running round that this client can make its own (W6 b)."""
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
    """The witness message of this round; `digest` None says that there is none to vouch for (S4)."""
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
