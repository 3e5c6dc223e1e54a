"""The work of a tick in each phase: one function per phase; each returns whether it changed anything."""

from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.rules.audits import process_adjournment, process_deadlines
from psyche.core.rules.formation import (
    get_joined,
    process_abandonment,
    process_epoch_start,
    process_formation,
    process_warmup_failure,
)
from psyche.core.rules.health import process_credits, process_health, process_settlement
from psyche.core.rules.readiness import get_ready, get_starters, is_armed, is_start_due
from psyche.core.rules.rounds import get_draw, process_arming, process_next_round
from psyche.core.rules.stopping import Turn, compute_turn, process_cooldown_start, process_epoch_end
from psyche.core.rules.tally import is_digest_agreed, is_round_agreed, process_slots, process_streaks
from psyche.core.rules.timing import is_timed_out, process_state_change
from psyche.core.state.limits import U32_MAX
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Coordinator, RoundFlag, RunState
from psyche.core.state.timeline import get_attested_round, is_drain


def process_waiting_for_members(state: Coordinator, now: int, _slot: int, _entropy: Entropy) -> bool:
    """Form an epoch when enough slots have joined and the extra time is over (M3)."""
    joined = get_joined(state, now)
    is_over = is_timed_out(now, state.state_start_unix, state.config.waiting_for_members_extra_time)
    if len(joined) < state.config.init_min_clients or not is_over:
        return False
    process_formation(state, now, joined)
    return True


def process_warmup(state: Coordinator, now: int, slot: int, entropy: Entropy) -> bool:
    """Start round 0, or give up the epoch (T8). The tick that finds the start due arms the seed (E1)."""
    starters = get_starters(state)
    if is_armed(state):
        return _process_armed_start(state, now, slot, entropy, starters)
    if get_healthy(state).bit_count() < state.config.min_clients:
        process_abandonment(state, now)
        return True
    if is_start_due(state, now, starters):
        return process_arming(state, slot)
    is_hopeless = get_ready(state) == get_healthy(state)  # no ready message can come any more
    if is_hopeless or is_timed_out(now, state.state_start_unix, state.config.warmup_time):
        process_warmup_failure(state, now, starters)
        return True
    return False


def _process_armed_start(state: Coordinator, now: int, slot: int, entropy: Entropy, starters: int) -> bool:
    """Begin round 0 once the entropy is there, whoever has left since the slot was armed (E1, E2).

    If departures could call the start off, members that know the seed could have another one drawn by leaving.
    """
    if not starters & get_healthy(state):
        process_abandonment(state, now)
        return True
    if entropy is EXPIRED:
        return process_arming(state, slot)
    if entropy is None:
        return False
    process_epoch_start(state, now, entropy, starters)
    return True


def process_round_train(state: Coordinator, now: int, slot: int, _entropy: Entropy) -> bool:
    """Enter RoundWitness when q witnesses are complete or time is up (T4), and arm the seed (E1)."""
    is_complete = state.current.complete_len >= state.current.quorum
    if not is_complete and not is_timed_out(now, state.state_start_unix, state.config.max_round_train_time):
        return False
    process_arming(state, slot)
    process_state_change(state, now, RunState.ROUND_WITNESS)
    return True


def process_round_witness(state: Coordinator, now: int, slot: int, entropy: Entropy) -> bool:
    """Close the round when it is agreed or time is up, and its entropy is available (T5, E2)."""
    is_agreed = is_round_agreed(state)
    if not is_agreed and not is_timed_out(now, state.state_start_unix, state.config.round_witness_time):
        return False
    # E2: without the entropy the round stays open, also when it is agreed: records may still come in
    if entropy is None:
        return False
    if entropy is EXPIRED:
        return process_arming(state, slot)
    if not is_agreed:
        state.current.flags |= RoundFlag.BY_TIMEOUT
    process_close(state, now, entropy)
    return True


def process_close(state: Coordinator, now: int, entropy: bytes) -> None:
    """Close the running round: tally, health, credits, streaks, stop conditions, then the next phase (T6)."""
    round_, epoch = state.current, state.epoch
    draw = get_draw(state)
    attested = get_attested_round(state)
    round_.flags |= RoundFlag.CLOSED
    epoch.first_round = False
    process_slots(round_, attested)
    mass_drop = process_health(state)
    process_credits(state)
    process_deadlines(state)
    process_streaks(epoch, round_, attested=attested is not None, agreed=is_digest_agreed(state))
    if not is_drain(round_):
        state.progress.step = min(state.progress.step + 1, U32_MAX)
    # E1: the draw was taken above; whoever health took out since then is in the next round as a silent witness
    took_out = bool(round_.members & ~get_healthy(state))
    turn, reason = compute_turn(state, now, mass_drop=mass_drop, took_out=took_out)
    epoch.stop_reason = reason
    if turn is Turn.COOLDOWN:
        process_adjournment(state)
        process_cooldown_start(state, now)
        return
    if turn is Turn.DRAIN:
        epoch.drain_from_height = round_.height + 1
    process_next_round(state, now, entropy, draw)


def process_cooldown(state: Coordinator, now: int, _slot: int, _entropy: Entropy) -> bool:
    """Settle and end the epoch when `cooldown_time` is over or enough sources hold its weights (M7, P3, P10)."""
    is_kept = 0 < state.model.cooldown_sources <= state.epoch.checkpoint_sources
    if not is_kept and not is_timed_out(now, state.state_start_unix, state.config.cooldown_time):
        return False
    process_settlement(state)
    process_epoch_end(state, now)
    return True
