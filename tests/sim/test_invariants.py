"""The checks themselves: a world that breaks a promise is caught, and says what a person needs."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kits.log import make
from scenarios.base import get_events
from sim_kit import build, play

from psyche.client.engine.healing import Healing
from psyche.core.state.state import Coordinator, RunState
from psyche.forecast.inputs import load_scenario
from psyche.network.announce import Outbox
from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.network.streams import ByteStream
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import BitFlip, Kill
from psyche.sim.invariants.views import ClientStatistics
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.shrink import fails_alike, shrink
from psyche.sim.trainer import SimTrainer
from psyche.sim.world import Outcome, Violation, World, simulate
from psyche.telemetry import types
from psyche.wire.trainer import ApplyReply, ApplyRequest, TrainRequest


def break_arithmetic(world: World) -> None:
    """Client 1 computes something else, and nobody is told."""
    world.clients[1].trainer_faults.flip = 3

    def hide(_node: str, _event: types.Event) -> None:
        trainer = world.clients[1].trainer
        if trainer is not None:
            trainer.is_corrupt = False

    world.trace.listeners.insert(0, hide)


def test_different_arithmetic_is_reported_with_both_sides() -> None:
    outcome = simulate(build(), prepare=break_arithmetic)
    first = outcome.violations[0]
    assert first.name == "I1"
    assert "client-" in first.expected
    assert "client-1" in first.found + first.expected


@pytest.mark.whole
def test_a_run_that_does_not_end_is_reported() -> None:
    kill = Kill(at_epoch=0, at_height=1, who=("server",))
    scenario = build(faults=(kill,))
    outcome = simulate(scenario)
    assert [violation.name for violation in outcome.violations] == ["I5"]


def test_a_run_without_enough_living_members_owes_no_progress_until_its_time_is_up() -> None:
    kill = Kill(at_epoch=0, at_height=1, who=("client-0", "client-1", "client-2"), for_s=400.0)
    outcome = play(build(faults=(kill,), min_clients=3))
    assert outcome.state.run_state is RunState.FINISHED
    assert outcome.simulated_s > 400


def test_a_second_result_of_an_honest_member_is_reported() -> None:
    def forget(world: World) -> None:
        world.invariants.check_event("client-0", make(types.ResultSent, height=2, commitment=b"other"))

    names = {violation.name for violation in simulate(build(), prepare=forget).violations}
    assert names == {"R7"}


def tamper(change: Callable[[Coordinator], None]) -> Outcome:
    """A run whose record is changed behind everybody's back in its third round."""

    def prepare(world: World) -> None:
        def see(_node: str, event: types.Event) -> None:
            if isinstance(event, types.Trained) and event.height == 3:
                change(world.shadow.state)
                world.trace.listeners.remove(see)

        world.trace.listeners.append(see)

    return simulate(build(), prepare=prepare)


@pytest.mark.parametrize("credits_", [-1, 2, 9])
def test_a_credit_that_nothing_earned_is_reported(credits_: int) -> None:
    def change(state: Coordinator) -> None:
        state.clients[2].credits += credits_

    first = tamper(change).violations[0]
    assert first.name == "I2"
    assert "member 2" in first.expected


def test_samples_that_are_left_out_are_reported() -> None:
    def change(state: Coordinator) -> None:
        state.current.batch_size += 1

    names = [violation.name for violation in tamper(change).violations]
    assert "I2" in names


def test_a_result_whose_fate_is_never_told_is_reported() -> None:
    def forget(world: World) -> None:
        note = SimTrainer._note_outcomes

        def note_some(trainer: SimTrainer, request: TrainRequest) -> None:
            told = tuple(outcome for outcome in request.decided if outcome.height != 1)
            note(trainer, msgspec.structs.replace(request, decided=told))

        patch.setattr(SimTrainer, "_note_outcomes", note_some)

    with pytest.MonkeyPatch.context() as patch:
        violations = simulate(build(), prepare=forget).violations
    assert {violation.name for violation in violations} == {"R8"}
    assert "never told what became of its results of [1]" in violations[0].found


def test_what_a_former_life_complained_of_is_not_forgotten() -> None:
    def complain(world: World) -> None:
        world.clients[0].complaints.append("of long ago")

    kill = Kill(at_epoch=0, at_height=2, who=("client-0",), for_s=1.0)
    violations = simulate(build(faults=(kill,), total_steps=17), prepare=complain).violations
    assert [(violation.name, violation.found) for violation in violations] == [("R8", "client-0: of long ago")]


def test_a_process_that_dies_of_a_defect_is_reported() -> None:
    def sabotage(world: World) -> None:
        world.codec.get_votes = None  # type: ignore[method-assign]

    outcome = simulate(build(), prepare=sabotage)
    assert outcome.violations[0].name == "no defects"
    assert "NoneType" in outcome.violations[0].found


def test_time_that_stands_still_is_reported_and_is_no_hang() -> None:
    async def spin_for_ever() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    def sabotage(world: World) -> None:
        started: list[types.Trained] = []

        def spin(_node: str, event: types.Event) -> None:
            if isinstance(event, types.Trained) and not started:
                started.append(event)
                world.spawn(spin_for_ever)

        world.trace.listeners.append(spin)

    first = simulate(build(), prepare=sabotage).violations[0]
    assert first.expected == "time goes on"
    assert "spin_for_ever" in first.found


