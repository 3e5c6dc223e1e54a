"""Warmup: the weights that members show, and who may start the epoch (S8, T8)."""

from dataclasses import replace
from typing import Final

from psyche.core.committee.elections import compute_quorum
from psyche.core.rules.timing import compute_elapsed, is_timed_out
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.errors import (
    DigestMismatch,
    DuplicateWitness,
    Halted,
    InvalidRunState,
    InvalidWitness,
    TooManyCandidates,
)
from psyche.core.state.limits import HASH_BYTES, MAX_START_CANDIDATES
from psyche.core.state.messages import Context, WarmupWitness
from psyche.core.state.roster import check_epoch, get_electors, get_healthy, get_member, is_in_epoch
from psyche.core.state.state import ZERO32, Client, ClientFlag, ClientState, Coordinator, Mark, RunState, StartCandidate

_CANDIDATE: Final = ClientFlag.CANDIDATE_LOW | ClientFlag.CANDIDATE_HIGH
_CANDIDATE_SHIFT: Final = ClientFlag.CANDIDATE_LOW.bit_length() - 1


def is_certified(state: Coordinator) -> bool:
    """Whether the record has certified weights, the ones that every epoch starts from (S8)."""
    return state.certified.digest != ZERO32


def is_armed(state: Coordinator) -> bool:
    """In Warmup: whether the slot of round 0's entropy is fixed, and with it who starts (E1)."""
    return state.current.entropy_slot != 0


def process_ready(state: Coordinator, context: Context, message: WarmupWitness) -> bool:
    """Record that a member has loaded the weights with this full digest (S8).

    The certified weights are there, so a rollback would lose them: the count of failed Warmups begins anew (P5).
    """
    client, digest = _check_ready(state, context, message), message.digest
    if len(digest) != HASH_BYTES or digest == ZERO32:
        raise InvalidWitness("state_digest: a full digest is 32 bytes, not all zero", "S8")
    if is_certified(state):
        if digest != state.certified.digest:
            raise DigestMismatch(
                f"member {message.member} shows other weights or model files than the certified ones", "S8"
            )
        state.epoch.warmup_failures = 0  # P5
    else:
        number = _find_candidate(state, digest)
        _process_vote(state, client, number, digest)
    client.flags |= ClientFlag.READY
    state.epoch.ready_len += 1
    process_ready_quorum(state, context.now)
    return True


def _check_ready(state: Coordinator, context: Context, message: WarmupWitness) -> Client:
    epoch, member = message.epoch, message.member
    if state.halted:
        raise Halted("nobody warms up while the run is halted")
    check_epoch(state, epoch, "ready for")
    client = get_member(state, context.now, context.sender, member) if is_in_epoch(state) else None
    if client is not None and client.flags & ClientFlag.READY:
        raise DuplicateWitness(f"member {member} is ready already", "K3")  # a retry may land after the start
    if client is None or state.run_state is not RunState.WARMUP:
        raise InvalidRunState(f"ready messages belong to WARMUP, not to {state.run_state.name}")
    # E1: on a chain the entropy is public before a tick brings it; a late ready could pick the draw that suits it
    if is_armed(state):
        raise InvalidRunState(f"ready of member {member} comes too late: the start is fixed", "E1")
    if client.state is not ClientState.HEALTHY:
        raise InvalidWitness(f"member {member} is {client.state.name}, not Healthy")
    return client


def _find_candidate(state: Coordinator, digest: bytes) -> int:
    """The index of a digest among the candidates: its own, one that nobody shows any more, or a new one."""
    candidates = state.epoch.start_candidates
    own = (i for i, c in enumerate(candidates) if c.count and c.digest == digest)
    left = (i for i, c in enumerate(candidates) if not c.count)
    number = next(own, next(left, len(candidates)))
    if number >= MAX_START_CANDIDATES:
        raise TooManyCandidates(f"{MAX_START_CANDIDATES} other digests already compete for the start", "S8")
    return number


