"""The invariants of every state that a run can reach; transitions rely on them (`docs/protocol-reference.md` 3).

A well-formed encoding that breaks one of these rules could make a transition fail or corrupt a count for good, so
`decode_state` refuses it. Every transition preserves the rules. Checks that need hashing, such as whether a record's
member was elected, are left out, because clients decode a state at every push.
"""

from collections import Counter
from typing import Final

from psyche.core.committee.elections import compute_quorum, compute_witnesses_expected
from psyche.core.committee.seeds import get_random_seed
from psyche.core.rules.membership import build_left
from psyche.core.rules.readiness import get_candidate, is_armed, is_certified
from psyche.core.state.config_checks import find_config_problems
from psyche.core.state.limits import MAX_CLIENTS, MAX_DATA_INDEX, MAX_HEIGHT, MAX_NONCE, NOBODY, STORED_ROUNDS
from psyche.core.state.roster import get_drawn, is_in_epoch
from psyche.core.state.state import (
    ZERO32,
    Audit,
    AuditStatus,
    Challenge,
    ChallengeState,
    ClientFlag,
    ClientState,
    Coordinator,
    Mark,
    Round,
    RoundFlag,
    RunState,
    Slot,
    SlotState,
    WitnessFlag,
    WitnessRecord,
)
from psyche.core.state.timeline import is_data_height
from psyche.errors import WireError

_EMPTY_ROUND: Final = Round()
_FREE_SLOT: Final = Slot()
_FREE_CHALLENGE: Final = Challenge()
_EMPTY_SLOTS: Final = (SlotState.FREE, SlotState.LEFT)


def check_state(state: Coordinator) -> None:
    """Refuse a state that no run can reach.

    Raises:
        WireError: naming the field and the rule.
    """
    _check_numbers(state)
    _check_configuration(state)
    _check_registry(state)
    _check_challenges(state)
    if not is_in_epoch(state):
        return  # members and rounds belong to the last epoch and are only displayed
    _check_members(state)
    if state.run_state is RunState.WARMUP:
        _check_warmup(state)
        return
    newest = state.current
    _check_newest(state, newest)
    _check_ring(state, newest)
    _check_credits(state, newest)
    for index in range(min(newest.height + 1, STORED_ROUNDS)):
        _check_round(state, index)


