"""What must hold in every state and over every step of a small world.

The names are those of `docs/protocol-reference.md`. What the records of a round decide is computed here once more,
member by member and by its definition, so that a mistake of the bit-sliced counters would show.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from model_checker.forms import build_copy
from model_checker.inputs import ENTROPY
from model_checker.worlds import World
from psyche.core.committee.assignment import compute_assignments
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.tables import ACCOUNT
from psyche.core.rules.apply import apply
from psyche.core.state.bits import get_members
from psyche.core.state.enums import ChallengeState, ClientFlag, ClientState, RoundFlag, RunState, SlotState, WitnessFlag
from psyche.core.state.limits import MAX_WITNESSES, STATE_BYTES, U16_MAX, WITNESS_SILENCE_LIMIT
from psyche.core.state.messages import Resume, Tick
from psyche.core.state.state import ZERO32, Client, Coordinator, Round, Slot, WitnessRecord
from psyche.core.state.timeline import get_attested_height, get_round, is_last_drain

IN_EPOCH: Final = frozenset({RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN})


class Broken(AssertionError):
    """An invariant does not hold; the message names it and gives both sides."""


def demand(name: str, seen: object, wanted: object) -> None:
    """Both sides must be equal."""
    if seen != wanted:
        raise Broken(f"{name}: {seen!r}, but it should be {wanted!r}")


# --- every state


def check_state(world: World, state: Coordinator, now: int) -> None:
    """All invariants of a single state but the costly one of its bytes.

    Raises:
        Broken: one does not hold.
    """
    if state.in_round or state.run_state is RunState.COOLDOWN:
        check_one_winner(state.current)
        check_records(state)
    check_credits(state)
    check_counters(state)
    check_slots(state)
    check_armed(state, now)
    check_leads_on(world, state, now)


def check_bytes(state: Coordinator) -> None:
    """I10: the state is its bytes, 165,192 of them whatever happens (I6), and they decode to an equal state."""
    raw = encode_state(state)
    demand("I6: bytes of the state", len(raw), STATE_BYTES)
    decoded = ACCOUNT.decode(raw)  # the form alone: a normalized state lacks rounds that no transition reads
    if decoded != state:
        raise Broken("I10: the state that its bytes decode to differs")
    demand("I10: encoded again", encode_state(decoded) == raw, True)


def check_one_winner(round_: Round) -> None:
    """I4, 2q > n: at most one (root, held) and one digest have q records, and what is agreed is that one."""
    q = round_.quorum
    sets = Counter((r.results_root, r.held) for r in round_.witnesses if r.results_root != ZERO32)
    winners = [key for key, count in sets.items() if count >= q]
    rooted = bool(round_.flags & RoundFlag.ROOT)
    demand("I4: the agreed set", [(round_.agreed_root, round_.agreed_held)] if rooted else [], winners)
    kinds = WitnessFlag.FULL_DIGEST | WitnessFlag.NO_DIGEST
    votes = Counter((r.state_digest, r.flags & kinds) for r in round_.witnesses)
    winning = [vote for vote, count in votes.items() if count >= q and not vote[1] & WitnessFlag.NO_DIGEST]
    agreed = bool(round_.flags & RoundFlag.DIGEST)
    full = WitnessFlag.FULL_DIGEST if round_.flags & RoundFlag.FULL else WitnessFlag(0)
    demand("S3: the agreed digest", [(round_.agreed_digest, full)] if agreed else [], winning)


def check_records(state: Coordinator) -> None:
    """W4: each member reports once, of members that were there."""
    round_ = state.current
    senders = [record.member for record in round_.witnesses]
    demand("W4: senders", len(set(senders)), len(senders))
    demand("W4: records", len(senders) <= round_.witnesses_expected, True)
    demand("2q > n", 2 * round_.quorum > round_.witnesses_expected, True)
    height = get_attested_height(state.config, state.epoch, round_.height)
    attested = None if height is None else get_round(state, height)
    demand("the attested round is in the ring", attested is None, height is None)
    due = attested.members if attested else 0
    for record in round_.witnesses:
        demand("W4: held beyond the attested round", record.held & ~due, 0)
        demand("W4: heard beyond the round", record.heard & ~round_.members, 0)
    demand("W5: complete", round_.complete_len, sum(bool(r.flags & WitnessFlag.COMPLETE) for r in round_.witnesses))


def check_credits(state: Coordinator) -> None:
    """I2, M7: the total is the sum, nobody has more than one for each round that decided, the ejected have none."""
    if state.run_state not in IN_EPOCH:
        return
    credits = [client.credits for client in state.clients]
    demand("M7: credit_total", state.epoch.credit_total, sum(credits))
    most = 0 if state.run_state is RunState.WARMUP else state.current.height + 1
    demand("I2: credits of one member", max(credits, default=0) <= most, True)
    demand("R7", [c.credits for c in state.clients if c.state is ClientState.EJECTED and c.credits], [])


def check_counters(state: Coordinator) -> None:
    """H2, H4: who is Healthy in a round is below every limit; in Warmup `ready_len` counts who is ready."""
    config = state.config
    healthy = [client for client in state.clients if client.state is ClientState.HEALTHY]
    if state.in_round:
        for client in healthy:
            below = (
                client.missed < config.evict_after,
                client.late < config.late_limit,
                client.witness_missed < WITNESS_SILENCE_LIMIT,
            )
            demand("H2, H4: counters of a Healthy member", below, (True, True, True))
        demand("P1: a round with nobody", state.current.members == 0, False)
    if state.run_state is RunState.WARMUP:
        shown = state.clients if state.current.entropy_slot else healthy  # E1: an armed start counts who was ready then
        demand("S8: ready_len", state.epoch.ready_len, sum(bool(c.flags & 1) for c in shown))
        if state.certified.digest == ZERO32:
            demand("S8: votes", sum(c.count for c in state.epoch.start_candidates), state.epoch.ready_len)


def check_slots(state: Coordinator) -> None:
    """M1, M4, H5, V12, I7: keys are held once, a free slot is empty, members have their slots, the banned none."""
    left = [slot for slot in state.registry.slots if slot.state is SlotState.LEFT]
    known = [(s.p2p, s.earned, s.active, _is_kept(s)) for s in left]
    demand("H5: what a slot that was left keeps", known, [(ZERO32, 0, 0, True)] * len(left))
    taken = [slot for slot in state.registry.slots if slot.state not in (SlotState.FREE, SlotState.LEFT)]
    demand("M1: signers", len({slot.signer for slot in taken}), len(taken))
    demand("M1: p2p keys", len({slot.p2p for slot in taken}), len(taken))
    demand("M4: free slots", [s for s in state.registry.slots if s.state is SlotState.FREE and s != Slot()], [])
    if state.run_state not in IN_EPOCH:
        leaving = [s for s in taken if s.state is SlotState.LEAVING and not s.earned]
        demand("M4: slots to be freed between epochs", leaving, [])
        return
    for client in state.clients:
        slot = state.registry.slots[client.slot]
        demand("M3: a member's slot", slot.signer, client.signer)
        banned = slot.state is SlotState.BANNED
        demand("I7: a banned member", banned and client.state is not ClientState.EJECTED, False)


def _is_kept(slot: Slot) -> bool:
    """H5, V12: whether its signer has anything that leaving must not clear."""
    return any((slot.strikes, slot.until, slot.fruitless, slot.false_challenges))


def check_armed(state: Coordinator, now: int) -> None:
    """E1: an armed start takes place, whoever leaves, while somebody who was drawn for it is there."""
    if state.run_state is RunState.WARMUP and state.current.entropy_slot:
        tried = build_copy(state)
        apply(tried, now, now, ZERO32, Tick(ENTROPY))
        is_there = any(state.clients[member].state is ClientState.HEALTHY for member in _get_drawn(state))
        wanted = RunState.ROUND_TRAIN if is_there else RunState.WAITING_FOR_MEMBERS
        demand("E1: what follows an armed seed", tried.run_state, wanted)


def check_leads_on(world: World, state: Coordinator, now: int) -> None:
    """I5: some input always leads on; where no member has to act, time and ticks alone do."""
    tried = build_copy(state)
    if state.run_state is RunState.FINISHED:
        return
    if state.run_state is RunState.PAUSED:
        apply(tried, now, 0, ZERO32, Resume())
        return
    last = max(now, state.state_start_unix + world.get_deadlines(state)[-1])
    leads = apply(tried, last, last, ZERO32, Tick(ENTROPY))
    joined = sum(
        slot.state is SlotState.JOINED and slot.active >= state.registry.next_active for slot in state.registry.slots
    )
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        demand("I5: an epoch forms of who has joined", leads, joined >= state.config.init_min_clients)
    else:
        demand("I5: after the last deadline a tick acts", leads, True)


# --- every step


def check_step(before: Coordinator, after: Coordinator) -> None:
    """All invariants of one step that had an effect.

    Raises:
        Broken: one does not hold.
    """
    demand("T2: the nonce", after.nonce, before.nonce + 1)
    check_order(before, after)
    check_waits(before, after)
    formed = before.run_state is RunState.WAITING_FOR_MEMBERS and after.run_state is RunState.WARMUP
    if formed:
        check_formation(before, after)
    else:
        check_members_stay(before, after)
    closed = after.in_round or after.run_state is RunState.COOLDOWN
    if before.run_state is RunState.ROUND_WITNESS and after.run_state is not RunState.ROUND_WITNESS and closed:
        check_close(before, after)
    elif not formed:
        check_no_credit(before, after)
    if after.run_state is RunState.ROUND_TRAIN and before.run_state is not RunState.ROUND_TRAIN:
        check_new_round(before, after)


_PLACES: Final = {
    RunState.UNINITIALIZED: 0,
    RunState.WAITING_FOR_MEMBERS: 1,
    RunState.PAUSED: 1,
    RunState.WARMUP: 1,
    RunState.ROUND_TRAIN: 2,
    RunState.ROUND_WITNESS: 2,
    RunState.COOLDOWN: 3,
    RunState.FINISHED: 4,
}


def _get_place(state: Coordinator) -> tuple[int, int, int]:
    height = state.current.height if state.in_round or state.run_state is RunState.COOLDOWN else -1
    return state.progress.epoch, _PLACES[state.run_state] if height < 0 else 2, height


def check_order(before: Coordinator, after: Coordinator) -> None:
    """I3: epoch and height never go back; step and next sample only by P3 and P5, to what is certified."""
    if after.run_state is not RunState.FINISHED:
        demand("I3: (epoch, height) went back", _get_place(after) >= _get_place(before), True)
    steps = after.progress.step - before.progress.step
    ended = before.run_state is RunState.COOLDOWN and after.run_state is not RunState.COOLDOWN
    if ended:
        stands = (after.progress.step, after.progress.epoch_start_data_index)
        demand("P3: where the run stands", stands, (after.certified.step, after.certified.data_index))
        demand("P3: the epoch's number", after.progress.epoch, min(before.progress.epoch + 1, U16_MAX))
        return
    demand("T7: the epoch's number", after.progress.epoch, before.progress.epoch)
    if (
        before.run_state is RunState.WARMUP
        and after.certified != before.certified
        and before.certified.digest != ZERO32
    ):
        demand("P5: back to the checkpoint", after.certified, before.checkpoint)
        demand("P5: not forward", steps <= 0, True)
        return
    closed = before.run_state is RunState.ROUND_WITNESS and after.run_state is not RunState.ROUND_WITNESS
    is_drain = bool(before.current.flags & RoundFlag.DRAIN)
    demand("P2: steps", steps, int(closed and not is_drain))
    certifies = closed and after.run_state is RunState.COOLDOWN
    starts = before.run_state is RunState.WARMUP and after.run_state is RunState.ROUND_TRAIN
    if not certifies and not starts:
        demand("P3: certified", after.certified, before.certified)


def check_waits(before: Coordinator, after: Coordinator) -> None:
    """H5, M10: a signer waits exactly while it has strikes or fruitless epochs.

    By steps, because a run may be given to us in which it never was so; no rule brings that about.
    """
    known = before.registry.slots
    odd = {number for number, slot in enumerate(known) if not _is_wait_due(slot)}
    wrong = [number for number, slot in enumerate(after.registry.slots) if not _is_wait_due(slot)]
    demand("H5, M10: slots whose wait does not fit", [number for number in wrong if number not in odd], [])


def _is_wait_due(slot: Slot) -> bool:
    return (slot.until > 0) is (slot.strikes > 0 or slot.fruitless > 0)


def check_formation(before: Coordinator, after: Coordinator) -> None:
    """M3, I7: members are the joined slots in slot order, none banned, none twice."""
    slots = [client.slot for client in after.clients]
    demand("M3: slot order", slots, sorted(set(slots)))
    states = {before.registry.slots[number].state for number in slots}
    demand("I7, M3: slots that formed", states, {SlotState.JOINED})
    demand("T8: enough members", len(slots) >= after.config.init_min_clients, True)
    newcomers = [number for number in slots if not before.registry.slots[number].proven]
    room = max(len(slots) - len(newcomers), after.config.init_min_clients - len(slots) + len(newcomers))
    has_proven = len(newcomers) < len(slots)
    demand("M10: newcomers", has_proven and len(newcomers) > room, False)
    flags = [bool(c.flags & ClientFlag.PROBATION) for c in after.clients]
    failed = after.progress.epoch - after.certified.epoch - 1 if after.certified.digest != ZERO32 else 0
    is_led = has_proven and failed % 2 == 0  # after a failed epoch everybody elects
    demand("M10: on probation", flags, [is_led and number in newcomers for number in slots])
    demand("H2: counters", {(c.missed, c.late, c.credits) for c in after.clients}, {(0, 0, 0)})


def check_members_stay(before: Coordinator, after: Coordinator) -> None:
    """Members never move, and nobody comes back from being gone; a ban gives way to a reclaim alone (I7, M6)."""
    demand("3.2: members", [_get_identity(c) for c in after.clients], [_get_identity(c) for c in before.clients])
    for old, new in zip(before.clients, after.clients, strict=True):
        gone = old.state is not ClientState.HEALTHY and new.state not in (old.state, ClientState.EJECTED)
        demand("3.2: who is gone stays gone", gone, False)
        if before.in_round and old.state is ClientState.HEALTHY and new.state is not ClientState.HEALTHY:
            armed = before.run_state is RunState.ROUND_WITNESS
            demand("E1: the last round of who left", new.exited_height, before.current.height + armed)
    for old, new in zip(before.registry.slots, after.registry.slots, strict=False):
        kept = old.state is not SlotState.BANNED or new.state is SlotState.BANNED
        demand("I7: a ban", kept or (_is_over(before, old) and new == Slot()), True)


def _is_over(state: Coordinator, slot: Slot) -> bool:
    """Whether a whole epoch has passed since the slot's own, and nothing is to be collected from it (M4)."""
    return slot.last_epoch + 2 <= state.progress.epoch and not slot.earned


