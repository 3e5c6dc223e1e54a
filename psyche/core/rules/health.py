"""Health: which members are absent, late or good, and the consequences (H1 to H5); credits and earnings (H2, M7)."""

from dataclasses import dataclass

from psyche.core.committee.elections import is_witness
from psyche.core.rules.membership import process_vacancies
from psyche.core.rules.probation import process_fruitless_epoch, process_proof, process_wait
from psyche.core.state.bits import compute_at_least, compute_bits, get_members
from psyche.core.state.errors import (
    Halted,
    InvalidHealthCheck,
    InvalidRunState,
    NoActiveRound,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.limits import LONGEST_STRIKE_EPOCHS, U8_MAX, U64_MAX, WITNESS_SILENCE_LIMIT
from psyche.core.state.messages import Context, HealthCheck
from psyche.core.state.roster import compute_exit_height, find_slot, get_existing, get_healthy, get_slot
from psyche.core.state.state import Client, ClientState, Coordinator, Round, RoundFlag, Slot
from psyche.core.state.timeline import get_attested_round, get_round


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of a round's records on its Healthy members, as bitmaps (H1)."""

    absent: int
    late: int
    good: int
    heard: int


def compute_judgement(state: Coordinator, attested: Round | None) -> Judgement:
    """Judge the members of the closing round by its records (H1).

    Fewer than q lying witnesses cannot accuse a member; more than n - q honest ones protect it.
    """
    round_ = state.current
    q, records = round_.quorum, round_.witnesses
    judged = round_.members & get_healthy(state)
    heard = compute_at_least((r.heard for r in records), q, judged)
    absent = compute_at_least((~r.heard for r in records), q, judged)
    # between q that heard a member and q that did not, the records say nothing about it, and neither does the close
    present = judged & ~absent
    if attested is None:
        return Judgement(absent, late=0, good=0, heard=heard)
    due = present & attested.members  # W1: everybody owes something, a verifier its report
    late = compute_at_least((~r.held for r in records), q, due)
    good = compute_at_least((r.held for r in records), q, due)
    return Judgement(absent, late, good, heard)


def process_health(state: Coordinator) -> bool:
    """Count absences and late results and drop members with too many; return whether H3 prevented the drops.

    H3: if more than half of the electors were to be dropped at one close, nobody is and the epoch stops.
    """
    judgement = compute_judgement(state, get_attested_round(state))
    judged = state.current.members & get_healthy(state)
    for member in get_members(judged & compute_bits(record.member for record in state.current.witnesses)):
        # H4: reset here and not when the record arrives; accusations from the round before may come until the close
        state.clients[member].witness_missed = 0
    # H3 asks who would go after all counts are taken: dropping one by one would depend on the order of members
    doomed = [m for m in get_members(judged) if _process_counts(state, m, judgement)]
    electors = judged & state.current.electors
    if 2 * (compute_bits(doomed) & electors).bit_count() > electors.bit_count():
        return True
    for member in doomed:
        process_drop(state, member, strike=bool(judgement.late >> member & 1))
    return False


def _process_counts(state: Coordinator, member: int, judgement: Judgement) -> bool:
    """Update the counts of H2 and the streak of A1; return whether the member is to be dropped."""
    client, config = state.clients[member], state.config
    if judgement.absent >> member & 1:
        client.missed, client.good_streak = min(client.missed + 1, U8_MAX), 0
        return client.missed >= config.evict_after
    if judgement.heard >> member & 1:
        client.good_streak = min(client.good_streak + 1, U8_MAX)
    if judgement.late >> member & 1:
        # H2: it was heard, so it has not crashed; latenesses add up until it delivers once
        client.missed, client.late = 0, min(client.late + 1, U8_MAX)
        return client.late >= config.late_limit
    if judgement.good >> member & 1:
        client.missed = client.late = 0
    return False


def process_drop(state: Coordinator, member: int, *, strike: bool) -> None:
    """Drop a member in the running round; `strike` is set unless it was merely absent (H5)."""
    client = state.clients[member]
    client.state = ClientState.DROPPED
    client.exited_height = compute_exit_height(state)
    if strike:
        process_strike(get_slot(state, client), state.registry.next_active)


def process_strike(slot: Slot, next_active: int) -> None:
    """Add a strike; the slot waits 1, 2, then 4 epochs (H5)."""
    slot.strikes = min(slot.strikes + 1, U8_MAX)
    process_wait(slot, next_active, slot.strikes, LONGEST_STRIKE_EPOCHS)


def process_strike_clearing(slot: Slot, client: Client) -> None:
    """Clear the strikes after a good epoch (H5): a member to the end, credited, with no open misses or late results."""
    whole = client.state is ClientState.HEALTHY and client.joined_height == 0
    if whole and client.credits and not client.missed and not client.late:
        slot.strikes = slot.until = 0


def process_health_check(state: Coordinator, context: Context, message: HealthCheck) -> bool:
    """Count a silent witness of the previous round; at the second count with no record between, drop it (H4).

    `message.height` is the height of the running round, as in every message (T7).
    """
    previous = check_accusation(state, context.sender, message)
    client = state.clients[message.member]
    client.witness_missed += 1
    client.witness_checked_height = previous.height + 1  # never 0, so that 0 stays "never checked"
    if client.witness_missed >= WITNESS_SILENCE_LIMIT:
        process_drop(state, message.member, strike=True)
    return True


def check_accusation(state: Coordinator, sender: bytes, message: HealthCheck) -> Round:
    """Check an accusation against the record; return the round in which the witness was silent (H4)."""
    epoch, height, member = message.epoch, message.height, message.member
    if state.halted:
        raise Halted("no round is running: the run is halted")
    if not state.in_round:
        raise InvalidRunState(f"health checks belong to rounds, not to {state.run_state.name}", "H4")
    if (epoch, height) != (state.progress.epoch, state.current.height):
        raise WrongRound(f"health check of ({epoch}, {height}): that round has passed or has not begun", "T7")
    if find_slot(state, sender) is None:
        raise UnknownMember("the sender of the health check holds no slot")
    client = get_existing(state, member)
    previous = get_round(state, height - 1) if height else None
    if previous is None:
        raise NoActiveRound("there is no round before the running one", "H4")
    if problem := _find_alibi(client, previous, member):
        raise InvalidHealthCheck(f"member {member}: {problem}", "H4")
    return previous


def _find_alibi(client: Client, previous: Round, member: int) -> str:
    """The reason why the member cannot be accused; empty if it can."""
    heard = sum(r.heard >> member & 1 for r in previous.witnesses)
    alibis = (
        (client.state is not ClientState.HEALTHY, "it is no longer Healthy"),
        (client.witness_checked_height == previous.height + 1, "it was counted in this round already"),
        # a round closed early may have cut off honest witnesses
        (not previous.flags & RoundFlag.BY_TIMEOUT, "the previous round was not closed by time-out"),
        (any(r.member == member for r in previous.witnesses), "its witness record of the previous round is there"),
        # a member that nobody heard has crashed, and H2 covers that
        (heard <= previous.witnesses_expected - previous.quorum, "too few witnesses heard it"),
        (not is_witness(previous, member), "it was not an elected witness of the previous round"),
    )
    return next((problem for applies, problem in alibis if applies), "")


def process_credits(state: Coordinator) -> None:
    """At close: give one credit to each member of agreed_held, even if it has left since (H2).

    A round closes once, so a batch is credited once. Ejected members get no credit (R7).
    """
    for member in get_members(state.current.agreed_held):
        client = state.clients[member]
        # M7: who left after its work was done has earned it all the same; an ejected one has not (R7)
        if client.state is not ClientState.EJECTED:
            client.credits += 1
            state.epoch.credit_total += 1
            process_proof(get_slot(state, client), client)


def process_settlement(state: Coordinator) -> None:
    """At the end of Cooldown: pay credits, clear strikes, let fruitless newcomers wait, free the slots of leavers.

    Every member that is not ejected earns (pool div credit_total) per credit; the remainder carries over (M7). A
    good epoch clears a member's strikes (H5). A newcomer whose epoch was fruitless waits (M10).
    """
    registry, epoch = state.registry, state.epoch
    pool = min(registry.current_earning_rate + registry.carry, U64_MAX)
    share = pool // max(1, epoch.credit_total)
    registry.carry = pool - share * epoch.credit_total
    for client in state.clients:
        slot = get_slot(state, client)
        if client.state is ClientState.EJECTED:
            slot.slashed = min(slot.slashed + registry.current_slashing_rate, U64_MAX)
            continue
        slot.earned = min(slot.earned + share * client.credits, U64_MAX)
        process_strike_clearing(slot, client)
        process_fruitless_epoch(slot, client, registry.next_active, is_credited=epoch.credit_total > 0)
    process_vacancies(state)