@pytest.mark.whole
def test_a_failing_plan_is_made_small() -> None:
    kill = Kill(at_epoch=0, at_height=1, who=("server",))
    others = tuple(Kill(at_s=float(at), who=("client-1",), for_s=1.0) for at in (4, 8))
    scenario = build(faults=(*others, kill), clients=3, total_steps=5)
    outcome: Outcome = simulate(scenario, keep_lines=False)
    assert shrink(scenario, fails_alike(outcome), max_tries=6).faults == (kill,)


def test_announcements_that_pile_up_for_a_peer_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6, on production's own queue: nothing is sent, and it has no bound."""

    async def send_nothing(self: Outbox, stream: ByteStream) -> None:
        self._queue = deque(self._queue)
        await trio.sleep_forever()

    monkeypatch.setattr(Outbox, "run", send_nothing)
    scenario = replace(build(), limits=NetworkLimits(outbox_messages=4))
    found = simulate(scenario).violations[0]
    assert (found.name, found.expected) == ("I6", "at most 4 announcements unsent")


@pytest.mark.whole
@pytest.mark.parametrize(("clients", "loss", "streamed"), [(4, 0.0, True), (4, 0.01, False), (17, 0.0, False)])
def test_announcements_of_few_on_good_lines_go_through_the_outbox_of_production(
    clients: int, loss: float, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[bytes] = []
    queue = Outbox.put

    def watch(self: Outbox, message: bytes) -> None:
        put.append(message)
        queue(self, message)

    monkeypatch.setattr(Outbox, "put", watch)
    line = LinkConditions(latency_s=0.01, loss=loss)
    play(build(clients=clients, cls={"uplink": line}, total_steps=3))
    assert bool(put) is streamed


def test_a_client_tells_what_it_holds() -> None:
    found: list[ClientStatistics] = []

    def prepare(world: World) -> None:
        async def watch() -> None:
            while True:
                await trio.sleep(0.1)
                held = world.clients[1].get_statistics()
                if held is not None:
                    found.append(held)

        world.companions.append(watch)

    outcome = simulate(build(clients=3, total_steps=4, rounds_per_epoch=4), prepare=prepare)
    assert not outcome.violations, outcome.describe()
    assert max(held.members for held in found) == 3
    assert max(held.rounds for held in found) >= 2, "rounds are remembered"
    assert max(held.shell.payloads for held in found) >= 3, "of each member one"
    assert max(held.shell.trainer_requests for held in found) >= 1
    assert max(held.network.blobs_offered for held in found) >= 1
    assert max(held.network.blob_memory_bytes for held in found) > 0
    assert max(held.network.streams_per_peer for held in found) >= 1
    assert max(held.connection_streams for held in found) >= 1
    assert {held.backend is not None for held in found} == {True}
    assert min(held.shell.trainer_requests for held in found) == 0, "a request that is done counts no more"


def test_who_applies_the_right_payloads_in_another_order_holds_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    apply, wrong = SimTrainer.apply, list[Any]()

    async def apply_backwards(self: SimTrainer, request: ApplyRequest) -> ApplyReply:
        wrong.append(self)
        if self is wrong[0]:  # one of all
            request = msgspec.structs.replace(request, payloads=request.payloads[::-1])
        return await apply(self, request)

    monkeypatch.setattr(SimTrainer, "apply", apply_backwards)
    outcome = simulate(build(1, clients=4))
    assert any("I1" in str(violation) for violation in outcome.violations), outcome.describe()


# --- what a run owes its clients: one that withholds it violates I5 --------------------------------------------------


FLIP = BitFlip(at_epoch=0, at_height=2, who=("client-1",), place=3)


def find_first(scenario: Scenario) -> Violation:
    found = simulate(scenario).violations
    assert found, "nothing is violated"
    return found[0]


def build_flipped() -> Scenario:
    return build(faults=(FLIP,), total_steps=20, rounds_per_epoch=20)


def test_a_flipped_weight_is_healed_within_the_epoch() -> None:
    outcome = play(build_flipped())
    assert get_events(outcome, types.Healed)
    assert outcome.facts["dropped"] == {}


def test_a_client_that_never_heals_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Healing, "act", lambda _healing, _now: None)
    first = find_first(build_flipped())
    assert (first.name, first.expected) == ("I5", "client-1 has the agreed weights again within 3 agreed digests")


def test_a_client_that_leaves_where_it_could_heal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Healing, "_replay", lambda healing, reason: healing.give_up(types.LeaveCause.WRONG_WEIGHTS, reason)
    )
    first = find_first(build_flipped())
    assert (first.name, first.expected) == ("I5", "client-1 heals as a member")


@pytest.mark.whole
def test_epochs_that_are_given_up_one_after_the_other_are_reported() -> None:
    """Two of four leave every epoch without its end: no quorum certifies anything, and rounds go by for ever."""
    liars = tuple(ByzantineMember(who=number, kind="no_end") for number in (2, 3))
    times: dict[str, Any] = {"max_round_train_time": 10, "round_witness_time": 4, "warmup_time": 10, "cooldown_time": 2}
    scenario = build(byzantine=liars, total_steps=1_000, rounds_per_epoch=4, init_min_clients=2, **times)
    first = find_first(scenario)
    assert (first.name, first.expected) == ("I5", "newly certified weights")


@pytest.mark.whole
def test_a_run_whose_only_proven_member_lies_may_stand_still() -> None:
    """M10: newcomers are as many as the proven members, so one of an epoch's two members lies."""
    outcome = play(load_scenario(Path(__file__).with_name("corpus") / "the-only-proven-member-lies.toml"))
    (told,) = get_events(outcome, types.RunLost)
    assert "too many of the proven members lie" in told.event.why