def _get_identity(client: Client) -> tuple[bytes, bytes, int]:
    return client.signer, client.p2p, client.slot


def check_no_credit(before: Coordinator, after: Coordinator) -> None:
    """I2: credit is given at closes alone; an ejection takes it (R7)."""
    for old, new in zip(before.clients, after.clients, strict=True):
        wanted = 0 if new.state is ClientState.EJECTED else old.credits
        demand("I2: credits between closes", new.credits, wanted)


def check_new_round(before: Coordinator, after: Coordinator) -> None:
    """I2: the samples follow those of the round before, and each is given to exactly one member."""
    round_, old = after.current, before.current
    first = before.run_state is RunState.WARMUP
    start = after.progress.epoch_start_data_index if first else old.data_index + old.batch_size
    demand("I2: first sample", round_.data_index, start)
    demand("E3: height", round_.height, 0 if first else old.height + 1)
    demand("E1: members", get_members(round_.members), _get_drawn(before))
    check_electors(before, after)
    owed = compute_assignments(round_, after.config).values()
    samples = sorted(sample for first_, last in owed for sample in range(first_, last + 1))
    demand("I2: samples", samples, list(range(round_.data_index, round_.data_index + round_.batch_size)))
    drains = bool(after.epoch.drain_from_height) and round_.height >= after.epoch.drain_from_height
    demand("P2: a drain round", (bool(round_.flags & RoundFlag.DRAIN), round_.batch_size == 0), (drains, drains))
    demand("nothing is left of another round", (round_.witnesses, round_.complete_len, round_.mix), ([], 0, ZERO32))


