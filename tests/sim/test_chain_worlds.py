"""Whole runs of real clients on a simulated chain: they end as those with a server do, whatever their endpoints do."""

from dataclasses import replace

import pytest
from kits.tier import few
from scenarios.base import get_events
from sim_kit import build, play

from psyche.backends.solana.member.following import MinimumSlot, MinimumSlotFile
from psyche.core.state.state import RunState
from psyche.errors import ConfigError
from psyche.sim.faults import ChainHalt, CleanExit, EndpointFault, Fault, Kill, LostAnswer, OwnerPause, Partition
from psyche.sim.invariants.checker import Invariants
from psyche.sim.scenarios.plan import read_scenario, write_scenario
from psyche.sim.scenarios.scenario import CHAIN, ChainConditions, Scenario
from psyche.sim.world import Outcome, World, simulate
from psyche.telemetry import types

ROUGH = ChainConditions(skipped=0.1, lost=0.1, late=0.1, cut=0.1)


def build_on_chain(
    seed: int = 1, *faults: Fault, clients: int = 4, chain: ChainConditions | None = None, **config: int
) -> Scenario:
    scenario = build(seed, clients=clients, faults=faults, **{"init_min_clients": clients - 1} | config)
    return replace(scenario, backend=CHAIN, chain=chain or ChainConditions())


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return play(build_on_chain(5))


def test_a_run_on_a_chain_ends_and_all_its_members_with_it(outcome: Outcome) -> None:
    assert outcome.state.run_state is RunState.FINISHED
    assert outcome.codes == (0, 0, 0, 0)
    assert outcome.facts["dropped"] == {}
    ended = get_events(outcome, types.Finished)
    assert {one.event.digest for one in ended} == {outcome.state.certified.digest}


def test_members_are_joined_by_their_wallets_and_named_by_their_session_keys(outcome: Outcome) -> None:
    assert len(outcome.state.clients) == 4
    assert all(client.signer != client.p2p for client in outcome.state.clients)


@pytest.mark.parametrize("seed", few([1, 2, 3]))
def test_no_honest_member_is_dropped_whatever_the_lags_and_the_losses(seed: int) -> None:
    scenario = build_on_chain(seed, clients=3 + seed % 3, chain=ROUGH, total_steps=12, rounds_per_epoch=10)
    assert play(scenario).facts["dropped"] == {}


EVERYBODY = ("all",)


@pytest.mark.parametrize(
    "fault",
    few(
        [
            Kill(at_height=2, who=("client-1",), for_s=6.0),
            CleanExit(at_height=2, who=("client-1",), for_s=6.0),
            EndpointFault(at_height=2, who=EVERYBODY, endpoint=1, is_down=True, for_s=30.0),
            EndpointFault(at_height=2, who=EVERYBODY, endpoint=1, stale_slots=20, for_s=30.0),
            EndpointFault(at_height=2, who=EVERYBODY, throttled=0.5, for_s=30.0),
            EndpointFault(who=EVERYBODY, lost=0.3, late=0.7, for_s=100.0),
            EndpointFault(at_height=2, who=("client-2",), is_down=True, for_s=30.0),
            ChainHalt(at_height=2, for_s=20.0),
        ],
        1,
    ),
    ids=lambda fault: f"{fault.kind} {sorted(set(vars_of(fault)))}",
)
def test_a_run_gets_over_a_fault(fault: Fault) -> None:
    play(build_on_chain(3, fault))


def vars_of(fault: Fault) -> list[str]:
    plain = type(fault)()
    return [name for name in fault.__dataclass_fields__ if getattr(fault, name) != getattr(plain, name)]


@pytest.mark.whole
def test_the_owner_pauses_and_resumes_with_transactions() -> None:
    outcome = play(build_on_chain(1, OwnerPause(at_height=2, for_s=10.0)))
    states = [one.event.run_state for one in get_events(outcome, types.StateChanged, "client-0")]
    assert RunState.PAUSED in states
    assert outcome.state.run_state is RunState.FINISHED


def test_a_message_that_takes_effect_twice_is_reported() -> None:
    def prepare(world: World) -> None:
        chain = world._chain.chain
        chain.on_block.insert(0, lambda _block: chain.bank.history.statuses.clear())  # it forgets what has landed

    names = {one.name for one in simulate(build_on_chain(chain=ChainConditions(late=0.5)), prepare=prepare).violations}
    assert "I8" in names


