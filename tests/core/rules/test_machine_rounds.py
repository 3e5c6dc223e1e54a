"""The course of a round: T4 to T6, E1 to E3, C2 and C4 as the program judges them, S5, roles, T9."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.runs import Run, build_training

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import compute_quorum, get_roles, get_witnesses
from psyche.core.committee.schedule import compute_batch_size
from psyche.core.committee.seeds import EXPIRED, compute_seed
from psyche.core.encoding.account import encode_state
from psyche.core.state.bits import compute_at_least, compute_bits
from psyche.core.state.state import ZERO32, ClientState, Role, RoundFlag, RunState, WitnessFlag
from psyche.core.state.timeline import get_attested_round
from psyche.testing.builders import build_hash

COMPLETE, FULL = WitnessFlag.COMPLETE, WitnessFlag.FULL_DIGEST


def enter_witness(run: Run) -> None:
    run.wait(run.state.config.max_round_train_time)
    assert run.state.run_state is RunState.ROUND_WITNESS


# --- the start of a round


def test_a_round_starts_with_the_numbers_that_hold_for_it() -> None:
    run = build_training(5, rounds=1, witness_nodes=4)
    round_ = run.state.current
    assert (round_.height, round_.step, round_.data_index, round_.batch_size) == (1, 2, 12, 12)
    assert (round_.members, round_.clients_len) == (0b11111, 5)
    assert (round_.witnesses_expected, round_.quorum) == (4, compute_quorum(4))
    assert round_.started_unix == run.state.state_start_unix == run.now
    assert (round_.mix, round_.witnesses, round_.flags, round_.entropy_slot) == (ZERO32, [], RoundFlag(0), 0)
    assert not run.state.epoch.first_round


def test_the_ring_keeps_the_last_four_rounds() -> None:
    run = build_training(1, rounds=6)
    assert run.state.epoch.rounds_head == 6 % 4
    assert sorted(round_.height for round_ in run.state.rounds) == [3, 4, 5, 6]


def test_rounds_elect_among_those_who_are_left() -> None:
    run = build_training(5)
    run.withdraw(1, epoch=0)
    run.run_round()
    round_ = run.state.current
    assert (round_.members, round_.witnesses_expected, round_.quorum) == (0b11101, 4, 3)
    assert sorted(get_witnesses(round_)) == [0, 2, 3, 4]
    assert set(compute_assignments(round_, run.state.config)) == {0, 2, 3, 4}


def test_t9_the_batch_grows_with_the_tokens_done() -> None:
    run = build_training(2, global_batch_size_end=36, global_batch_size_warmup_tokens=16 * 100)
    for _ in range(7):
        round_ = run.run_round()
        assert round_.batch_size == compute_batch_size(run.state.config, round_.data_index * 16)
    assert round_.batch_size == 36


def test_verifiers_train_nothing_owe_nothing_and_are_good_when_heard() -> None:
    run = build_training(8, rounds=1, verification_percent=30)
    first = run.state.rounds[0]
    verifiers = [m for m, role in get_roles(first, run.state.config).items() if role is Role.VERIFIER]
    assert len(verifiers) == 2
    assert not set(verifiers) & set(compute_assignments(first, run.state.config))
    run.state.clients[verifiers[0]].late = 1
    lost = ~compute_bits(verifiers)
    run.run_round(held=0b1111_1111 & lost)
    assert [run.state.clients[m].late for m in verifiers] == [0, 0]
    assert [run.state.clients[m].credits for m in verifiers] == [0, 0]
    assert sum(client.credits for client in run.state.clients) == 6


# --- T3, F3


def test_t3_no_message_ticks() -> None:
    run = build_training(3)
    for member in range(3):
        run.send(run.build_witness(member))
        assert run.state.run_state is RunState.ROUND_TRAIN
    assert run.settle() == 2
    assert run.state.current.height == 1


def test_f3_a_round_whose_witnesses_are_all_gone_closes_by_time_out_and_the_next_elects_again() -> None:
    run = build_training(8, rounds=1, witness_nodes=3)
    dead = get_witnesses(run.state.current)
    closed = run.run_round(silent=dead)
    assert closed.witnesses == []
    assert closed.flags == RoundFlag.CLOSED | RoundFlag.BY_TIMEOUT | RoundFlag.VOID
    assert run.state.run_state is RunState.ROUND_TRAIN
    assert run.state.current.members == 0xFF, "without records nobody is judged"
    assert get_witnesses(run.state.current) != dead


# --- T4


def test_t4_q_complete_records_end_training() -> None:
    run = build_training(4)
    run.send(run.build_witness(0))
    run.send(run.build_witness(1))
    run.send(run.build_witness(2, flags=FULL))
    assert not run.tick()
    run.send(run.build_witness(3))
    assert run.tick()
    assert run.state.run_state is RunState.ROUND_WITNESS


def test_t4_training_ends_at_max_round_train_time() -> None:
    run = build_training(4)
    run.now += 19
    assert not run.tick()
    run.now += 1
    assert run.tick()
    assert run.state.run_state is RunState.ROUND_WITNESS
    assert run.state.state_start_unix == run.now


# --- T5


def test_t5_all_records_in_close_the_round_even_without_agreement() -> None:
    run = build_training(4, rounds=1)
    enter_witness(run)
    for member in range(4):
        run.send(
            run.build_witness(member, held=1 << member, broadcast_bloom=bytes(320), state_digest=build_hash(member))
        )
    round_ = run.state.current
    assert run.tick()
    assert round_.flags & RoundFlag.CLOSED
    assert not round_.flags & (RoundFlag.ROOT | RoundFlag.DIGEST | RoundFlag.BY_TIMEOUT)


def test_t5_agreed_root_and_digest_close_the_round() -> None:
    run = build_training(4, rounds=1)
    enter_witness(run)
    run.send(run.build_witness(0))
    run.send(run.build_witness(1))
    assert not run.tick()
    run.send(run.build_witness(2))
    round_ = run.state.current
    assert run.tick()
    assert round_.flags == RoundFlag.ROOT | RoundFlag.DIGEST | RoundFlag.FULL | RoundFlag.CLOSED


@pytest.mark.parametrize("lacking", ["root", "digest"])
def test_t5_one_of_the_two_is_not_enough(lacking: str) -> None:
    run = build_training(4, rounds=1)
    enter_witness(run)
    for member in range(3):
        if lacking == "digest":
            run.send(run.build_witness(member, flags=WitnessFlag.NO_DIGEST))
        else:
            run.send(run.build_witness(member, held=1 << member, broadcast_bloom=bytes(320)))
    assert run.wait(3) == 0
    round_ = run.state.current
    assert run.wait(1) == 1
    assert round_.flags & RoundFlag.BY_TIMEOUT


def test_t5_where_nothing_is_attested_the_digest_is_enough() -> None:
    run = build_training(4)
    enter_witness(run)
    for member in range(3):
        run.send(run.build_witness(member))
    assert run.tick()
    assert run.state.current.height == 1


def test_t5_without_a_record_the_round_closes_by_time_out() -> None:
    run = build_training(4)
    enter_witness(run)
    round_ = run.state.current
    assert run.wait(3) == 0
    assert run.wait(1) == 1
    assert round_.flags == RoundFlag.CLOSED | RoundFlag.BY_TIMEOUT


# --- E1 to E3


def test_e1_entering_round_witness_arms_the_seed() -> None:
    run = build_training(4, entropy_delay=4)
    enter_witness(run)
    assert run.state.current.entropy_slot == run.now + 4


def test_e2_the_round_stays_until_its_seed_is_there() -> None:
    run = build_training(4)
    enter_witness(run)
    run.now += 100
    before = encode_state(run.state)
    assert not run.tick(None)
    assert encode_state(run.state) == before
    assert run.tick(EXPIRED), "too late: armed again"
    assert run.state.current.entropy_slot == run.now
    assert run.state.run_state is RunState.ROUND_WITNESS
    assert run.tick()


def test_e2_a_seed_that_is_there_does_not_close_a_round_before_its_time() -> None:
    run = build_training(4)
    enter_witness(run)
    assert not run.tick()
    assert not run.tick(EXPIRED)


def test_e3_the_next_seed_follows_from_seed_mix_and_entropy() -> None:
    run = build_training(4)
    run.witness_all()
    run.tick()
    last, entropy = run.state.current, build_hash("entropy of the slot")
    assert last.mix != ZERO32
    run.tick(entropy)
    assert run.state.current.seed == compute_seed(run.state.run_uid, 0, 1, last.seed, last.mix, entropy)
    assert run.state.last_seed == run.state.current.seed


# --- T6, C2, C4


def test_t6_closing_judges_credits_and_moves_on_in_one_tick() -> None:
    run = build_training(4, rounds=1)
    run.state.clients[2].late = 2
    run.witness_all()
    run.tick()
    run.tick()
    assert run.state.run_state is RunState.ROUND_TRAIN
    assert (run.state.current.height, run.state.progress.step) == (2, 3)
    assert [client.credits for client in run.state.clients] == [1] * 4
    assert run.state.clients[2].late == 0


def test_c2_without_a_root_agreed_held_are_the_slots_with_q_bits() -> None:
    run = build_training(4, rounds=1)
    for member, held in enumerate((0b0011, 0b0111, 0b1101, 0b1110)):
        run.send(run.build_witness(member, held=held))
    round_ = run.state.current
    run.settle()
    assert not round_.flags & (RoundFlag.ROOT | RoundFlag.VOID)
    assert round_.agreed_held == 0b0111
    assert [client.credits for client in run.state.clients] == [1, 1, 1, 0]


def test_c4_no_root_and_no_slot_with_q_is_void() -> None:
    run = build_training(4, rounds=1)
    step, index = run.state.current.step, run.state.current.data_index
    for member in range(4):
        run.send(run.build_witness(member, held=1 << member))
    round_ = run.state.current
    run.settle()
    assert round_.flags & RoundFlag.VOID
    assert round_.agreed_held == 0
    assert run.state.epoch.void_streak == 1
    assert run.state.epoch.credit_total == 0
    assert (run.state.current.step, run.state.current.data_index) == (step + 1, index + 12), (
        "samples and step are spent"
    )


def test_c4_a_decided_round_ends_the_streak_and_one_where_nothing_was_due_leaves_it() -> None:
    run = build_training(4)
    run.state.epoch.void_streak = 1
    run.run_round()
    assert run.state.epoch.void_streak == 1, "nothing was due at height 0"
    run.run_round()
    assert run.state.epoch.void_streak == 0


def test_s5_a_round_without_digest_is_flagged_and_training_goes_on_one_round() -> None:
    run = build_training(4, rounds=1)
    round_ = run.run_round(flags=COMPLETE | WitnessFlag.NO_DIGEST)
    assert not round_.flags & RoundFlag.DIGEST
    assert run.state.epoch.digest_streak == 1
    assert run.state.run_state is RunState.ROUND_TRAIN
    run.run_round()
    assert run.state.epoch.digest_streak == 0


def test_m7_who_has_departed_since_still_gets_its_credit() -> None:
    run = build_training(4, rounds=1)
    run.withdraw(3, epoch=0)
    run.run_round(silent={3}, held=0b1111)
    assert [client.credits for client in run.state.clients] == [1] * 4
    assert run.state.clients[3].state is ClientState.WITHDRAWN
    attested = get_attested_round(run.state)
    assert attested is not None
    run.run_round()
    assert [client.credits for client in run.state.clients] == [2, 2, 2, 2], "it had trained R(1) before it left"


# --- tallies


@given(
    bitmaps=st.lists(st.integers(0, (1 << 12) - 1), max_size=32),
    threshold=st.integers(1, 33),
    universe=st.integers(0, (1 << 12) - 1),
)
def test_bit_sliced_counting_is_counting(bitmaps: list[int], threshold: int, universe: int) -> None:
    counted = sum(1 << m for m in range(12) if sum(b >> m & 1 for b in bitmaps) >= threshold)
    assert compute_at_least(bitmaps, threshold, universe) == counted & universe
    inverted = sum(1 << m for m in range(12) if sum(~b >> m & 1 for b in bitmaps) >= threshold)
    assert compute_at_least((~b for b in bitmaps), threshold, universe) == inverted & universe