def check_electors(before: Coordinator, state: Coordinator) -> None:
    """M10: who has had a credit, or whose epoch began without anybody who had, elects; else everybody.

    E1: credits of the close come too late for this round.
    """
    round_ = state.current
    known = [m for m in get_members(round_.members) if not before.clients[m].flags & ClientFlag.PROBATION]
    demand("M10: electors", get_members(round_.electors), known or get_members(round_.members))
    most = min(state.config.witness_nodes or MAX_WITNESSES, MAX_WITNESSES)
    demand("M10: n", round_.witnesses_expected, min(most, round_.electors.bit_count()))
    for client in state.clients:
        if client.flags & ClientFlag.PROBATION:
            slot = state.registry.slots[client.slot]
            demand("M10: on probation with a credit", (client.credits, slot.proven), (0, False))


def _get_drawn(before: Coordinator) -> list[int]:
    """E1: who is in the round that begins: whoever was there when its seed was armed, however the armed phase ended."""
    clients = list(enumerate(before.clients))
    if before.run_state is RunState.WARMUP:
        votes = [(member, _get_vote(before, c)) for member, c in clients if c.flags & ClientFlag.READY]
        most = Counter(vote for _, vote in votes).most_common(1)[0][0]  # a start is armed for a quorum's weights (S8)
        return [member for member, vote in votes if vote == most]
    height = before.current.height
    return [m for m, c in clients if c.state is ClientState.HEALTHY or c.exited_height > height]