def _process_vote(state: Coordinator, client: Client, number: int, digest: bytes) -> None:
    candidates = state.epoch.start_candidates
    if number == len(candidates):
        candidates.append(StartCandidate())
    candidates[number].digest = digest
    candidates[number].count += 1
    # the start drops members whose candidate lost, so the record must say which candidate each member showed
    client.flags = client.flags & ~_CANDIDATE | ClientFlag(number << _CANDIDATE_SHIFT)


def process_unready(state: Coordinator, client: Client) -> None:
    """Take back the ready message of a member that leaves in Warmup."""
    if not client.flags & ClientFlag.READY:
        return
    client.flags &= ~ClientFlag.READY
    state.epoch.ready_len -= 1
    if state.epoch.start_candidates:
        state.epoch.start_candidates[get_candidate(client)].count -= 1


def get_candidate(client: Client) -> int:
    """The index, among the start candidates, of the digest that a ready member showed (S8)."""
    return (client.flags & _CANDIDATE) >> _CANDIDATE_SHIFT


def is_enough(state: Coordinator, starters: int) -> bool:
    """Whether these starters suffice for a start before `warmup_time` is over (T8).

    The quorum counts electors only, so that newcomers who never get ready cannot delay the start (M10).
    """
    electors = get_electors(state, get_healthy(state))
    has_quorum = (starters & electors).bit_count() >= compute_quorum(electors.bit_count())
    return has_quorum and starters.bit_count() >= state.config.min_clients


def process_ready_quorum(state: Coordinator, now: int) -> None:
    """Record the time from which there are enough starters; reset it if there no longer are (T8)."""
    if not is_enough(state, get_starters(state)):
        state.epoch.ready_quorum_unix = 0
    elif not state.epoch.ready_quorum_unix:
        state.epoch.ready_quorum_unix = now


def is_start_due(state: Coordinator, now: int, starters: int) -> bool:
    """Whether Warmup may end and round 0 begin with these members (bitmap) (T8)."""
    config, epoch = state.config, state.epoch
    if starters.bit_count() < config.min_clients or not starters & get_electors(state, get_healthy(state)):
        return False
    if get_ready(state) == get_healthy(state) or is_timed_out(now, state.state_start_unix, config.warmup_time):
        return True
    if not config.straggler_percent or not is_enough(state, starters):
        return False
    pace = compute_elapsed(epoch.ready_quorum_unix, state.state_start_unix) * config.straggler_percent
    elapsed = compute_elapsed(now, state.state_start_unix)
    # not before half of warmup_time: that long slow loaders have, however fast the others were
    return elapsed * 100 >= pace and is_timed_out(now, state.state_start_unix, config.warmup_time // 2)


def get_ready(state: Coordinator) -> int:
    """Bitmap of the ready members; those that left after the start was armed are among them (E1)."""
    return compute_bits(m for m, client in enumerate(state.clients) if client.flags & ClientFlag.READY)


def get_starters(state: Coordinator) -> int:
    """Bitmap of the members that can start: they are ready and show the winning weights (S8).

    It is empty while nothing is certified and no candidate has a quorum of the ready members.
    """
    ready = get_ready(state)
    if is_certified(state):
        return ready
    winner = _find_winner(state)
    return compute_bits(m for m in get_members(ready) if get_candidate(state.clients[m]) == winner)


def _find_winner(state: Coordinator) -> int | None:
    # a quorum of those who are ready, not of all members: who loads nothing must not keep the others from agreeing
    quorum = compute_quorum(state.epoch.ready_len)
    return next((i for i, c in enumerate(state.epoch.start_candidates) if c.count >= quorum), None)


def process_certification(state: Coordinator) -> None:
    """At the first start of a run, make the winning candidate `certified` and `checkpoint` (S8)."""
    if is_certified(state):
        return
    winner = _find_winner(state)
    assert winner is not None, "a round starts only with starters"
    progress = state.progress
    state.certified = Mark(
        digest=state.epoch.start_candidates[winner].digest,
        epoch=progress.epoch,
        step=progress.step,
        data_index=progress.epoch_start_data_index,
    )
    state.checkpoint = replace(state.certified)
