"""The start of a round: its members, seed and samples (E1 to E4, 3.3, P2)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from psyche.core.committee.elections import compute_quorum, compute_witnesses_expected
from psyche.core.committee.schedule import compute_batch_size
from psyche.core.committee.seeds import EXPIRED, Entropy, compute_seed, get_random_seed
from psyche.core.rules.timing import process_state_change
from psyche.core.state.limits import MAX_DATA_INDEX, STORED_ROUNDS, U64_MAX
from psyche.core.state.roster import get_drawn, get_electors
from psyche.core.state.state import ZERO32, Coordinator, Round, RoundFlag, RunState
from psyche.core.state.timeline import is_data_height

RECORDED_SLOTS: Final = 512  # whose hashes a chain keeps (E4)
_DRAWING: Final = (RunState.WARMUP, RunState.ROUND_WITNESS)  # in which a tick looks up the armed slot


def process_arming(state: Coordinator, slot: int) -> bool:
    """Fix the slot whose hash will be the entropy (E1, E2); return whether the armed slot changed.

    On record 0 means "not armed", so slot 0 without delay is armed as slot 1.
    """
    armed = min(max(slot + state.config.entropy_delay, 1), U64_MAX)
    changed = state.current.entropy_slot != armed
    state.current.entropy_slot = armed
    return changed


def find_entropy(state: Coordinator, recorded: Sequence[tuple[int, bytes]]) -> Entropy:
    """The entropy of a tick on a chain: the hash of the first recorded slot from the armed one on (E4).

    Args:
        recorded: the slots whose hashes the chain keeps, at most `RECORDED_SLOTS`, oldest first, each with its hash.
    """
    armed = state.current.entropy_slot
    if state.run_state not in _DRAWING or not armed or not recorded or recorded[-1][0] < armed:
        return None
    if len(recorded) == RECORDED_SLOTS and recorded[0][0] > armed:
        return EXPIRED
    return next(raw for slot, raw in recorded if slot >= armed)


class Draw(NamedTuple):
    """Those whom a seed puts in order, as bitmaps: all members of its round, and the electors among them (E1, M10)."""

    members: int
    electors: int


def get_draw(state: Coordinator) -> Draw:
    """The draw of the next round: who was Healthy when the seed was armed (E1).

    At a close this comes before health and credits: records that arrive when the entropy is public decide about both.
    """
    members = get_drawn(state)
    return Draw(members, get_electors(state, members))


def process_first_round(state: Coordinator, now: int, entropy: bytes, starters: int) -> None:
    """Start round 0 of an epoch; the seed drawn last takes the place of the previous round's seed (E3)."""
    seed = compute_seed(state.run_uid, state.progress.epoch, 0, state.last_seed, ZERO32, entropy)
    draw = Draw(starters, get_electors(state, starters))
    _process_start(state, now, _build_round(state, now, 0, seed, state.progress.epoch_start_data_index, draw))


def process_next_round(state: Coordinator, now: int, entropy: bytes, draw: Draw) -> None:
    last = state.current
    height = last.height + 1
    seed = compute_seed(state.run_uid, state.progress.epoch, height, last.seed, last.mix, entropy)
    state.epoch.rounds_head = height % STORED_ROUNDS
    _process_start(state, now, _build_round(state, now, height, seed, get_next_data_index(last), draw))


def get_next_data_index(round_: Round) -> int:
    """The index of the first sample after the round's samples; a drain round has no samples (P2).

    The clamp never takes effect in a run with a checked configuration.
    """
    return min(round_.data_index + round_.batch_size, MAX_DATA_INDEX)


def _build_round(state: Coordinator, now: int, height: int, seed: bytes, data_index: int, draw: Draw) -> Round:
    config = state.config
    count = draw.members.bit_count()
    assert count, "with no member there is no round (P1)"
    expected = compute_witnesses_expected(config.witness_nodes, draw.electors.bit_count())
    has_data = is_data_height(state.epoch, height)
    return Round(
        seed=seed,
        random_seed=get_random_seed(seed),
        members=draw.members,
        electors=draw.electors,
        clients_len=count,
        witnesses_expected=expected,
        quorum=compute_quorum(expected),
        data_index=data_index,
        batch_size=compute_batch_size(config, data_index * state.model.max_seq_len) if has_data else 0,
        started_unix=now,
        height=height,
        step=state.progress.step,
        flags=RoundFlag(0) if has_data else RoundFlag.DRAIN,
    )


def _process_start(state: Coordinator, now: int, round_: Round) -> None:
    state.rounds[state.epoch.rounds_head] = round_
    state.last_seed = round_.seed
    process_state_change(state, now, RunState.ROUND_TRAIN)