def _get_vote(state: Coordinator, client: Client) -> int:
    low = bool(client.flags & ClientFlag.CANDIDATE_LOW)
    high = bool(client.flags & ClientFlag.CANDIDATE_HIGH)
    return low + 2 * high if state.certified.digest == ZERO32 else 0


# --- the close of a round, by its definition


def check_close(before: Coordinator, after: Coordinator) -> None:
    """T5, T6: why the round closed, which set it decided, who got credit, who was judged and dropped how."""
    round_ = before.current
    closed = get_round(after, round_.height)
    if closed is None:
        raise Broken("T6: the closed round is not in the ring")
    height = get_attested_height(before.config, before.epoch, round_.height)
    last = None if height is None else get_round(before, height)
    attested = last.members if last else 0
    _check_reason(before, closed, has_due=height is not None)
    fined = _find_fined(before) if after.run_state is RunState.COOLDOWN else set[int]()
    held = _compute_set(round_, attested)
    demand("I4, C2: the set", get_members(closed.agreed_held), held)
    demand("C4: void", bool(closed.flags & RoundFlag.VOID), height is not None and not held)
    for member, (old, new) in enumerate(zip(before.clients, after.clients, strict=True)):
        earned = member in held and new.state is not ClientState.EJECTED
        fine = min(old.credits + earned, old.slot in fined)
        demand("I2, H2, V15: credit at the close", new.credits - old.credits, earned - fine)
        reported = old.state is ClientState.HEALTHY and any(r.member == member for r in round_.witnesses)
        demand("H4: silences at the close", new.witness_missed, 0 if reported else old.witness_missed)
    _check_judgement(before, after, attested if height is not None else 0)


