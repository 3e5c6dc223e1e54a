"""The real backend of a client over the simulated chain: joins, ticks, repeats, restarts, contradicting endpoints."""

import inspect
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from sim.chain_kit import START, ChainStage, MemberLink, get_key, get_state, run_stage

from psyche import __version__
from psyche.backends.solana.member.backend import ChainPlatform, SolanaBackend, open_chain_backend
from psyche.backends.solana.member.following import FORK_S, MinimumSlot, MinimumSlotFile
from psyche.backends.solana.member.logic import JOIN_VALID_S
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Join, Tick, WarmupWitness, Withdraw
from psyche.core.state.state import Coordinator, RunState
from psyche.errors import BackendError, RunClosed, VersionMismatch
from psyche.sim.faults import EndpointFault
from psyche.sim.scenarios.scenario import ChainConditions
from psyche.telemetry.types import Error, StateMismatch, WaitEnded
from psyche.wire.crypto import Identity

CONDITIONS = ChainConditions(lag_least_s=0.5, lag_most_s=0.5, skipped=0.0)
DIGEST = b"\5" * 32


class Stage(ChainStage):
    """A chain that goes on, and backends over links of their own."""

    stack: AsyncExitStack

    def start(self, number: int) -> MemberLink:
        """A client's link at work."""
        link = self.build_link(number)
        self.nursery.start_soon(link.run)
        return link

    async def open(
        self, number: int, lags_s: tuple[float, ...] = (0.5, 2.0), link: MemberLink | None = None,
        floor: MinimumSlot | None = None,
    ) -> SolanaBackend:  # fmt: skip
        link = link or self.build_link(number, lags_s)
        self.nursery.start_soon(link.run)
        platform = ChainPlatform(rng=random.Random(number), floor=floor or MinimumSlot())
        return await self.stack.enter_async_context(open_chain_backend(link, sink=self.events, platform=platform))


async def wait_for(
    backend: SolanaBackend, wanted: Callable[[Coordinator], bool], patience_s: float = 60.0
) -> Coordinator:
    with trio.fail_after(patience_s):
        async with aclosing(backend.states()) as states:
            async for state in states:
                if wanted(state):
                    return state
    raise AssertionError("the states ended")


