"""What is on record exactly as it was sent is a success when it is sent again (K3)."""

from typing import Any

import pytest
from kits.runs import build_hash, build_keys, build_run

from psyche.core.rules.apply import is_repeat
from psyche.core.state.messages import (
    HealthCheck,
    Join,
    NameCheckpoint,
    Pause,
    ReportEquivocation,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.state import Checkpoint, CheckpointKind, ClientState, SlotState, WitnessFlag

SENDER = build_hash("whoever")


def test_a_repeat_of_a_join_is_on_record_only_under_the_same_keys() -> None:
    run = build_run(members=1)
    signer, p2p = build_keys(0)
    assert is_repeat(run.state, signer, Join(p2p))
    assert not is_repeat(run.state, signer, Join(build_keys(1)[1]))
    run.state.registry.slots[0].state = SlotState.LEAVING
    assert not is_repeat(run.state, signer, Join(p2p))


def test_a_join_is_a_repeat_whatever_others_do() -> None:
    run = build_run(members=2)
    run.state.registry.slots[0].state = SlotState.LEAVING
    assert is_repeat(run.state, build_keys(1)[0], Join(build_keys(1)[1]))


@pytest.mark.parametrize("count", [3, 4])
def test_a_warmup_witness_names_the_candidate_that_it_showed_of_several(count: int) -> None:
    run = build_run(members=count)
    run.form()
    digests = [run.get_start_digest(), *(build_hash(f"other {number}") for number in range(1, count))]
    for member, digest in enumerate(digests):
        run.show(member, digest=digest)
    assert len(run.state.epoch.start_candidates) == count
    for member, client in enumerate(run.state.clients):
        shown = [is_repeat(run.state, client.p2p, WarmupWitness(0, member, digest)) for digest in digests]
        assert shown == [member == number for number in range(count)]


def test_a_warmup_witness_of_a_candidate_that_is_gone_is_no_repeat() -> None:
    run = build_run(members=3)
    run.form()
    run.show(0)
    run.show(1, digest=build_hash("other"))
    run.state.epoch.start_candidates.pop()
    key = run.state.clients[1].p2p
    assert not is_repeat(run.state, key, WarmupWitness(0, 1, build_hash("other")))


def test_a_member_that_is_not_ready_has_shown_no_certified_weights() -> None:
    run = build_run(members=2)
    run.warm_up().finish_epoch()
    run.rejoin()
    run.form()
    key = run.state.clients[0].p2p
    assert not is_repeat(run.state, key, WarmupWitness(1, 0, run.state.certified.digest))


def test_a_repeat_of_a_warmup_witness_is_on_record_only_with_the_digest_it_showed() -> None:
    run = build_run(members=3)
    run.form()
    key = run.state.clients[0].p2p
    assert not is_repeat(run.state, key, WarmupWitness(0, 0, run.get_start_digest()))
    run.show(0)
    run.show(1, digest=build_hash("other"))
    assert is_repeat(run.state, key, WarmupWitness(0, 0, run.get_start_digest()))
    assert not is_repeat(run.state, key, WarmupWitness(0, 0, build_hash("other"))), "another member's candidate"
    assert not is_repeat(run.state, key, WarmupWitness(1, 0, run.get_start_digest())), "another epoch"
    assert not is_repeat(run.state, build_keys(7)[1], WarmupWitness(0, 0, run.get_start_digest())), "another key"


def test_a_repeat_of_a_warmup_witness_in_a_later_epoch_is_measured_by_the_certified_digest() -> None:
    run = build_run(members=2)
    run.warm_up().finish_epoch()
    run.rejoin()
    run.form()
    run.show(0)
    key = run.state.clients[0].p2p
    assert is_repeat(run.state, key, WarmupWitness(1, 0, run.state.certified.digest))
    assert not is_repeat(run.state, key, WarmupWitness(1, 0, build_hash("weights")))


@pytest.mark.parametrize(
    "other",
    [
        {"held": 1},
        {"heard": 1},
        {"missing": 1},
        {"at_s": 2},
        {"flags": WitnessFlag.FULL_DIGEST},
        {"results_root": build_hash("other")},
        {"state_digest": build_hash("other")},
        {"broadcast_bloom": b"\1" + bytes(319)},
        {"member": 1},
        {"height": 1},
        {"epoch": 1},
    ],
)
def test_a_repeat_of_a_witness_is_on_record_only_if_every_field_is_equal(other: dict[str, Any]) -> None:
    run = build_run(members=3)
    run.warm_up()
    message = run.build_witness(0)
    key = run.state.clients[0].p2p
    assert not is_repeat(run.state, key, message)
    run.send(message)
    assert is_repeat(run.state, key, message)
    assert is_repeat(run.state, key, _replace(message, {"metadata": b"not stored"}))
    assert not is_repeat(run.state, key, _replace(message, other))


def test_the_number_of_a_witness_is_its_member_index() -> None:
    run = build_run(members=3)
    run.warm_up()
    message, key = run.build_witness(1), run.state.clients[1].p2p
    run.send(message)
    assert is_repeat(run.state, key, message)


def _replace(message: WitnessMessage, changes: dict[str, Any]) -> WitnessMessage:
    values = {name: getattr(message, name) for name in WitnessMessage.__slots__}
    return WitnessMessage(**(values | changes))


def test_a_repeat_of_a_witness_is_found_in_the_round_it_was_for() -> None:
    run = build_run(members=3, rounds_per_epoch=8)
    run.warm_up()
    message, key = run.build_witness(0), run.state.clients[0].p2p
    run.run_round()
    assert run.state.current.height == 1
    assert is_repeat(run.state, key, message)


def test_a_withdrawal_is_on_record_when_there_is_nothing_left_to_leave() -> None:
    run = build_run(members=3)
    key = build_keys(0)[0]
    assert not is_repeat(run.state, key, Withdraw(0, 0)), "the join stands"
    run.state.registry.slots[0].active = 0
    assert is_repeat(run.state, key, Withdraw(0, 0))
    run.form()
    key = run.state.clients[0].p2p
    assert not is_repeat(run.state, key, Withdraw(0, 0))
    run.state.progress.epoch = 1
    assert is_repeat(run.state, key, Withdraw(0, 0)), "the epoch is over"


def test_a_withdrawal_is_on_record_for_the_member_that_has_left_alone() -> None:
    run = build_run(members=3)
    run.warm_up()
    run.state.clients[1].state = ClientState.WITHDRAWN
    key = run.state.clients[1].p2p
    assert is_repeat(run.state, key, Withdraw(0, 1))
    assert not is_repeat(run.state, run.state.clients[0].p2p, Withdraw(0, 0))
    assert not is_repeat(run.state, key, Withdraw(1, 1)), "another epoch"
    assert not is_repeat(run.state, SENDER, Withdraw(0, 1)), "another key"


def test_a_checkpoint_is_on_record_only_with_its_digest_and_source() -> None:
    run = build_run(members=2)
    run.warm_up().finish_epoch()
    source = Checkpoint(CheckpointKind.LOCAL, "/models/1")
    assert not is_repeat(run.state, SENDER, NameCheckpoint(0, run.state.certified.digest, source))
    run.state.checkpoint.digest = run.state.certified.digest
    run.state.model.extra_checkpoints[1] = source
    assert is_repeat(run.state, SENDER, NameCheckpoint(0, run.state.certified.digest, source))
    assert not is_repeat(run.state, SENDER, NameCheckpoint(0, build_hash("other"), source))


def test_an_accusation_is_on_record_for_the_round_it_was_made_in() -> None:
    run = build_run(members=3)
    run.warm_up()
    run.state.clients[1].witness_checked_height = 2
    run.state.clients[2].witness_checked_height = 1
    assert is_repeat(run.state, SENDER, HealthCheck(0, 2, 1))
    assert is_repeat(run.state, SENDER, HealthCheck(0, 1, 2)), "the first round that accuses"
    assert not is_repeat(run.state, SENDER, HealthCheck(0, 3, 1)), "another round"
    assert not is_repeat(run.state, SENDER, HealthCheck(0, 0, 0)), "nobody was accused in round 0"
    assert not is_repeat(run.state, SENDER, HealthCheck(0, 2, 3)), "no such member"
    assert not is_repeat(run.state, SENDER, HealthCheck(1, 2, 1)), "another epoch"


def test_a_report_is_on_record_when_its_member_is_ejected() -> None:
    run = build_run(members=3)
    run.warm_up()
    assert not is_repeat(run.state, SENDER, ReportEquivocation(0, 0, 1))
    run.state.clients[1].state = ClientState.EJECTED
    assert is_repeat(run.state, SENDER, ReportEquivocation(0, 0, 1))
    assert not is_repeat(run.state, SENDER, ReportEquivocation(0, 0, 3)), "no such member"


def test_of_other_kinds_no_message_is_a_repeat() -> None:
    assert not is_repeat(build_run(members=3).state, SENDER, Pause())