def _count(records: Sequence[WitnessRecord], get: Callable[[WitnessRecord], int], member: int) -> int:
    return sum(get(record) >> member & 1 for record in records)


def _get_held(record: WitnessRecord) -> int:
    return record.held


def _get_heard(record: WitnessRecord) -> int:
    return record.heard


def _check_reason(before: Coordinator, closed: Round, *, has_due: bool) -> None:
    """T5: all records, or agreed, or the deadline."""
    round_ = before.current
    full = bool(round_.flags & RoundFlag.FULL) or not is_last_drain(before.config, before.epoch, round_.height)
    agreed = bool(round_.flags & RoundFlag.DIGEST) and full and (bool(round_.flags & RoundFlag.ROOT) or not has_due)
    everybody = len(round_.witnesses) >= round_.witnesses_expected
    demand("T5: closed by time-out", bool(closed.flags & RoundFlag.BY_TIMEOUT), not (agreed or everybody))


def _compute_set(round_: Round, attested: int) -> list[int]:
    """I4: C1 and C2 of the records and nothing else."""
    sets = Counter((r.results_root, r.held) for r in round_.witnesses if r.results_root != ZERO32)
    rooted = [held for (_, held), count in sets.items() if count >= round_.quorum]
    if rooted:
        return get_members(rooted[0])
    return [m for m in get_members(attested) if _count(round_.witnesses, _get_held, m) >= round_.quorum]


