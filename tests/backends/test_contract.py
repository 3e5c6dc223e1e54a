"""What every backend keeps to: a server over real sockets, a chain in a box, the record in this process."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
import trio
from kits.chain.chain_run import SOL, ChainRunKit, create_run
from kits.chain.faulty_endpoints import FaultyEndpoint
from kits.middle import Middle, open_middle
from kits.server import CLIENTS, SERVER, build_record
from server.live_kit import Server, build_file, open_server
from solders.keypair import Keypair

from psyche.backends.memory import MemoryBackend, MemoryCoordinator
from psyche.backends.port import Backend
from psyche.backends.tcp.backend import open_backend
from psyche.backends.tcp.dial import ServerAddress
from psyche.backends.tcp.owner import TcpAdministration
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import HealthCheck, Join, WarmupWitness, Withdraw
from psyche.core.state.state import Config, Coordinator, RunState
from psyche.localchain.chain import open_local_chain
from psyche.testing.builders import START_UNIX, build_config, build_model, build_state
from psyche.wire.crypto import Identity

QUICK: Final = {
    "init_min_clients": 2, "min_clients": 2, "waiting_for_members_extra_time": 1, "warmup_time": 600,
}  # fmt: skip
PATIENCE_S: Final = 60.0


class Place(Protocol):
    """A run on one kind of backend, with what a test can do to it."""

    def open(self, identity: Identity) -> AbstractAsyncContextManager[Backend]:
        """A client's process."""
        ...

    async def read(self) -> Coordinator: ...

    async def lose_answers(self) -> None:
        """From now on requests take effect, and what is answered does not arrive."""
        ...

    async def stop(self) -> None: ...

    async def start(self) -> None:
        """Go on as usual after `stop` or `lose_answers`."""
        ...


class ServerPlace:
    """A server behind a middle that can keep back what it says."""

    def __init__(self, server: Server, middle: Middle) -> None:
        self._server, self._middle = server, middle
        self._is_stopped = False

    @asynccontextmanager
    async def open(self, identity: Identity) -> AsyncGenerator[Backend]:
        address = self._server.address
        through = ServerAddress(host=address.host, port=self._middle.port, run_id=address.run_id, key=address.key)
        async with open_backend(through, identity) as backend:
            await backend.reach()
            yield backend

    async def read(self) -> Coordinator:
        return await TcpAdministration(self._server.address, SERVER).get_record()

    async def lose_answers(self) -> None:
        for session in self._middle.sessions:
            session.change_to_client = lambda _data: b""

    async def stop(self) -> None:
        self._is_stopped = True
        await self._server.stop()

    async def start(self) -> None:
        if self._is_stopped:
            await self._server.start()
        for session in self._middle.sessions:
            await session.hang_up()


class ChainPlace:
    """A chain behind an endpoint with faults; each client has a wallet."""

    def __init__(self, kit: ChainRunKit, endpoint: FaultyEndpoint) -> None:
        self._kit, self._endpoint = kit, endpoint
        self._wallets: dict[bytes, Keypair] = {}

    @asynccontextmanager
    async def open(self, identity: Identity) -> AsyncGenerator[Backend]:
        wallet = self._wallets.setdefault(identity.public, self._kit.fund(SOL))
        async with self._kit.open_member(self._endpoint.endpoint, wallet=wallet, identity=identity) as member:
            yield member.backend

    async def read(self) -> Coordinator:
        return self._kit.read()

    async def lose_answers(self) -> None:
        self._endpoint.set_fault("late")

    async def stop(self) -> None:
        self._endpoint.set_fault("dead")

    async def start(self) -> None:
        self._endpoint.set_fault("")


