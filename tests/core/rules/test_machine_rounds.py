"""The course of a round: T4 to T6, E1 to E3, C2 and C4 as the program judges them, S5, roles, T9."""

from kits.runs import Run, build_training

from psyche.core.committee.elections import compute_quorum
from psyche.core.committee.seeds import EXPIRED, compute_seed
from psyche.core.encoding.account import encode_state
from psyche.core.state.state import ZERO32, RoundFlag, RunState, WitnessFlag
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


# --- T3, F3


def test_t3_no_message_ticks() -> None:
    run = build_training(3)
    for member in range(3):
        run.send(run.build_witness(member))
        assert run.state.run_state is RunState.ROUND_TRAIN
    assert run.settle() == 2
    assert run.state.current.height == 1


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


# --- E1 to E3


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