def _find_fined(before: Coordinator) -> set[int]:
    """V15: the slots that are accused of something in this epoch, and not for the last round."""
    here = (before.progress.epoch, ChallengeState.OPEN)
    accused = [one for one in before.challenges if (one.epoch, one.state) == here]
    return {one.target for one in accused if one.deadline_height > before.current.height}


def _check_judgement(before: Coordinator, after: Coordinator, attested: int) -> None:
    """H1 to H3: counters, and who is dropped; fewer than q records can neither accuse nor clear."""
    round_, config = before.current, before.config
    judged = [m for m in get_members(round_.members) if before.clients[m].state is ClientState.HEALTHY]
    wanted: dict[int, tuple[int, int]] = {}
    doomed: list[int] = []
    for member in judged:
        client = before.clients[member]
        due = bool(attested >> member & 1)
        missed, late = _compute_counts(round_, client, member, due=due)
        wanted[member] = missed, late
        too_late = late >= config.late_limit and late > client.late
        if (missed >= config.evict_after and missed > client.missed) or too_late:
            doomed.append(member)
    electors = [member for member in judged if round_.electors >> member & 1]
    spared = 2 * len(set(doomed) & set(electors)) > len(electors)
    for member in judged:
        new = after.clients[member]
        demand("H1, H2: (missed, late)", (new.missed, new.late), wanted[member])
        dropped = new.state is not ClientState.HEALTHY
        demand("H2, H3: dropped at the close", dropped, member in doomed and not spared)
    demand("H3: the epoch stops", spared and after.run_state is not RunState.COOLDOWN, False)


def _compute_counts(round_: Round, client: Client, member: int, *, due: bool) -> tuple[int, int]:
    q, records = round_.quorum, round_.witnesses
    heard, held = _count(records, _get_heard, member), _count(records, _get_held, member)
    if len(records) - heard >= q:
        return client.missed + 1, client.late
    if due and len(records) - held >= q:
        return 0, client.late + 1
    if due and held >= q:
        return 0, 0
    return client.missed, client.late


def get_names() -> Iterator[str]:
    """What is checked, for the report."""
    checks = (check_bytes, check_one_winner, check_records, check_credits, check_counters, check_slots,
              check_leads_on, check_order, check_formation, check_members_stay, check_no_credit, check_new_round,
              check_close)  # fmt: skip
    return ((check.__doc__ or "").split("\n", 1)[0] for check in checks)
