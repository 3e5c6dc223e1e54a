"""Witness messages: the checks of W4 in their order, and the effect of an accepted message (W5)."""

from typing import Final

from psyche.core.committee.bloom import get_bit_count
from psyche.core.committee.elections import is_witness
from psyche.core.committee.seeds import compute_mix
from psyche.core.rules.repeats import RECORDED
from psyche.core.rules.tally import process_agreement
from psyche.core.state.errors import (
    DuplicateWitness,
    Halted,
    InvalidBloom,
    InvalidRunState,
    InvalidWitness,
    WitnessesFull,
    WrongRound,
)
from psyche.core.state.limits import BLOOM_BIT_CAP, BLOOM_BITS, BLOOM_HASHES, HASH_BYTES, METADATA_BYTES, U32_MAX
from psyche.core.state.messages import Context, WitnessMessage
from psyche.core.state.roster import get_member
from psyche.core.state.state import ZERO32, Client, ClientState, Coordinator, RunState, WitnessFlag, WitnessRecord
from psyche.core.state.timeline import get_attested_round

_ALL_FLAGS: Final = int(WitnessFlag.COMPLETE | WitnessFlag.FULL_DIGEST | WitnessFlag.NO_DIGEST)


def process_witness(state: Coordinator, context: Context, message: WitnessMessage) -> bool:
    """Record a witness's report (W4, W5)."""
    check_witness(state, context, message)
    round_ = state.current
    record = WitnessRecord(**{name: getattr(message, name) for name in RECORDED})
    round_.witnesses.append(record)
    if state.run_state is RunState.ROUND_TRAIN:  # frozen from RoundWitness on (E1)
        round_.mix = compute_mix(round_.mix, record.member, record.results_root, record.state_digest)
    round_.complete_len += bool(record.flags & WitnessFlag.COMPLETE)
    process_agreement(round_, record)
    return True


def check_witness(state: Coordinator, context: Context, message: WitnessMessage) -> None:
    """Check a witness message by the rules of W4, in their order."""
    if state.halted:
        raise Halted("no round is running: the run is halted", "W4")
    if not state.in_round:
        raise InvalidRunState(f"witness messages belong to rounds, not to {state.run_state.name}", "W4")
    round_ = state.current
    if (message.epoch, message.height) != (state.progress.epoch, round_.height):
        raise WrongRound(
            f"witness message of round ({message.epoch}, {message.height}), "
            f"but ({state.progress.epoch}, {round_.height}) is running",
            "W4, T7",
        )
    client = get_member(state, context.now, context.sender, message.member)
    _check_election(state, client, message.member)
    _check_bitmaps(state, message)
    _check_fields(message)


def _check_election(state: Coordinator, client: Client, member: int) -> None:
    round_ = state.current
    if client.state is not ClientState.HEALTHY:
        raise InvalidWitness(f"member {member} is {client.state.name}, not Healthy", "W4")
    if not is_witness(round_, member):
        raise InvalidWitness(f"member {member} is not an elected witness of round {round_.height}", "W4")
    # before the check for room, so that a resend is told apart from a record that comes too late (K3)
    if any(record.member == member for record in round_.witnesses):
        raise DuplicateWitness(f"member {member} has already reported on round {round_.height}", "W4, K3")
    if len(round_.witnesses) >= round_.witnesses_expected:
        raise WitnessesFull(f"all {round_.witnesses_expected} records of round {round_.height} are in", "W4")


def _check_bitmaps(state: Coordinator, message: WitnessMessage) -> None:
    attested = get_attested_round(state)
    allowed = (
        ("held", message.held, attested.members if attested is not None else 0),
        ("heard", message.heard, state.current.members),
        ("missing", message.missing, (1 << len(state.clients)) - 1),
    )
    for name, bits, members in allowed:
        if bits & ~members:
            raise InvalidWitness(f"{name}: marks members that do not belong to the round it reports on", "W4")


def _check_fields(message: WitnessMessage) -> None:
    if len(message.broadcast_bloom) != BLOOM_BITS // 8:
        raise InvalidBloom(f"broadcast_bloom: {len(message.broadcast_bloom)} bytes, must be {BLOOM_BITS // 8}", "W4")
    # a filter with all bits set would vouch for every commitment that anybody makes up later (C2)
    limit = min(BLOOM_HASHES * message.held.bit_count(), BLOOM_BIT_CAP)
    if (count := get_bit_count(message.broadcast_bloom)) > limit:
        raise InvalidBloom(f"broadcast_bloom: {count} bits set, at most {limit} are possible", "W4")
    rules = (
        (len(message.results_root) == HASH_BYTES, "results_root: must be 32 bytes"),
        (len(message.state_digest) == HASH_BYTES, "state_digest: must be 32 bytes"),
        (
            (message.results_root == ZERO32) == (message.held == 0),
            "results_root: must be zero if held is empty, and only then",
        ),
        (
            message.state_digest != ZERO32 or WitnessFlag.NO_DIGEST in message.flags,
            "state_digest: must not be zero unless flag 4 (no digest) is set",
        ),
        (not int(message.flags) & ~_ALL_FLAGS, "flags: unknown flags are set"),
        (0 <= message.at_s <= U32_MAX, "at_s: must fit 32 bits"),
        (len(message.metadata) <= METADATA_BYTES, f"metadata: at most {METADATA_BYTES} bytes"),
    )
    for holds, rule in rules:
        if not holds:
            raise InvalidWitness(rule, "W4")
