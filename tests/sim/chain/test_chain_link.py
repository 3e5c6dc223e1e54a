"""One client's way to the simulated chain: what it reads, and that what it sends takes effect once."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing
from sim.chain_kit import START, build_chain, get_key, pass_slots

from psyche.backends.solana.member.link import Link, Reading, TransactionExpired
from psyche.core.state.errors import InvalidWithdraw
from psyche.core.state.messages import Join, Message, Pause, Withdraw
from psyche.network.memory.line import Arrivals
from psyche.sim.chain.blocks import Blockchain, ChainBlock
from psyche.sim.chain.conditions import ChainConditions
from psyche.sim.chain.endpoints import EndpointTrouble, SimulatedEndpoint
from psyche.sim.chain.link import SimulatedLink
from psyche.wire.backend import NotOwner

FAST = ChainConditions(lag_least_s=0.5, lag_most_s=0.5)
Play = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A chain that goes on, one client's endpoints, and its link."""

    def __init__(self, conditions: ChainConditions, lags_s: tuple[float, ...]) -> None:
        self.conditions = conditions
        self.chain: Blockchain = build_chain(conditions.skipped)
        self.effects: list[type[Message]] = []
        self.chain.on_block.append(lambda block: self.effects.extend(type(one.message) for one in block.effects))
        pass_slots(self.chain)
        self.endpoints = [
            SimulatedEndpoint(f"endpoint-{number}", self.chain, random.Random(number), conditions, lag_s)
            for number, lag_s in enumerate(lags_s)
        ]
        wallet, session = get_key(1)
        self.link = SimulatedLink(self.chain, self.endpoints, wallet, session, Arrivals())

    @property
    def port(self) -> Link:
        """The link, as the backend uses it."""
        return self.link

    async def make_blocks(self) -> None:
        while True:
            await trio.sleep(self.conditions.slot_s)
            self.chain.produce(trio.current_time(), START + int(trio.current_time()))

    async def join(self) -> int:
        return await self.port.send([Join(get_key(1)[1])])

    def count(self, kind: type[Message]) -> int:
        """How many messages of a kind took effect."""
        return self.effects.count(kind)

    async def read(self, readings: list[Reading]) -> None:
        async for reading in self.port.readings():
            readings += [reading]


def run(play: Play, *, lags_s: tuple[float, ...] = (0.5, 2.0), **changes: float) -> None:
    async def main() -> None:
        stage = Stage(replace(FAST, **changes), lags_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.make_blocks)
            nursery.start_soon(stage.link.run)
            await trio.sleep(5.0)  # every endpoint has blocks to show
            with trio.fail_after(600):
                await play(stage)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_message_is_sent_and_its_slot_told_once_it_is_confirmed() -> None:
    async def play(stage: Stage) -> None:
        slot = await stage.join()
        block = next(block for block in stage.chain.blocks if block.effects)
        assert slot == block.slot
        assert trio.current_time() >= block.made_s + 0.5

    run(play)


def test_all_endpoints_push_each_change_after_their_own_delay() -> None:
    async def play(stage: Stage) -> None:
        readings: list[Reading] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.read, readings)
            slot = await stage.join()
            await trio.sleep(3.0)
            nursery.cancel_scope.cancel()
        assert [one.endpoint for one in readings if one.slot == slot] == ["endpoint-0", "endpoint-1"]

    run(play)


def test_a_cut_push_is_made_up_for_by_asking() -> None:
    async def play(stage: Stage) -> None:
        readings: list[Reading] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.read, readings)
            await stage.join()
            await trio.sleep(8.0)
            nursery.cancel_scope.cancel()
        assert readings[-1].raw == stage.chain.newest.raw

    run(play, cut=1.0)


@pytest.mark.parametrize(("lost", "late", "skipped"), [(0.7, 0, 0), (0, 1, 0), (0, 0, 0.5), (0.5, 0.5, 0.1)])
def test_what_is_lost_or_late_takes_effect_once(lost: float, late: float, skipped: float) -> None:
    async def play(stage: Stage) -> None:
        for _ in range(5):
            await stage.join()
            await stage.port.send([Withdraw(0, 0)])
        await trio.sleep(100.0)
        assert (stage.count(Join), stage.count(Withdraw)) == (5, 5)

    run(play, lost=lost, late=late, skipped=skipped)


def test_a_dead_endpoint_costs_less_than_five_seconds() -> None:
    async def play(stage: Stage) -> None:
        stage.endpoints[0].troubles.append(EndpointTrouble(is_down=True))
        begun = trio.current_time()
        await stage.join()
        assert trio.current_time() - begun < 7.0, "failover within 5 s, and a block and its confirmation"

    run(play)


def test_an_endpoint_that_is_behind_what_the_client_knows_is_not_believed() -> None:
    """It would refuse the withdrawal of a join that it has not seen."""

    async def play(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            readings: list[Reading] = []
            nursery.start_soon(stage.read, readings)
            await stage.join()
            stage.endpoints[0].troubles.append(EndpointTrouble(stale_slots=20))
            await trio.sleep(3.0)
            await stage.port.send([Withdraw(0, 0)])
            nursery.cancel_scope.cancel()
        assert stage.count(Withdraw) == 1

    run(play)


def test_what_the_rules_refuse_raises_their_error_and_changes_nothing() -> None:
    async def play(stage: Stage) -> None:
        await stage.join()
        await stage.port.send([Withdraw(0, 0)])
        with pytest.raises(InvalidWithdraw):
            await stage.port.send([Withdraw(0, 0)])
        with pytest.raises(NotOwner):
            await stage.port.send([Pause()])

    run(play)


def test_a_message_that_never_lands_is_given_up_when_it_is_not_wanted() -> None:
    async def play(stage: Stage) -> None:
        asked: list[float] = []

        def is_wanted() -> bool:
            asked.append(trio.current_time())
            return len(asked) < 2

        begun = trio.current_time()
        with pytest.raises(TransactionExpired):
            await stage.port.send([Join(get_key(1)[1])], is_wanted=is_wanted)
        assert asked[0] - begun > 55, "the block hash expires first"
        assert len(asked) == 2

    run(play, lost=1.0)


def test_what_lands_after_its_sender_has_gone_lands_once() -> None:
    async def play(stage: Stage) -> None:
        with trio.move_on_after(1.0):
            await stage.join()
        await stage.join()
        await trio.sleep(60.0)
        assert stage.count(Join) == 1, "the second changes nothing"

    run(play, late=1.0)


def test_the_newest_slot_and_time_are_those_of_the_most_advanced_endpoint() -> None:
    async def play(stage: Stage) -> None:
        newest: ChainBlock = stage.endpoints[0].get_block()
        assert await stage.port.get_newest_slot() >= newest.slot
        assert (await stage.port.get_time()).unix >= newest.unix
        stage.endpoints[0].troubles.append(EndpointTrouble(is_down=True))
        begun = trio.current_time()
        assert await stage.port.get_newest_slot() < stage.chain.slot
        assert trio.current_time() - begun < 1.0, "a dead endpoint is not waited for"

    run(play)