class MemoryPlace:
    """The record in this process; its answer is lost with the task that waits for it."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.coordinator = coordinator

    @asynccontextmanager
    async def open(self, identity: Identity) -> AsyncGenerator[Backend]:
        yield MemoryBackend(self.coordinator, identity.public)

    async def read(self) -> Coordinator:
        return self.coordinator.state

    async def lose_answers(self) -> None:
        """It has no line to lose one on: a client that repeats its message is all that is left."""

    async def stop(self) -> None:
        self.coordinator.state = decode_state(encode_state(self.coordinator.state))

    async def start(self) -> None:
        self.coordinator.settle()


@asynccontextmanager
async def open_tcp(folder: Path) -> AsyncGenerator[Place]:
    async with open_server(folder, build_file(**QUICK)) as server, open_middle(server.port) as middle:
        yield ServerPlace(server, middle)


@asynccontextmanager
async def open_solana(_folder: Path) -> AsyncGenerator[Place]:
    async with (
        open_local_chain(slot_ms=50) as chain,
        create_run(chain, make_config()) as kit,
        trio.open_nursery() as nursery,
    ):
        endpoint = FaultyEndpoint(chain)
        await endpoint.serve(nursery)
        yield ChainPlace(kit, endpoint)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_memory(_folder: Path) -> AsyncGenerator[Place]:
    state = build_state(make_config(), build_model(), start_unix=START_UNIX)
    coordinator = MemoryCoordinator(state, START_UNIX - int(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.run)
        yield MemoryPlace(coordinator)
        nursery.cancel_scope.cancel()


def make_config() -> Config:
    return build_config(**QUICK)


OPENERS: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[Place]]]] = {
    "tcp": open_tcp, "solana": open_solana, "memory": open_memory,
}  # fmt: skip


@pytest.fixture(params=OPENERS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place]:
    async with OPENERS[request.param](tmp_path) as opened:
        yield opened


async def join(backend: Backend, identity: Identity) -> None:
    await backend.submit(Join(identity.public), build_record(identity, expires_unix=4_000_000_000))


async def wait_for(backend: Backend, wanted: Callable[[Coordinator], bool]) -> Coordinator:
    """The first state that is as wanted; every one before it is newer than the one before."""
    nonces: list[int] = []
    with trio.fail_after(PATIENCE_S):
        async with aclosing(backend.states()) as states:
            async for state in states:
                nonces.append(state.nonce)
                assert nonces == sorted(set(nonces)), "newest only, and growing"
                if wanted(state):
                    return state
    raise AssertionError("states end only by an error")


def find_member(state: Coordinator, identity: Identity) -> int:
    return next(number for number, client in enumerate(state.clients) if client.p2p == identity.public)


def is_joined(state: Coordinator, identity: Identity) -> bool:
    return [slot.p2p for slot in state.registry.slots].count(identity.public) == 1


async def during(submit: Awaitable[Any], then: Callable[[], Awaitable[None]]) -> None:
    """Submit a message, and meanwhile do something; both end."""

    async def wait() -> None:
        await submit

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await then()


FIRST, SECOND = CLIENTS[:2]


async def test_members_join_and_see_the_states_grow(place: Place) -> None:
    async with place.open(FIRST) as first, place.open(SECOND) as second:
        await join(first, FIRST)
        await join(second, SECOND)
        states = [await wait_for(one, lambda state: state.run_state is RunState.WARMUP) for one in (first, second)]
        assert encode_state(states[0]) == encode_state(states[1]) == encode_state(await place.read())


async def test_what_the_rules_refuse_raises_their_error_and_changes_nothing(place: Place) -> None:
    async with place.open(FIRST) as backend:
        await join(backend, FIRST)
        before = encode_state(await wait_for(backend, lambda state: is_joined(state, FIRST)))
        for message in (Withdraw(5, 0), WarmupWitness(0, 0, b"\1" * 32), HealthCheck(0, 0, 1)):
            with pytest.raises(CoordinatorError):
                await backend.submit(message)
        assert encode_state(await place.read()) == before


async def test_a_repeat_of_what_has_taken_effect_is_a_success(place: Place) -> None:  # K3
    async with place.open(FIRST) as backend:
        await join(backend, FIRST)
        await join(backend, FIRST)
    async with place.open(FIRST) as backend:  # the process was started again
        await join(backend, FIRST)
    assert is_joined(await place.read(), FIRST)


async def test_a_message_whose_answer_is_lost_counts_once(place: Place) -> None:
    async with place.open(FIRST) as backend:
        await wait_for(backend, lambda _: True)
        await place.lose_answers()

        async def find_answers_again() -> None:
            while not is_joined(await place.read(), FIRST):
                await trio.sleep(0.05)
            await place.start()

        await during(join(backend, FIRST), find_answers_again)
        await join(backend, FIRST)
    assert is_joined(await place.read(), FIRST)


async def test_a_message_survives_a_restart_of_what_keeps_the_record(place: Place) -> None:
    async with place.open(FIRST) as first, place.open(SECOND) as second:
        await join(first, FIRST)
        seen = await wait_for(second, lambda state: is_joined(state, FIRST))
        await place.stop()
        await during(join(second, SECOND), place.start)
        state = await wait_for(first, lambda state: state.run_state is RunState.WARMUP)
        assert state.nonce > seen.nonce
        assert state.run_uid == seen.run_uid
        assert is_joined(state, FIRST)


async def test_a_duplicate_that_comes_when_the_epoch_is_over_changes_nothing(place: Place) -> None:
    async with place.open(FIRST) as first, place.open(SECOND) as second:
        await join(first, FIRST)
        await join(second, SECOND)
        warm = await wait_for(second, lambda state: state.run_state is RunState.WARMUP)
        withdraw = Withdraw(warm.progress.epoch, find_member(warm, SECOND))
        await second.submit(withdraw)
        await wait_for(first, lambda state: state.run_state is RunState.WAITING_FOR_MEMBERS)
        before = (await place.read()).nonce
        await second.submit(withdraw)  # K3
        assert (await place.read()).nonce == before
