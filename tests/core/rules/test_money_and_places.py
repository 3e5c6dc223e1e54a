"""Earnings leave the record only for whoever pays them (M11); what the owner says of data, sources and nodes (P10)."""

import pytest
from kits.runs import Run, build_cooldown, build_run, expect_refusal

from psyche.core.encoding.account import decode_state, encode_state, get_config_preimage
from psyche.core.encoding.fields import texts
from psyche.core.state.config_checks import find_bootstrap_problems, find_config_problems
from psyche.core.state.errors import ConfigRefused, InvalidCollection, UnknownMember
from psyche.core.state.genesis import create_run
from psyche.core.state.messages import SetRates
from psyche.core.state.state import Checkpoint, CheckpointKind, Metadata, RunState, Slot, SlotState
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_model


def build_earners() -> Run:
    """Three members that have earned 300, 300 and 300 in one epoch; the run waits again."""
    run = build_run(3)
    run.apply(SetRates(earning=900))
    run.warm_up().finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [300, 300, 300]
    return run


def collect(run: Run, number: int, amount: int | None = None) -> int:
    before = sum(slot.earned for slot in run.state.registry.slots)
    run.collect((number, amount))
    return before - sum(slot.earned for slot in run.state.registry.slots)


def test_m11_earnings_are_taken_once_and_the_amount_is_told() -> None:
    run = build_earners()
    nonce = run.state.nonce
    assert collect(run, 1) == 300
    assert (run.state.registry.slots[1].earned, run.state.nonce) == (0, nonce + 1)
    before = encode_state(run.state)
    assert collect(run, 1) == 0
    assert encode_state(run.state) == before, "a repeat takes nothing and changes nothing"


def test_m11_a_part_can_be_taken_and_never_more_than_there_is() -> None:
    run = build_earners()
    assert collect(run, 0, 120) == 120
    for amount in (181, 0, -1):
        with expect_refusal(run.state, InvalidCollection, "M11"):
            collect(run, 0, amount)
    assert collect(run, 0, 180) == 180


def test_m11_of_several_claims_all_are_taken_or_none() -> None:
    run = build_earners()
    with expect_refusal(run.state, InvalidCollection, "M11"):
        run.collect((0, 300), (1, 301))
    with expect_refusal(run.state, UnknownMember, "no slot"):
        run.collect((0, 300), (9, None))
    with expect_refusal(run.state, InvalidCollection, "twice"):
        run.collect((0, 200), (0, 200))
    assert collect(run, 1) == 300
    nonce = run.state.nonce
    run.collect((0, None), (1, None))
    assert (run.state.registry.slots[0].earned, run.state.nonce) == (0, nonce + 1), "one of them took something"


def test_m11_a_slot_that_only_earnings_held_is_free_once_they_are_paid() -> None:
    run = build_earners()
    run.leave(1)
    assert run.state.registry.slots[1].state is SlotState.LEAVING
    collect(run, 1, 100)
    assert run.state.registry.slots[1].state is SlotState.LEAVING, "200 are still to be paid"
    collect(run, 1)
    assert run.state.registry.slots[1] == Slot()


def test_m11_a_member_that_leaves_keeps_its_slot_while_it_may_still_earn() -> None:
    run = build_earners()
    run.rejoin()
    run.warm_up()
    run.run_round()
    run.leave(1)
    assert collect(run, 1) == 300
    assert run.state.registry.slots[1].state is SlotState.LEAVING
    run.finish_epoch()
    assert run.state.registry.slots[1].earned > 0, "it is paid for the rounds it was good in"


def test_m11_earlier_earnings_of_a_banned_slot_are_paid_and_it_stays_banned() -> None:
    run = build_earners()
    run.rejoin()
    run.warm_up()
    run.eject(2, height=0)
    assert collect(run, 2) == 300
    assert run.state.registry.slots[2].state is SlotState.BANNED


def build_cooling(cooldown_sources: int) -> Run:
    return build_cooldown(model=build_model(cooldown_sources=cooldown_sources), cooldown_time=500)


def test_p10_enough_sources_of_the_certified_weights_end_cooldown_at_once() -> None:
    run = build_cooling(2)
    run.name_source(Checkpoint(CheckpointKind.HUB, "org/one"))
    run.settle()
    assert run.state.run_state is RunState.COOLDOWN, "one of two"
    run.name_source(Checkpoint(CheckpointKind.HUB, "org/two"), 1)
    assert run.state.epoch.checkpoint_sources == 2
    run.settle()
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.state.progress.epoch == 1


@pytest.mark.parametrize("count", [-1, 5])
def test_no_more_sources_can_be_asked_for_than_are_kept(count: int) -> None:
    (problem,) = find_config_problems(build_config(), build_model(cooldown_sources=count))
    assert (problem.key, problem.right) == ("model.LLM.cooldown_sources", "0 to 4")
    assert not find_config_problems(build_config(), build_model(cooldown_sources=4))


def test_the_root_of_the_data_and_the_sources_asked_for_are_covered_by_config_hash() -> None:
    plain = get_config_preimage(build_run(0).state)
    assert get_config_preimage(build_run(0, data_root=build_hash(1)).state) != plain
    assert get_config_preimage(build_run(0, model=build_model(cooldown_sources=1)).state) != plain


def test_a_root_has_32_bytes() -> None:
    (problem,) = find_config_problems(build_config(data_root=b"short"), build_model())
    assert (problem.key, problem.what) == ("config.data_root", "has 5 bytes")


ADDRESS = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW"


def create_with(*addresses: str) -> list[str]:
    state = create_run(
        build_config(), build_model(), "run", build_hash(1), Metadata(), "v", START_UNIX, bootstrap=addresses
    )
    assert decode_state(encode_state(state)) == state
    return state.bootstrap


def test_up_to_four_addresses_of_128_bytes_stand_on_record() -> None:
    assert create_with() == []
    four = ["/" + "x" * 127, ADDRESS, "/dns4/a", "/dns4/b"]
    assert create_with(*four) == four


@pytest.mark.parametrize(
    "addresses", [("/a",) * 5, ("",), ("host:4001",), ("/" + "x" * 128,), ("/a\0",), ("/\ud800",), ("/" + "é" * 64,)]
)
def test_other_addresses_are_refused(addresses: tuple[str, ...]) -> None:
    assert list(find_bootstrap_problems(addresses))
    with pytest.raises(ConfigRefused, match="bootstrap"):
        create_with(*addresses)


def test_a_list_of_texts_that_its_place_cannot_hold_is_refused() -> None:
    field = texts("some", 4, 2)
    assert field.to_wire is not None
    for values in (["a", "b", "c"], ["a", ""], ["12345"]):
        with pytest.raises(ValueError, match=r"at most"):
            field.to_wire(values)
