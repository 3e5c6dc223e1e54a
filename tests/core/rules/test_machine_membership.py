"""Slots, and who is taken: M1 to M3, M5, M9, K3."""

import pytest
from kits.runs import build_run, build_training, expect_refusal

from psyche.core.encoding.account import encode_state
from psyche.core.state.errors import ClientsFull, InvalidJoin, StakeTooLow, UnknownMember
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import Join
from psyche.core.state.roster import find_slot
from psyche.core.state.state import ZERO32, ClientState, SlotState
from psyche.testing.builders import build_hash, build_keys

FREE, JOINED = SlotState.FREE, SlotState.JOINED


# --- M1, M5: join


def test_m1_a_join_takes_a_slot_for_signer_and_session_key() -> None:
    run = build_run(0)
    assert run.apply(Join(build_keys(5)[1], expires_unix=99), build_keys(5)[0])
    slot = run.state.registry.slots[0]
    assert (slot.signer, slot.p2p) == build_keys(5)
    assert (slot.state, slot.stake, slot.expires_unix, slot.joined_unix, slot.active) == (JOINED, 0, 99, run.now, 1)


def test_k3_repeating_a_join_changes_no_byte() -> None:
    run = build_run(3)
    before = encode_state(run.state)
    run.now += 1
    assert run.join(1) == [1]
    assert encode_state(run.state) == before


def test_m1_a_signer_keeps_its_slot_with_a_new_session_key() -> None:
    run = build_run(3)
    fresh = build_hash("fresh")
    assert run.apply(Join(fresh), build_keys(1)[0])
    assert run.state.registry.slots[1].p2p == fresh
    assert find_slot(run.state, build_keys(1)[1]) is None


KEY = build_hash("a key")
BAD_JOINS: list[tuple[str, bytes, bytes]] = [
    ("another's session key", KEY, build_keys(1)[1]),
    ("own signer, another's session key", build_keys(0)[0], build_keys(1)[1]),
    ("a short signer", b"short", KEY),
    ("a zero signer", ZERO32, KEY),
    ("a long session key", KEY, bytes(range(33))),
    ("a zero session key", KEY, ZERO32),
]


@pytest.mark.parametrize(("signer", "p2p"), [pytest.param(s, p, id=name) for name, s, p in BAD_JOINS])
def test_m1_no_one_joins_with_anothers_or_a_malformed_key(signer: bytes, p2p: bytes) -> None:
    run = build_run(3)
    with expect_refusal(run.state, InvalidJoin, "M1"):
        run.apply(Join(p2p), signer)


@pytest.mark.parametrize("beyond", [-1, U64_MAX + 1])
def test_m2_a_session_expires_within_64_bits(beyond: int) -> None:
    run = build_run(0)
    signer, p2p = build_keys(0)
    with expect_refusal(run.state, InvalidJoin, "expires_unix"):
        run.apply(Join(p2p, expires_unix=beyond), signer)
    run.apply(Join(p2p, expires_unix=min(max(beyond, 0), U64_MAX)), signer)


def test_m5_the_stake_must_reach_min_stake() -> None:
    run = build_run(1)
    run.state.config.min_stake = 10
    run.state.registry.slots[0].stake = 9
    for number in (0, 1):  # what the slot holds counts, and a newcomer's holds nothing
        with expect_refusal(run.state, StakeTooLow, "M5"):
            run.join(number)
    run.state.registry.slots[0].stake = 10
    run.join(0)
    assert run.state.registry.slots[0].stake == 10, "a join changes no stake"
    run.state.config.min_stake = 1
    with expect_refusal(run.state, StakeTooLow, "stake 0 is below min_stake 1"):
        run.join(1)


def test_f17_the_257th_slot_is_refused_and_a_freed_one_is_taken_again() -> None:
    run = build_run(256)
    with expect_refusal(run.state, ClientsFull):
        run.join(256)
    run.leave(77)
    assert run.state.registry.slots[77].state is FREE
    assert run.join(256) == [77]
    assert len(run.state.registry.slots) == 256


# --- M2, M3: who is taken


def test_m2_an_expired_session_is_not_taken_and_its_session_key_is_dead() -> None:
    run = build_run(2, min_clients=2)
    run.apply(Join(build_keys(1)[1], expires_unix=run.now + 100), build_keys(1)[0])
    run.now += 100
    assert run.settle() == 0
    run.apply(Join(build_keys(1)[1], expires_unix=run.now + 100), build_keys(1)[0])
    run.warm_up()
    run.now += 100
    with expect_refusal(run.state, UnknownMember, "M1"):
        run.send(run.build_witness(1))
    run.apply(run.build_witness(1), build_keys(1)[0])
    run.send(run.build_witness(0))


def test_m3_struck_slots_wait_while_enough_others_are_there() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=9, late_limit=1, min_clients=2)
    run.run_round(held=0b011)
    assert run.state.clients[2].state is ClientState.DROPPED
    run.finish_epoch()
    run.join(0, 1, 2)
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1]


def test_m3_with_too_few_others_the_struck_count_too() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=9, late_limit=1, min_clients=2, init_min_clients=3)
    run.run_round(held=0b011)
    run.finish_epoch()
    run.join(0, 1, 2)
    slot = run.state.registry.slots[2]
    assert slot.active == run.state.registry.next_active + 1
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1, 2]
    assert slot.active == run.state.registry.next_active, "taken, it must join again like the others"


# --- M9: a process that starts again


def test_m9_restarted_in_a_round_it_withdraws_and_joins_the_next_epoch() -> None:
    run = build_training(4, rounds=1, rounds_per_epoch=2)
    run.withdraw(3)
    run.join(3)
    run.run_round(silent={3})
    run.finish_epoch()
    assert run.state.certified.step == 3, "nobody else loses anything"
    run.join(0, 1, 2, 3)
    run.warm_up()
    assert run.state.current.members == 0b1111