def on_stage(conditions: ChainConditions = CONDITIONS, **config: int) -> Callable[[Callable[..., Any]], Any]:
    """Make a test of what is to happen on a stage; its further arguments are fixtures."""

    def make(play: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def play_on(stage: ChainStage, **fixtures: Any) -> None:
            assert isinstance(stage, Stage)
            async with AsyncExitStack() as stage.stack:
                await play(stage, **fixtures)

        def test(**fixtures: Any) -> None:
            run_stage(partial(play_on, **fixtures), conditions, Stage, **config)

        test.__signature__ = inspect.Signature(list(inspect.signature(play).parameters.values())[1:])  # type: ignore[attr-defined]
        return test

    return make


async def join_both(stage: Stage) -> tuple[SolanaBackend, SolanaBackend]:
    first, second = await stage.open(1), await stage.open(2)
    for number, backend in ((1, first), (2, second)):
        await backend.submit(Join(get_key(number)[1]))
    return first, second


@on_stage()
async def test_a_join_carries_an_expiry_and_is_renewed_while_it_waits(stage: Stage) -> None:
    backend = await stage.open(1)
    await backend.submit(Join(get_key(1)[1]))
    await trio.sleep(3 * JOIN_VALID_S)
    (slot,) = get_state(stage.chain).registry.slots
    now = START + int(trio.current_time())
    assert now < slot.expires_unix <= now + JOIN_VALID_S
    assert 3 <= stage.count(Join) <= 8


@pytest.mark.parametrize("is_starting", [False, True])
@on_stage()
async def test_the_join_of_a_client_that_died_expires_so_that_no_epoch_waits_for_it(
    stage: Stage, is_starting: bool
) -> None:
    link = stage.build_link(1)
    stage.nursery.start_soon(link.run)
    async with open_chain_backend(link) as backend:
        await backend.submit(Join(get_key(1)[1]))
    if is_starting:
        await stage.open(1)  # its next process has found the chain, and still loads PyTorch
    await trio.sleep(JOIN_VALID_S + 5)
    other = await stage.open(2)
    await other.submit(Join(get_key(2)[1]))
    await trio.sleep(20)
    assert get_state(stage.chain).run_state is RunState.WAITING_FOR_MEMBERS


@on_stage()
async def test_two_calls_with_one_message_send_it_once(stage: Stage) -> None:
    backends = await join_both(stage)
    state = await wait_for(backends[0], lambda state: state.run_state is RunState.WARMUP)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(backends[0].submit, WarmupWitness(state.progress.epoch, 0, DIGEST))
    assert stage.count(WarmupWitness) == 1


@on_stage()
async def test_a_restarted_client_is_shown_nothing_older_than_its_start(stage: Stage) -> None:
    await stage.join_somebody(2)
    await trio.sleep(3)  # stale endpoints still show the record before the join
    link = stage.build_link(1, (0.5, 0.5))
    link.endpoints[0].suffer(EndpointFault(stale_slots=25))
    backend = await stage.open(1, link=link)
    state = await wait_for(backend, lambda _state: True)
    assert [slot.signer for slot in state.registry.slots] == [get_key(2)[0]]


@on_stage(init_min_clients=8)
async def test_ticks_are_few_though_all_see_that_one_is_due(stage: Stage) -> None:
    backends = [await stage.open(number) for number in range(1, 9)]
    for number, backend in enumerate(backends, start=1):
        await backend.submit(Join(get_key(number)[1]))
    await wait_for(backends[0], lambda state: state.run_state is RunState.WARMUP)
    assert stage.count(Tick) == 1, "an effect; others came too late or were not sent"


@on_stage()
async def test_a_client_whose_wallet_another_machine_uses_ends_with_a_sentence(stage: Stage) -> None:
    other = Identity(b"\x77" * 32)

    async def follow() -> None:
        link = stage.build_link(1)
        stage.nursery.start_soon(link.run)
        async with open_chain_backend(link) as backend:
            await backend.submit(Join(get_key(1)[1]))
            await stage.build_link(1, session=other).send([Join(other.public)])
            await trio.sleep(60)

    with pytest.raises(BackendError, match="another machine takes part with this wallet"):
        await follow()


@on_stage(init_min_clients=9)
async def test_nothing_is_sent_until_endpoints_that_contradict_each_other_agree(stage: Stage) -> None:
    link = stage.build_link(1, (0.5, 0.6))
    backend = await stage.open(1, link=link)
    await wait_for(backend, lambda _state: True)
    link.endpoints[1].suffer(EndpointFault(is_forked=True))
    await stage.join_somebody(2)
    while not any(isinstance(event, StateMismatch) for event in stage.events.told):
        await trio.sleep(0.1)
    await backend.submit(Join(get_key(1)[1]))
    events = [event for event in stage.events.told if isinstance(event, StateMismatch | WaitEnded)]
    at = next(number for number, event in enumerate(events) if isinstance(event, StateMismatch))
    mismatch, then = events[at : at + 2]
    assert isinstance(then, WaitEnded), "read again, the record was the same"
    assert isinstance(mismatch, StateMismatch)
    assert "two endpoints show different records" in mismatch.reason


@on_stage(init_min_clients=9)
async def test_endpoints_that_contradict_each_other_for_ever_do_not_stop_the_run(stage: Stage) -> None:
    link = stage.build_link(1, (0.5, 0.6, 0.7))
    link.endpoints[2].suffer(EndpointFault(is_wrong=True))
    backend = await stage.open(1, link=link)
    await trio.sleep(FORK_S + 10)
    await stage.join_somebody(2)
    with trio.fail_after(120):
        await backend.submit(Join(get_key(1)[1]))
    assert any("remove the endpoint that is wrong: endpoint-0.7" in str(event) for event in stage.events.told)


@on_stage()
async def test_a_tick_that_cannot_be_paid_is_said_once_and_ends_nothing(stage: Stage) -> None:
    backend = await stage.open(1)
    await backend.submit(Join(get_key(1)[1]))
    stage.links[0].is_poor = True
    await stage.join_somebody(2)
    await trio.sleep(40)
    errors = [event.message for event in stage.events.told if isinstance(event, Error)]
    assert errors == ["the wallet is empty"]
    stage.links[0].is_poor = False
    await wait_for(backend, lambda state: state.run_state is RunState.WARMUP)


@on_stage(warmup_time=10)
async def test_a_lost_message_does_not_keep_back_the_next_one_once_it_is_too_late(stage: Stage) -> None:
    backends = await join_both(stage)
    state = await wait_for(backends[0], lambda state: state.run_state is RunState.WARMUP)
    for endpoint in stage.links[0].endpoints:
        endpoint.conditions = replace(CONDITIONS, lost=1.0)
    asked_s = trio.current_time()
    with pytest.raises(CoordinatorError):
        await backends[0].submit(WarmupWitness(state.progress.epoch, 0, DIGEST))
    assert trio.current_time() - asked_s < state.config.warmup_time + 15, "its Warmup is over"


@on_stage()
async def test_own_ticks_pause_until_the_last_one_can_have_shown(stage: Stage) -> None:
    backend = await stage.open(1, lags_s=(3.0,))
    await backend.submit(Join(get_key(1)[1]))
    await stage.join_somebody(2)
    await wait_for(backend, lambda state: state.run_state is RunState.WARMUP)
    assert sum(isinstance(message, Tick) for message in stage.links[0].sent) <= 3


@on_stage()
async def test_a_withdrawal_ends_the_renewals(stage: Stage) -> None:
    backend = await stage.open(1)
    await backend.submit(Join(get_key(1)[1]))
    await wait_for(backend, lambda state: bool(state.registry.slots))
    await backend.submit(Withdraw(0, 0))
    before = stage.count(Join)
    await trio.sleep(3 * JOIN_VALID_S)
    assert stage.count(Join) == before


@on_stage()
async def test_a_client_started_again_waits_for_what_it_knew_though_all_endpoints_are_behind(
    stage: Stage, tmp_path: Path
) -> None:
    floor = MinimumSlotFile(tmp_path / "slot")
    async with open_chain_backend(stage.start(1), platform=ChainPlatform(floor=floor)) as backend:
        await stage.join_somebody(2)
        await wait_for(backend, lambda state: bool(state.registry.slots))
    known = floor.read()
    assert known > 10
    link = stage.build_link(1)
    link.endpoints[0].suffer(EndpointFault(stale_slots=100))
    backend = await stage.open(1, link=link, floor=MinimumSlotFile(tmp_path / "slot"))
    began = trio.current_time()
    await wait_for(backend, lambda _state: True, patience_s=120)
    assert trio.current_time() - began > 20


@on_stage()
async def test_two_that_follow_the_states_at_once_do_not_spoil_what_is_kept_for_a_restart(
    stage: Stage, tmp_path: Path
) -> None:
    backend = await stage.open(1, floor=MinimumSlotFile(tmp_path / "slot"))
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(wait_for, backend, lambda _state: True)
    assert not [event for event in stage.events.told if isinstance(event, Error)]
    assert MinimumSlotFile(tmp_path / "slot").read() > 0


def test_a_file_that_holds_no_slot_is_named(tmp_path: Path) -> None:
    assert MinimumSlotFile(tmp_path / "slot").read() == 0
    (tmp_path / "slot").write_text("x")
    with pytest.raises(BackendError, match="cannot be read as a slot"):
        MinimumSlotFile(tmp_path / "slot").read()
    with pytest.raises(BackendError, match=r"cannot be written \(.+\); until it can"):
        MinimumSlotFile(tmp_path / "slot" / "slot").write(1)
    MinimumSlotFile(tmp_path / "new" / "slot").write(7)
    assert MinimumSlotFile(tmp_path / "new" / "slot").read() == 7


class FullDisk(MinimumSlot):
    def write(self, slot: int) -> None:
        raise BackendError(f"slot {slot} cannot be written")


@on_stage()
async def test_a_full_disk_ends_no_client_on_a_chain(stage: Stage) -> None:
    backend = await stage.open(1, floor=FullDisk())
    await backend.submit(Join(get_key(1)[1]))
    await wait_for(backend, lambda state: bool(state.registry.slots))
    assert any("cannot be written" in event.message for event in stage.events.told if isinstance(event, Error))


@on_stage()
async def test_a_client_of_another_version_than_the_owner_wants_ends(stage: Stage) -> None:
    get_state(stage.chain).client_version = __version__
    backend = await stage.open(1)
    await wait_for(backend, lambda _state: True)
    get_state(stage.chain).client_version = "99.0"
    await stage.join_somebody(2)
    with pytest.raises(VersionMismatch, match=r"wants clients of version 99\.0.*bash scripts/install"):
        await wait_for(backend, lambda state: bool(state.registry.slots))


@pytest.mark.parametrize("endpoints", [(0.5,), (0.5, 0.9)])
@on_stage()
async def test_members_of_a_chain_that_went_back_say_so_and_go_on(stage: Stage, endpoints: tuple[float, ...]) -> None:
    backends = [await stage.open(number, endpoints) for number in (1, 2)]
    before = stage.chain.newest.raw
    for number, backend in enumerate(backends, 1):
        await backend.submit(Join(get_key(number)[1]))
    for backend in backends:
        await wait_for(backend, lambda state: state.run_state is RunState.WARMUP)
    stage.write_account(before)
    for number, backend in enumerate(backends, 1):
        with trio.fail_after(FORK_S + 30):
            await wait_for(backend, lambda state: state.run_state is RunState.WAITING_FOR_MEMBERS)
            await backend.submit(Join(get_key(number)[1]))
    for backend in backends:
        await wait_for(backend, lambda state: state.run_state is RunState.WARMUP)
    told = [event.reason for event in stage.events.told if isinstance(event, StateMismatch)]
    assert sum("went back" in reason for reason in told) == 2, told
    assert len(told) <= 2 * (1 + len(endpoints)), "said once each"
    assert not any("two endpoints" in reason for reason in told) or len(endpoints) > 1


def test_a_run_that_is_closed_under_its_members_ends_them_with_an_exit_code_of_its_own() -> None:
    async def play(stage: Stage) -> None:
        backend = await stage.open(1)
        await backend.submit(Join(get_key(1)[1]))
        stage.write_account(b"")
        with trio.fail_after(FORK_S + 30):
            while True:
                await wait_for(backend, lambda _state: False)

    with pytest.raises(RunClosed, match=r"run 'run' was closed by its owner in step \d") as caught:
        on_stage()(play)()
    assert caught.value.exit_code == 11