def _demand(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise WireError(f"{field}: {rule}")


def _check_numbers(state: Coordinator) -> None:
    """L1: numbers leave room for further growth. L2: both marks are set or neither is, and each is complete."""
    progress, certified, checkpoint = state.progress, state.certified, state.checkpoint
    _demand(state.epoch.rounds_head < STORED_ROUNDS, "epoch.rounds_head", f"is not below {STORED_ROUNDS} (L1)")
    _demand(state.nonce <= MAX_NONCE, "nonce", f"is above {MAX_NONCE}, which no run reaches (L1)")
    _demand(progress.step >= 1, "progress.step", "is 0, but steps begin at 1 (L1)")
    last = max(progress.epoch_start_data_index, certified.data_index, checkpoint.data_index)
    _demand(last <= MAX_DATA_INDEX, "data_index", f"is above {MAX_DATA_INDEX} (L1)")
    both = is_certified(state) == (checkpoint.digest != ZERO32)
    _demand(both, "checkpoint", "is set without certified, or the reverse (L2)")
    for name, mark in (("certified", certified), ("checkpoint", checkpoint)):
        whole = mark.step >= 1 if mark.digest != ZERO32 else mark == Mark()
        _demand(whole, name, "has a digest without a step, or the reverse (L2)")


def _check_configuration(state: Coordinator) -> None:
    """L3: a run that has begun has a valid configuration."""
    if state.run_state is RunState.UNINITIALIZED:
        return
    if problems := find_config_problems(state.config, state.model):
        raise WireError(f"{problems[0].key}: {problems[0].what} (L3; right: {problems[0].right})")


def _check_registry(state: Coordinator) -> None:
    """L4: FREE slots are empty, LEFT slots keep only waits; signers and p2p keys are unique and not zero."""
    signers: list[bytes] = []
    p2p_keys: list[bytes] = []
    for slot in state.registry.slots:
        if slot.state is SlotState.FREE:
            _demand(slot == _FREE_SLOT, "registry.slots", "a free slot is not empty (L4)")
            continue
        signers.append(slot.signer)
        if slot.state is SlotState.LEFT:
            _demand(slot == build_left(slot), "registry.slots", "a LEFT slot holds more than strikes and waits (L4)")
        else:
            p2p_keys.append(slot.p2p)
    for name, keys in (("signer", signers), ("p2p", p2p_keys)):
        _demand(len(set(keys)) == len(keys), f"registry.slots.{name}", "two slots have the same key (L4)")
        _demand(ZERO32 not in keys, f"registry.slots.{name}", "a taken slot has no key (L4)")


def _check_challenges(state: Coordinator) -> None:
    """L10: a free entry is empty; an open challenge is between two held slots, and no slot has two of a kind."""
    slots = state.registry.slots
    accusers: list[int] = []
    targets: list[int] = []
    for challenge in state.challenges:
        if challenge.state is ChallengeState.FREE:
            _demand(challenge == _FREE_CHALLENGE, "challenges", "a free entry is not empty (L10)")
        if challenge.state is not ChallengeState.OPEN:
            continue
        accusers.append(challenge.verifier)
        targets.append(challenge.target)
        parties = {challenge.verifier, challenge.target}
        held = all(number < len(slots) and slots[number].state not in _EMPTY_SLOTS for number in parties)
        _demand(held and len(parties) == 2, "challenges", "accuser or target holds no slot, or they are one (L10)")
        counted = challenge.guilty + challenge.innocent == challenge.voters.bit_count()
        _demand(counted, "challenges.voters", "are not as many as the votes (L10)")
        _demand(challenge.deadline_height >= 1, "challenges.deadline_height", "is 0, before any jury (L10)")
    for name, numbers in (("verifier", accusers), ("target", targets)):
        _demand(len(set(numbers)) == len(numbers), f"challenges.{name}", "two open challenges name one slot (L10)")


def _check_members(state: Coordinator) -> None:
    """L5: members are in slot order; each slot still belongs to its member and to this epoch."""
    slots, before, epoch = state.registry.slots, -1, state.progress.epoch
    for member, client in enumerate(state.clients):
        number = client.slot
        if not before < number < len(slots) or slots[number].signer != client.signer:
            raise WireError(f"clients[{member}].slot: slot {number} is not this member's, or out of order (L5)")
        is_current = slots[number].last_epoch == epoch
        _demand(is_current, "registry.slots.last_epoch", "differs from the epoch in a member's slot (L5)")
        before = number


def _check_warmup(state: Coordinator) -> None:
    """L6: in Warmup no round has begun, nothing is credited, and ready members are counted correctly."""
    epoch = state.epoch
    begun = [round_ for round_ in state.rounds[1:] if round_ != _EMPTY_ROUND]
    fresh = Round(entropy_slot=state.rounds[0].entropy_slot)  # E1: the tick that finds the start due arms it
    untouched = not begun and state.rounds[0] == fresh and not epoch.rounds_head
    _demand(untouched, "rounds", "a round has begun in Warmup (L6)")
    nothing = (
        not epoch.drain_from_height
        and not epoch.checkpoint_sources
        and not epoch.credit_total
        and not any(c.credits for c in state.clients)
    )
    _demand(nothing, "epoch", "has a drain or credits before its first round (L6)")
    ready = [client for client in state.clients if client.flags & ClientFlag.READY]
    present = is_armed(state) or all(c.state is ClientState.HEALTHY for c in ready)
    _demand(present, "clients.flags", "a member that left before the start was armed is marked ready (L6)")
    _demand(epoch.ready_len == len(ready), "epoch.ready_len", f"is not {len(ready)}, the number of ready members (L6)")
    votes = Counter(get_candidate(client) for client in ready if not is_certified(state))
    counts = {number: candidate.count for number, candidate in enumerate(epoch.start_candidates)}
    right = sum(counts.values()) == votes.total() and all(counts.get(n) == count for n, count in votes.items())
    right = right and not (counts and is_certified(state))
    _demand(right, "epoch.start_candidates", "do not match what the ready members showed (L6)")


def _check_newest(state: Coordinator, newest: Round) -> None:
    """L7: the newest round starts from certified weights and has the place in the ring that its height demands."""
    _demand(is_certified(state), "certified", "is not set, although a round has begun (L7)")
    _demand(newest.height <= MAX_HEIGHT, "rounds.height", f"is above {MAX_HEIGHT} (L7)")
    at_head = newest.height % STORED_ROUNDS == state.epoch.rounds_head
    _demand(at_head, "epoch.rounds_head", "does not match the newest round's height (L7)")
    _demand(state.epoch.drain_from_height <= newest.height, "epoch.drain_from_height", "is in the future (L7)")
    over = state.run_state is RunState.COOLDOWN
    early = not over and state.epoch.checkpoint_sources
    _demand(not early, "epoch.checkpoint_sources", "are counted before Cooldown (L7)")
    left = all(client.exited_height <= newest.height + 1 for client in state.clients)
    _demand(left, "clients.exited_height", "is later than the next round (L7)")
    unknown = get_drawn(state) & ~newest.members
    _demand(not unknown, "rounds.members", "the newest round lacks a member that is drawn for the next one (L7)")
    closed = bool(newest.flags & RoundFlag.CLOSED)
    _demand(closed == over, "rounds.flags", "the newest round must be closed in Cooldown, and only then (L7)")


def _check_ring(state: Coordinator, newest: Round) -> None:
    """L7: the older rounds are consecutive; no member is added during the epoch."""
    later = newest
    for back in range(1, STORED_ROUNDS):
        round_ = state.rounds[(newest.height - back) % STORED_ROUNDS]
        if back > newest.height:
            _demand(round_ == _EMPTY_ROUND, "rounds", "a round that has not begun is not empty (L7)")
            continue
        _demand(round_.height == newest.height - back, "rounds.height", "the ring's heights are not consecutive (L7)")
        _demand(bool(round_.flags & RoundFlag.CLOSED), "rounds.flags", "a past round is not closed (L7)")
        _demand(not later.members & ~round_.members, "rounds.members", "a member was added during the epoch (L7)")
        later = round_


def _check_credits(state: Coordinator, newest: Round) -> None:
    """L8: no member has more credits than there are closed rounds, and the total is the sum of all credits."""
    closed = newest.height + (state.run_state is RunState.COOLDOWN)
    total = 0
    for client in state.clients:
        _demand(client.credits <= closed, "clients.credits", f"more than the number of closed rounds, {closed} (L8)")
        total += client.credits
    _demand(state.epoch.credit_total == total, "epoch.credit_total", f"is not {total}, the sum of all credits (L8)")


def _check_round(state: Coordinator, index: int) -> None:
    """L9: a round's counts and flags match its members, its seed and its records."""
    round_, where = state.rounds[index], f"rounds[{index}]"
    members = round_.members
    count, everybody = members.bit_count(), (1 << len(state.clients)) - 1
    unknown = not members or (members | round_.agreed_held) & ~everybody
    _demand(not unknown, f"{where}.members", "is empty, or names members that do not exist (L9)")
    some = bool(round_.electors) and not round_.electors & ~members
    _demand(some, f"{where}.electors", "is empty, or names others than members (L9)")
    expected = compute_witnesses_expected(state.config.witness_nodes, round_.electors.bit_count())
    numbers = (round_.clients_len, round_.witnesses_expected, round_.quorum)
    matches = numbers == (count, expected, compute_quorum(expected))
    _demand(matches, where, "clients_len, witnesses_expected or quorum does not match the members (L9)")
    matches = round_.random_seed == get_random_seed(round_.seed)
    _demand(matches, f"{where}.random_seed", "does not match the seed (L9)")
    _demand(round_.data_index <= MAX_DATA_INDEX, f"{where}.data_index", f"is above {MAX_DATA_INDEX} (L9)")
    drains = not is_data_height(state.epoch, round_.height)
    matches = bool(round_.flags & RoundFlag.DRAIN) == drains == (not round_.batch_size)
    _demand(matches, where, "its DRAIN flag, batch size and height contradict each other (L9)")
    agreed = ((RoundFlag.ROOT, round_.agreed_root), (RoundFlag.DIGEST, round_.agreed_digest))
    flagged = all(bool(round_.flags & flag) == (value != ZERO32) for flag, value in agreed)
    _demand(flagged, f"{where}.flags", "do not match the agreed root and digest (L9)")
    _check_records(round_, round_.witnesses, everybody, f"{where}.witnesses")
    _check_audits(round_, round_.audits, everybody, f"{where}.audits")


def _check_records(round_: Round, records: list[WitnessRecord], everybody: int, where: str) -> None:
    """L9: the records come from distinct electors of the round, and the COMPLETE ones are counted."""
    seen = named = complete = 0
    for record in records:
        bit = 1 << record.member
        _demand(not seen & bit and bool(round_.electors & bit), where, "a member is no elector or reports twice (L9)")
        seen |= bit
        named |= record.held | record.heard | record.missing
        complete += bool(record.flags & WitnessFlag.COMPLETE)
    _demand(not named & ~everybody, where, "name members that do not exist (L9)")
    _demand(len(records) <= round_.witnesses_expected, where, "more records than elected witnesses (L9)")
    _demand(round_.complete_len == complete, where, f"complete_len is not {complete}, the complete records (L9)")


def _check_audits(round_: Round, audits: list[Audit], everybody: int, where: str) -> None:
    """L9: the audits come from distinct members of the round, and name an existing one or nobody."""
    seen = 0
    for audit in audits:
        bit = 1 << min(audit.verifier, MAX_CLIENTS)
        _demand(not seen & bit and bool(round_.members & bit), where, "a verifier is no member, or reports twice (L9)")
        seen |= bit
        names_nobody = audit.target == NOBODY and audit.status is AuditStatus.PASSED
        names_one = audit.target < MAX_CLIENTS and bool(everybody >> audit.target & 1)
        right = names_nobody or (names_one and audit.status is not AuditStatus.PASSED)
        _demand(right, where, "target and status contradict each other (L9)")
