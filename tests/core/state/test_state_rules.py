"""What no run can reach is refused when it is read, by field and rule (L1 to L10)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from kits.runs import Run, build_run

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.limits import MAX_DATA_INDEX, MAX_HEIGHT, MAX_NONCE, NOBODY
from psyche.core.state.state import (
    ZERO32,
    Audit,
    AuditStatus,
    Challenge,
    ChallengeState,
    Client,
    ClientFlag,
    ClientState,
    Coordinator,
    Mark,
    Round,
    RoundFlag,
    RunState,
    Slot,
    SlotState,
    StartCandidate,
    WitnessFlag,
)
from psyche.core.state.state_rules import check_state
from psyche.errors import WireError
from psyche.testing.builders import build_hash

Change = Callable[[Coordinator], object]
DOUBTED = AuditStatus.DOUBTED


def be(path: str, value: object) -> Change:
    """Set the attribute at a dotted path; a part of digits is an index."""

    def apply(state: Coordinator) -> None:
        *parents, last = path.split(".")
        node: object = state
        for part in parents:
            node = node[int(part)] if part.isdigit() else getattr(node, part)  # type: ignore[index]
        setattr(node, last, value)

    return apply


def together(*changes: Change) -> Change:
    def apply(state: Coordinator) -> None:
        for change in changes:
            change(state)

    return apply


def audits(*found: Audit) -> Change:
    return be("rounds.2.audits", list(found))


def challenges(*, target: int, verifier: int = 0, second: int | None = None, **fields: int) -> Change:
    """An open challenge between two slots, and one of slot 0 against another."""

    def apply(state: Coordinator) -> None:
        values: dict[str, Any] = {"state": ChallengeState.OPEN, "deadline_height": 4} | fields
        state.challenges[3] = Challenge(verifier=verifier, target=target, **values)
        if second is not None:
            state.challenges[5] = Challenge(verifier=0, target=second, state=ChallengeState.OPEN, deadline_height=4)

    return apply


def waiting() -> Run:
    run = build_run(3)
    run.state.registry.slots.append(Slot())
    return run


def warming(*, certified: bool = False) -> Run:
    run = build_run(3)
    if certified:
        run.warm_up().finish_epoch()
        run.rejoin()
    run.form()
    run.show(0, 2)
    return run


def certified_warming() -> Run:
    return warming(certified=True)


def running() -> Run:
    """Three members in their third round of six, with one record."""
    run = build_run(3, rounds_per_epoch=6).warm_up()
    run.run_round()
    run.run_round()
    run.send(run.build_witness(0))
    return run


def beginning() -> Run:
    return build_run(3).warm_up()


def cooling() -> Run:
    run = build_run(3).warm_up()
    while run.state.in_round:
        run.run_round()
    return run


MOMENTS = (waiting, warming, certified_warming, beginning, running, cooling)


@cache
def get_bytes(moment: Callable[[], Run]) -> bytes:
    return encode_state(moment().state)


@pytest.mark.parametrize("moment", MOMENTS)
def test_states_of_runs_are_read(moment: Callable[[], Run]) -> None:
    assert encode_state(decode_state(get_bytes(moment))) == get_bytes(moment)


def test_l1_the_greatest_numbers_that_a_run_reaches_are_read() -> None:
    state = decode_state(get_bytes(waiting))
    state.nonce, state.progress.epoch_start_data_index = MAX_NONCE, MAX_DATA_INDEX
    assert decode_state(encode_state(state)) == state


def test_l7_and_l9_the_last_height_and_the_last_sample_are_read() -> None:
    state = decode_state(get_bytes(running))
    past = [replace(state.rounds[max(0, 2 - back)], height=MAX_HEIGHT - back) for back in range(4)]
    for round_ in past:
        state.rounds[round_.height % 4] = round_
    state.epoch.rounds_head = MAX_HEIGHT % 4
    state.current.data_index = MAX_DATA_INDEX
    assert decode_state(encode_state(state)) == state


def test_l9_a_record_that_is_not_complete_is_not_counted_as_such() -> None:
    state = decode_state(get_bytes(running))
    state.current.witnesses[0].flags, state.current.complete_len = WitnessFlag(0), 0
    assert decode_state(encode_state(state)) == state


def test_a_slot_that_was_left_may_hold_strikes() -> None:
    state = decode_state(get_bytes(waiting))
    leave_strikes(state)
    assert decode_state(encode_state(state)) == state


def test_a_run_that_is_not_set_up_is_read() -> None:
    assert decode_state(encode_state(Coordinator())) == Coordinator()


def duplicate(name: str) -> Change:
    def apply(state: Coordinator) -> None:
        setattr(state.registry.slots[1], name, getattr(state.registry.slots[0], name))

    return apply


def repeat_record(state: Coordinator) -> None:
    state.current.witnesses *= 2


def leave_strikes(state: Coordinator) -> None:
    state.registry.slots[3] = Slot(signer=build_hash(1), state=SlotState.LEFT, strikes=1, until=2)


def ban_nobody(state: Coordinator) -> None:
    state.registry.slots[0] = Slot(p2p=build_hash(1), state=SlotState.BANNED)


def free_the_first(state: Coordinator) -> None:
    """Of three slots, the last two with one key."""
    duplicate("p2p")(state)
    state.registry.slots.insert(0, Slot())


def take_part_twice(state: Coordinator) -> None:
    state.clients[1] = state.clients[0]


def swap_members(state: Coordinator) -> None:
    state.clients[0], state.clients[1] = state.clients[1], state.clients[0]


BROKEN: list[tuple[Callable[[], Run], Change, str]] = [
    (waiting, be("epoch.rounds_head", 4), "epoch.rounds_head: .*L1"),
    (waiting, be("nonce", MAX_NONCE + 1), "nonce: .*L1"),
    (waiting, be("progress.step", 0), "progress.step: .*L1"),
    (waiting, be("progress.epoch_start_data_index", MAX_DATA_INDEX + 1), "data_index: .*L1"),
    (running, be("certified.data_index", MAX_DATA_INDEX + 1), "data_index: .*L1"),
    (running, be("checkpoint.data_index", MAX_DATA_INDEX + 1), "data_index: .*L1"),
    (waiting, be("checkpoint", Mark(build_hash(1), step=1)), "checkpoint: .*L2"),
    (running, be("checkpoint", Mark()), "checkpoint: .*L2"),
    (waiting, be("certified.step", 1), "certified: .*L2"),
    (running, be("checkpoint.step", 0), "checkpoint: .*L2"),
    (waiting, be("config.min_clients", 0), "config.min_clients: .*L3"),
    (waiting, be("registry.slots.3.earned", 1), "registry.slots: .*L4"),
    (waiting, be("registry.slots.2.state", SlotState.LEFT), "registry.slots: .*L4"),
    (waiting, duplicate("signer"), "registry.slots.signer: .*L4"),
    (waiting, duplicate("p2p"), "registry.slots.p2p: .*L4"),
    (waiting, free_the_first, "registry.slots.p2p: .*L4"),
    (waiting, be("registry.slots.1.p2p", ZERO32), "registry.slots.p2p: .*L4"),
    (waiting, ban_nobody, "registry.slots.signer: .*L4"),
    (warming, be("clients.2.slot", 3), r"clients\[2\].slot: .*L5"),
    (running, be("registry.slots.1.last_epoch", 1), "registry.slots.last_epoch: .*L5"),
    (running, be("clients.1.signer", build_hash(1)), r"clients\[1\].slot: .*L5"),
    (warming, take_part_twice, r"clients\[1\].slot: .*L5"),
    (cooling, swap_members, r"clients\[1\].slot: .*L5"),
    (warming, be("rounds.1.height", 1), "rounds: .*L6"),
    (warming, be("rounds.2.height", 2), "rounds: .*L6"),
    (warming, be("rounds.0.members", 7), "rounds: .*L6"),
    (warming, be("epoch.rounds_head", 1), "rounds: .*L6"),
    (warming, be("epoch.drain_from_height", 1), "epoch: .*L6"),
    (warming, be("epoch.credit_total", 1), "epoch: .*L6"),
    (warming, be("clients.0.credits", 1), "epoch: .*L6"),
    (warming, be("clients.0.state", ClientState.DROPPED), "clients.flags: .*L6"),
    (warming, be("epoch.ready_len", 3), "epoch.ready_len: .*L6"),
    (warming, be("clients.0.flags", ClientFlag(0)), "epoch.ready_len: .*L6"),
    (warming, be("epoch.start_candidates.0.count", 1), "start_candidates: .*L6"),
    (warming, be("clients.0.flags", ClientFlag.READY | ClientFlag.CANDIDATE_HIGH), "start_candidates: .*L6"),
    (certified_warming, be("epoch.start_candidates", [StartCandidate(build_hash(1))]), "start_candidates: .*L6"),
    (running, together(be("certified", Mark()), be("checkpoint", Mark())), "certified: .*L7"),
    (running, be("rounds.2.height", MAX_HEIGHT + 1), "rounds.height: .*L7"),
    (running, be("epoch.rounds_head", 3), "epoch.rounds_head: .*L7"),
    (running, be("epoch.checkpoint_sources", 1), "epoch.checkpoint_sources: .*L7"),
    (warming, be("epoch.checkpoint_sources", 1), "epoch: .*L6"),
    (running, be("epoch.drain_from_height", 3), "drain_from_height: .*L7"),
    (running, be("rounds.2.flags", RoundFlag.CLOSED), "rounds.flags: .*L7"),
    (cooling, be("run_state", RunState.ROUND_TRAIN), "rounds.flags: .*L7"),
    (running, be("rounds.3.height", 3), "rounds: .*L7"),
    (beginning, be("rounds.2.height", 2), "rounds: .*L7"),
    (running, be("rounds.1.height", 2), "rounds.height: .*L7"),
    (running, be("rounds.1.flags", RoundFlag(0)), "rounds.flags: .*L7"),
    (running, be("rounds.1.members", 3), "rounds.members: .*L7"),
    (running, be("clients.0.credits", 3), "clients.credits: .*L8"),
    (running, be("epoch.credit_total", 99), "epoch.credit_total: .*L8"),
    (running, be("rounds.2.electors", 0), r"rounds\[2\].electors: .*L9"),
    (running, be("rounds.2.electors", 0b1011), r"rounds\[2\].electors: .*L9"),
    (running, be("rounds.2.electors", 0b0011), r"rounds\[2\]: clients_len, .*L9"),
    (running, be("rounds.2.clients_len", 2), r"rounds\[2\]: .*L9"),
    (running, be("rounds.2.witnesses_expected", 2), r"rounds\[2\]: .*L9"),
    (running, be("rounds.0.quorum", 1), r"rounds\[0\]: .*L9"),
    (running, be("rounds.2.agreed_held", 8), r"rounds\[2\].members: .*L9"),
    (running, be("rounds.2.random_seed", 1), r"rounds\[2\].random_seed: .*L9"),
    (running, be("rounds.2.data_index", MAX_DATA_INDEX + 1), r"rounds\[2\].data_index: .*L9"),
    (running, be("rounds.2.batch_size", 0), r"rounds\[2\]: .*L9"),
    (running, be("rounds.2.flags", RoundFlag.DRAIN), r"rounds\[2\]: .*L9"),
    (running, be("rounds.2.agreed_root", build_hash(1)), r"rounds\[2\].flags: .*L9"),
    (running, be("rounds.2.flags", RoundFlag.DIGEST), r"rounds\[2\].flags: .*L9"),
    (running, repeat_record, r"rounds\[2\].witnesses: a member is no elector or reports twice .*L9"),
    (running, be("rounds.2.witnesses.0.member", 7), r"rounds\[2\].witnesses: .*L9"),
    (running, be("rounds.2.witnesses.0.held", 8), r"rounds\[2\].witnesses: .*L9"),
    (running, be("rounds.2.witnesses.0.missing", 8), r"rounds\[2\].witnesses: .*L9"),
    (running, be("rounds.2.complete_len", 0), r"rounds\[2\].witnesses: .*L9"),
    (running, audits(Audit(1, 2, DOUBTED), Audit(1, 0, DOUBTED)), r"rounds\[2\].audits: a verifier .* reports twice"),
    (running, audits(Audit(3, 2, DOUBTED)), r"rounds\[2\].audits: a verifier is no member"),
    (running, audits(Audit(65_535, 2, DOUBTED)), r"rounds\[2\].audits: a verifier is no member"),
    (running, audits(Audit(1, NOBODY, DOUBTED)), r"rounds\[2\].audits: target and status .*L9"),
    (running, audits(Audit(1, 2, AuditStatus.PASSED)), r"rounds\[2\].audits: target and status .*L9"),
    (running, audits(Audit(1, 3, DOUBTED)), r"rounds\[2\].audits: target and status .*L9"),
    (running, audits(Audit(1, 300, DOUBTED)), r"rounds\[2\].audits: target and status .*L9"),
    (waiting, be("challenges.4.guilty", 1), r"challenges: a free entry is not empty .*L10"),
    (waiting, challenges(verifier=1, target=1), r"challenges: .* or they are one .*L10"),
    (waiting, challenges(verifier=1, target=3), r"challenges: accuser or target holds no slot.*L10"),
    (waiting, challenges(verifier=4, target=1), r"challenges: accuser or target holds no slot.*L10"),
    (waiting, challenges(target=1, guilty=1), r"challenges.voters: .*L10"),
    (waiting, challenges(target=1, deadline_height=0), r"challenges.deadline_height: .*L10"),
    (waiting, challenges(target=1, second=2), r"challenges.verifier: two .*L10"),
    (waiting, challenges(verifier=1, target=2, second=2), r"challenges.target: two .*L10"),
]


def test_audits_and_challenges_that_a_run_reaches_are_read() -> None:
    state = decode_state(get_bytes(running))
    audits(Audit(1, 2, DOUBTED), Audit(2, NOBODY))(state)
    challenges(target=1, guilty=1, innocent=1, voters=0b101)(state)
    state.challenges[7] = Challenge(target=9, verifier=9, state=ChallengeState.UNDECIDED)  # of slots that are gone
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize(("moment", "change", "named"), BROKEN)
def test_what_no_run_reaches_is_refused_by_name(moment: Callable[[], Run], change: Change, named: str) -> None:
    state = decode_state(get_bytes(moment))
    change(state)
    raw = encode_state(state)
    with pytest.raises(WireError, match=named):
        decode_state(raw)


def test_a_round_has_no_more_records_than_witnesses() -> None:
    state = decode_state(get_bytes(running))
    Run(state).witness_all()
    state.config.witness_nodes = 1
    for round_ in state.rounds[:3]:
        round_.witnesses_expected = round_.quorum = 1
    for round_ in state.rounds[:2]:
        del round_.witnesses[1:]
        round_.complete_len = 1
    with pytest.raises(WireError, match=r"rounds\[2\].witnesses: more records than elected witnesses"):
        check_state(state)


def test_a_round_without_members_is_refused() -> None:
    state = decode_state(get_bytes(running))
    for round_ in state.rounds[:3]:
        round_.members = round_.clients_len = round_.witnesses_expected = 0
        round_.quorum = 1
    for client in state.clients:
        client.state = ClientState.DROPPED
    with pytest.raises(WireError, match=r"rounds\[0\].members: is empty"):
        check_state(state)


def test_members_and_rounds_of_a_past_epoch_bind_nobody() -> None:
    run = cooling()
    run.wait(run.state.config.cooldown_time)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    run.state.clients.append(Client())
    run.state.rounds[0] = Round(height=7)
    check_state(run.state)
