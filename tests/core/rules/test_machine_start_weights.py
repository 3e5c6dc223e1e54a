"""With which weights an epoch starts, and what happens without: S8, T8, P5."""

import pytest
from kits.runs import Run, build_run, build_warmup, expect_refusal

from psyche.core.state.errors import (
    DigestMismatch,
    DuplicateWitness,
    Halted,
    InvalidRunState,
    InvalidWitness,
    TooManyCandidates,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.limits import NO_UPLOADER
from psyche.core.state.messages import WarmupWitness
from psyche.core.state.state import ZERO32, ClientState, RunState
from psyche.testing.builders import build_hash

OTHER = build_hash("other weights")
HEALTHY, DROPPED = ClientState.HEALTHY, ClientState.DROPPED


# --- S8


def test_s8_the_first_start_certifies_what_a_quorum_of_the_ready_shows() -> None:
    run = build_warmup(4)
    run.show(0, 1, 2, 3)
    run.settle()
    certified = run.state.certified
    assert certified.digest == run.get_start_digest()
    assert (certified.epoch, certified.step, certified.data_index, certified.uploader) == (0, 1, 0, NO_UPLOADER)
    assert run.state.checkpoint == certified
    assert run.state.checkpoint is not certified


def test_s8_others_than_the_winner_are_dropped() -> None:
    run = build_warmup(4)
    run.show(0, 2, 3)
    run.show(1, digest=OTHER)
    run.settle()
    assert run.state.current.members == 0b1101
    assert run.get_client_states() == [HEALTHY, DROPPED, HEALTHY, HEALTHY]
    assert run.state.registry.slots[1].active == 0, "it joins again and reloads"


def test_s8_without_a_winner_nobody_is_ready_and_warmup_is_given_up() -> None:
    run = build_warmup(5)
    run.show(0, 1)
    run.show(2, 3, digest=OTHER)
    assert run.wait(29) == 0
    assert run.wait(1) == 1
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.get_client_states() == [DROPPED] * 5
    assert run.state.certified.digest == ZERO32


@pytest.mark.parametrize(("others", "min_clients"), [(1, 4), (2, 2)])
def test_t8_a_warmup_in_which_all_are_ready_and_that_cannot_succeed_ends_at_once(others: int, min_clients: int) -> None:
    run = build_warmup(4, warmup_time=600, min_clients=min_clients, init_min_clients=4)
    run.show(*range(4 - others))
    run.show(*range(4 - others, 3), digest=OTHER)
    assert run.wait(20) == 0
    run.show(3, digest=OTHER)
    assert run.settle() == 1, "too few show the weights that win, or no weights win, and nobody can change its word"
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    stay = [HEALTHY] * (4 - others) if others == 1 else [DROPPED] * (4 - others)
    assert run.get_client_states() == [*stay, *[DROPPED] * others], "as at the end of warmup_time"
    assert run.state.certified.digest == ZERO32


def test_t8_enough_are_ready_counts_those_with_the_weights_that_win() -> None:
    run = build_warmup(6, warmup_time=60, min_clients=3)
    run.show(0, 1, 2, 3)
    run.show(4, digest=OTHER)
    run.wait(10)
    assert run.state.epoch.ready_len == 5, "the quorum of six, but only four of them can start"
    assert run.state.epoch.ready_quorum_unix == 0
    assert run.wait(30) == 0
    run.show(5)
    assert run.settle() == 2
    assert run.state.current.members == 0b101111


def test_s8_a_fifth_candidate_is_refused_and_an_abandoned_one_makes_room() -> None:
    run = build_warmup(6)
    for member in range(4):
        run.show(member, digest=build_hash(member))
    with expect_refusal(run.state, TooManyCandidates, "S8"):
        run.show(4, digest=build_hash(4))
    run.show(4, digest=build_hash(2))
    run.withdraw(1)
    run.show(5, digest=build_hash(5))
    assert [c.count for c in run.state.epoch.start_candidates] == [1, 1, 2, 1]
    assert run.state.epoch.start_candidates[1].digest == build_hash(5)
    assert run.state.epoch.ready_len == 5


def test_s8_certified_weights_must_be_shown_exactly() -> None:
    run = build_run(2, rounds_per_epoch=1).warm_up().finish_epoch()
    run.rejoin()
    run.form()
    with expect_refusal(run.state, DigestMismatch, "S8"):
        run.show(0, digest=OTHER)
    run.show(0, 1)
    assert run.settle() == 2


def test_t8_a_ready_member_that_goes_is_no_longer_counted_with_certified_weights_either() -> None:
    run = build_failing(3)
    run.form()
    run.show(0, 1)
    run.withdraw(1)
    assert run.state.epoch.ready_len == 1
    assert run.settle() == 0


def test_s8_a_ready_message_is_checked_like_every_other() -> None:
    run = build_warmup(3)
    state, digest = run.state, run.get_start_digest()
    key = state.clients[0].p2p

    def send(sender: bytes = key, epoch: int = 0, member: int = 0, shown: bytes = digest) -> None:
        run.apply(WarmupWitness(epoch, member, shown), sender)

    with expect_refusal(state, WrongRound, "T7"):
        send(epoch=1)
    with expect_refusal(state, UnknownMember):
        send(member=3)
    with expect_refusal(state, UnknownMember, "M1"):
        send(sender=state.clients[1].p2p)
    with expect_refusal(state, InvalidWitness, "S8"):
        send(shown=ZERO32)
    with expect_refusal(state, InvalidWitness, "S8"):
        send(shown=b"short")
    send(sender=state.clients[0].signer)
    with expect_refusal(state, DuplicateWitness, "K3"):
        send()
    run.withdraw(1)
    with expect_refusal(state, InvalidWitness, "Healthy"):
        send(sender=state.clients[1].p2p, member=1)
    run.show(2)
    run.settle()
    with expect_refusal(state, DuplicateWitness, "K3"):
        send()
    with expect_refusal(state, InvalidRunState):
        send(sender=state.clients[1].p2p, member=1)
    state.run_state = RunState.WAITING_FOR_MEMBERS
    with expect_refusal(state, InvalidRunState):
        send()
    state.run_state = RunState.PAUSED
    with expect_refusal(state, Halted):
        send()


# --- P5


def build_failing(members: int = 2) -> Run:
    """A run whose members can no longer show what is certified."""
    run = build_run(members, rounds_per_epoch=1, min_clients=2, init_min_clients=2).warm_up().finish_epoch()
    run.rejoin()
    return run


def fail_warmup(run: Run) -> None:
    run.form()
    assert run.state.run_state is RunState.WARMUP
    run.wait(run.state.config.warmup_time)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    run.rejoin()


def test_p5_two_warmups_in_which_nobody_is_ready_go_back_to_the_checkpoint() -> None:
    run = build_failing()
    state, checkpoint = run.state, run.state.checkpoint
    assert state.certified != checkpoint
    fail_warmup(run)
    assert state.epoch.warmup_failures == 1
    assert state.progress.step == 2
    fail_warmup(run)
    assert state.certified == checkpoint
    assert state.certified is not checkpoint
    assert (state.progress.step, state.progress.epoch_start_data_index) == (1, 0)
    assert state.progress.epoch == 1, "the epoch number never goes back"
    assert state.epoch.warmup_failures == 0
    run.warm_up()
    assert state.run_state is RunState.ROUND_TRAIN


def test_p5_a_checkpoint_more_than_one_epoch_older_waits_for_ten_failures() -> None:
    run = build_failing()
    for _ in range(2):
        run.warm_up().finish_epoch()
        run.rejoin()
    assert run.state.certified.epoch == 2
    for count in range(1, 10):
        fail_warmup(run)
        assert run.state.epoch.warmup_failures == count
    fail_warmup(run)
    assert run.state.certified == run.state.checkpoint


def test_p5_a_warmup_that_starts_a_round_sets_the_count_to_zero() -> None:
    run = build_failing()
    fail_warmup(run)
    run.warm_up()
    assert run.state.epoch.warmup_failures == 0
