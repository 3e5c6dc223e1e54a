"""Simulated endpoints under the real RPC client: what it reads, and that what it sends takes effect once."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
from sim.chain_kit import ChainStage, build_chain, get_key, get_state, run_stage

from psyche.backends.solana.member.link import Reading, TransactionExpired
from psyche.backends.solana.rpc.transport import RequestFailed
from psyche.core.encoding.account import decode_state
from psyche.core.state.errors import InvalidWithdraw
from psyche.core.state.messages import Join, Withdraw
from psyche.sim.chain.endpoints import SimulatedTransport
from psyche.sim.faults import EndpointFault
from psyche.sim.scenarios.scenario import ChainConditions

FAST = ChainConditions(lag_least_s=0.5, lag_most_s=0.5)
JOIN = Join(get_key(1)[1])


def run(
    play: Callable[[ChainStage], Awaitable[None]], *, lags_s: tuple[float, ...] = (0.5, 2.0), **changes: float
) -> None:
    async def main(stage: ChainStage) -> None:
        link = stage.build_link(1, (0.5, 2.0))
        stage.nursery.start_soon(link.run)
        await trio.sleep(5.0)
        await play(stage)

    run_stage(main, replace(FAST, **changes))


async def collect(stage: ChainStage, readings: list[Reading]) -> None:
    async for reading in stage.links[0].readings():
        readings += [reading]


@pytest.mark.parametrize("cut", [0.0, 1.0])
def test_all_endpoints_show_each_change_after_their_own_delay_or_once_the_client_asks(cut: float) -> None:
    async def play(stage: ChainStage) -> None:
        readings: list[Reading] = []
        stage.nursery.start_soon(collect, stage, readings)
        slot = await stage.links[0].send([JOIN])
        block = next(block for block in stage.chain.blocks if block.effects)
        assert slot == block.slot
        assert trio.current_time() >= block.made_s + 0.5
        await trio.sleep(15.0)
        shown = {one.endpoint for one in readings if one.raw == block.raw}
        assert shown == {"endpoint-0.5", "endpoint-2.0"}
        if not cut:
            assert [one.endpoint for one in readings if one.slot == slot] == ["endpoint-0.5", "endpoint-2.0"]

    run(play, cut=cut)


@pytest.mark.parametrize(("lost", "late", "skipped"), [(0.7, 0, 0), (0, 1, 0), (0, 0, 0.5), (0.5, 0.5, 0.1)])
def test_what_is_lost_or_late_takes_effect_once(lost: float, late: float, skipped: float) -> None:
    async def play(stage: ChainStage) -> None:
        for _ in range(5):
            await stage.links[0].send([JOIN])
            await stage.links[0].send([Withdraw(0, 0)])
        await trio.sleep(100.0)
        assert (stage.count(Join), stage.count(Withdraw)) == (5, 5)

    run(play, lost=lost, late=late, skipped=skipped)


def test_a_dead_endpoint_costs_less_than_five_seconds() -> None:
    async def play(stage: ChainStage) -> None:
        link = stage.links[0]
        link.endpoints[0].suffer(EndpointFault(is_down=True))
        begun = trio.current_time()
        await link.send([JOIN])
        assert trio.current_time() - begun < 9.0, "failover within 5 s, and a block, its confirmation and a question"
        asked = trio.current_time()
        assert await link.get_newest_slot() < stage.chain.bank.slot
        assert trio.current_time() - asked < 1.0, "it is not waited for"

    run(play)


def test_an_endpoint_that_is_behind_what_the_client_knows_is_not_believed() -> None:
    """It would refuse the withdrawal of a join that it has not seen."""

    async def play(stage: ChainStage) -> None:
        readings: list[Reading] = []
        stage.nursery.start_soon(collect, stage, readings)
        await stage.links[0].send([JOIN])
        stage.links[0].endpoints[0].suffer(EndpointFault(stale_slots=20))
        await trio.sleep(3.0)
        await stage.links[0].send([Withdraw(0, 0)])
        assert stage.count(Withdraw) == 1
        with pytest.raises(InvalidWithdraw):
            await stage.links[0].send([Withdraw(0, 0)])

    run(play)


def test_a_message_that_never_lands_is_given_up_when_it_is_not_wanted() -> None:
    async def play(stage: ChainStage) -> None:
        asked: list[float] = []

        def is_wanted() -> bool:
            asked.append(trio.current_time())
            return len(asked) < 2

        with pytest.raises(TransactionExpired):
            await stage.links[0].send([JOIN], is_wanted=is_wanted)
        assert asked[1] - asked[0] > 55, "the block hash expires first"

    run(play, lost=1.0)


def test_what_lands_after_its_sender_has_gone_lands_once() -> None:
    async def play(stage: ChainStage) -> None:
        with trio.move_on_after(1.0):
            await stage.links[0].send([JOIN])
        await stage.links[0].send([JOIN])
        await trio.sleep(60.0)
        assert stage.count(Join) == 1, "the second changes nothing"

    run(play, late=1.0)


def test_an_endpoint_shows_a_block_after_its_delay_and_a_fork_of_equal_nonce() -> None:
    async def play(stage: ChainStage) -> None:
        endpoint = stage.build_endpoint(2.5)
        newest = stage.chain.newest
        assert 2.5 <= trio.current_time() - endpoint.get_block().made_s < 3.5
        endpoint.suffer(EndpointFault(stale_slots=5))
        assert trio.current_time() - endpoint.get_block().made_s >= 4.5, "5 slots of 0.4 s"
        await stage.join_somebody(2)
        newest = next(block for block in stage.chain.blocks if block.effects)
        endpoint.suffer(EndpointFault(is_forked=True))
        assert endpoint.show(newest) != newest.raw
        assert decode_state(endpoint.show(newest)).nonce == get_state(stage.chain).nonce
        assert endpoint.show(newest) is endpoint.show(newest)

    run(play)


def test_an_endpoint_that_is_down_or_refuses_gives_no_answer() -> None:
    async def play(stage: ChainStage) -> None:
        endpoint = stage.build_endpoint(0.5)
        transport = SimulatedTransport([endpoint])
        endpoint.suffer(throttled := EndpointFault(throttled=1.0))
        with pytest.raises(RequestFailed, match="HTTP 429"):
            await transport.post(endpoint.address, b"{}")
        endpoint.recover(throttled)
        endpoint.suffer(EndpointFault(is_down=True))
        with trio.move_on_after(60) as scope:
            await transport.post(endpoint.address, b"{}")
        assert scope.cancelled_caught

    run(play)


def test_a_chain_has_a_first_block_to_show() -> None:
    assert [block.slot for block in build_chain().blocks] == [1]
