"""Whole clients on a chain in a box, with what each of them asks."""

import json
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import trio

from kits.chain.chain_run import ChainRunKit, create_run
from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.member.backend import open_chain_backend
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.http import HttpTransport
from psyche.backends.solana.rpc.run_link import open_link
from psyche.client.engine.round_engine import RoundEngine
from psyche.core.state.state import Checkpoint, CheckpointKind, Config
from psyche.localchain.chain import LocalChain, open_local_chain
from psyche.network.memory.node import MemoryHub
from psyche.telemetry import types
from psyche.testing.builders import build_model
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import Member, build_member
from psyche.wire.key_file import make_identity

BUSY_S = 10.0  # over which providers count


class CountingTransport(HttpTransport):
    """Notes method and time of each call."""

    calls: list[tuple[float, str]]

    async def post(self, endpoint: Endpoint, question: bytes) -> tuple[int, bytes]:
        self.calls.append((time.monotonic(), json.loads(question)["method"]))
        return await super().post(endpoint, question)


@dataclass
class CountedMember:
    """A client of the run, and what it asked."""

    member: Member
    transport: CountingTransport
    rounds: list[float] = field(default_factory=list)  # when each began

    async def follow(self) -> None:
        """Note its rounds while it runs."""
        while True:
            self._take()
            await trio.sleep(0.02)

    def _take(self) -> None:
        for entry in self.member.events.drain():
            if isinstance(entry.event, types.RoundStarted):
                self.rounds.append(time.monotonic())

    def get_calls(self) -> Counter[str]:
        """What it asked, by method, from its first round to its last."""
        return Counter(method for at, method in self.transport.calls if self.rounds[0] <= at < self.rounds[-1])

    def count_per_round(self) -> float:
        """Its calls for each round."""
        return self.get_calls().total() / (len(self.rounds) - 1)

    def count_busiest(self) -> int:
        """The most calls within ten seconds, from the first one on."""
        times = [at for at, _ in self.transport.calls]
        return max(sum(start <= at < start + BUSY_S for at in times) for start in times)


async def _open_member(
    stack: AsyncExitStack, chain: LocalChain, kit: ChainRunKit, hub: MemoryHub, folder: Path, index: int
) -> CountedMember:
    http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=None))
    transport = CountingTransport(http, http)
    transport.calls = []
    wallet, identity, endpoint = kit.fund(), make_identity(), Endpoint(chain.http, chain.ws)
    rpc = Rpc([endpoint], transport)
    link = await stack.enter_async_context(open_link(rpc, kit.run, wallet, identity, kit.authorization))
    backend = await stack.enter_async_context(open_chain_backend(link))
    network = await stack.enter_async_context(hub.open_node(identity, folder / f"client-{index}" / "network"))
    member = build_member(RoundEngine(identity), backend, network, DummyTrainer(), folder, index, unix_now=time.time)
    return CountedMember(member, transport)


@asynccontextmanager
async def open_counted(
    members: int, config: Config, folder: Path, *, slot_ms: float
) -> AsyncGenerator[list[CountedMember]]:
    """Members of a run on a chain; `play` lets them train it to its end."""
    (folder / "model").mkdir()
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    async with (
        open_local_chain(slot_ms=slot_ms) as chain,
        create_run(chain, config, model) as kit,
        AsyncExitStack() as stack,
    ):
        hub = MemoryHub(random.Random(0))
        opened = [await _open_member(stack, chain, kit, hub, folder, index) for index in range(members)]
        for one in opened:  # no server keeps a book
            one.member.network.set_addresses(tuple(other.member.network.address_record() for other in opened))
        yield opened


async def play(members: list[CountedMember]) -> None:
    """Train the run to its end."""
    async with trio.open_nursery() as nursery:
        for one in members:
            nursery.start_soon(one.follow)
        async with trio.open_nursery() as clients:
            for one in members:
                clients.start_soon(one.member.shell.run)
        nursery.cancel_scope.cancel()