def test_an_account_that_its_messages_do_not_give_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_end(checks: Invariants) -> None:
        checks.world.shadow.state.progress.step += 1
        real(checks)

    real = Invariants.check_end
    monkeypatch.setattr(Invariants, "check_end", check_end)
    assert {one.name for one in simulate(build_on_chain(total_steps=3)).violations} == {"I8"}


# --- a restart with stale endpoints (M9) ---------------------------------------------------------------------------


def build_stale_restart() -> Scenario:
    """A member dies after its result of round 0; back at once, it finds only an endpoint that still shows Warmup."""
    who = ("client-1",)
    down = EndpointFault(at_height=0, after_s=4.0, who=who, endpoint=1, is_down=True, for_s=20.0)
    stale = EndpointFault(at_height=0, after_s=4.0, who=who, endpoint=2, stale_slots=20, for_s=20.0)
    kill = Kill(at_height=0, after_s=4.0, who=who, for_s=0.2)
    return build_on_chain(1, down, stale, kill, chain=ChainConditions(lag_most_s=1.0), init_min_clients=4)


def change_arithmetic(world: World) -> None:
    """What the member computes after its restart differs in the last bits, as on another graphics card."""
    host = world.clients[1]

    def see(_node: str, event: types.Event) -> None:
        if isinstance(event, types.Killed):
            host.cls = replace(host.cls, machine=replace(host.cls.machine, numeric_class=1))

    world.trace.listeners.append(see)


@pytest.mark.whole
def test_a_member_that_finds_only_stale_endpoints_after_a_restart_signs_no_second_result() -> None:
    outcome = simulate(build_stale_restart(), prepare=change_arithmetic)
    assert not outcome.violations, outcome.describe()
    sent = [one.event for one in get_events(outcome, types.ResultSent, "client-1") if one.event.epoch == 0]
    assert len([one for one in sent if one.height == 0]) == 1


def test_a_backend_that_shows_a_state_older_than_its_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MinimumSlotFile, "read", lambda _floor: MinimumSlot().read())
    violations = simulate(build_stale_restart(), prepare=change_arithmetic).violations
    assert {one.name for one in violations} == {"R7"}


# --- plans -------------------------------------------------------------------------------------------------------


def test_a_plan_of_a_run_on_a_chain_is_the_same_after_it_was_written_and_read() -> None:
    fault = EndpointFault(at_height=2, who=("client-1", "random:2"), endpoint=2, stale_slots=20, for_s=3.5)
    scenario = build_on_chain(7, fault, OwnerPause(for_s=2.0), ChainHalt(for_s=1.0), chain=ROUGH)
    assert read_scenario(write_scenario(scenario)) == replace(scenario, config=dict(scenario.config))


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (Scenario(backend="moon"), "backend is 'moon', must be one of tcp, solana"),
        (Scenario(faults=(ChainHalt(for_s=1.0),)), "chain_halt: needs a run on a chain, this one is on a server"),
        (build_on_chain(1, LostAnswer(who=("all",), for_s=1.0)), "lost_answer: a run on a chain has no server"),
        (build_on_chain(1, Kill(who=("server",))), "kill: a run on a chain has no server"),
        (
            build_on_chain(1, Partition(groups=(("server",), ("all",)), for_s=1.0)),
            "partition: a run on a chain has no server",
        ),
        (build_on_chain(1, EndpointFault(who=("all",), is_down=True)), "for_s is 0.0, must be above 0"),
        (build_on_chain(1, EndpointFault(who=("all",), for_s=1.0)), "at least one must be set"),
        (
            build_on_chain(1, EndpointFault(who=("all",), endpoint=3, is_down=True, for_s=1.0)),
            "endpoint is 3, must be 1 to 2, or 0 for all",
        ),
        (build_on_chain(chain=ChainConditions(slot_s=0.0)), "chain: slot_s is 0.0, must be above 0"),
        (build_on_chain(chain=ChainConditions(lost=1.0)), "chain: lost is 1.0, must be below 1"),
        (build_on_chain(chain=ChainConditions(skipped=2.0)), "chain: skipped is 2.0, must be a share from 0 to 1"),
        (build_on_chain(chain=ChainConditions(endpoints=0)), "chain: endpoints is 0, must be 1 to 16"),
        (build_on_chain(chain=ChainConditions(lag_least_s=4.0)), "lag_least_s is 4.0, must be at most lag_most_s"),
    ],
)
def test_a_plan_that_no_chain_can_play_is_refused(scenario: Scenario, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_scenario(write_scenario(scenario))
    assert message in str(caught.value)
