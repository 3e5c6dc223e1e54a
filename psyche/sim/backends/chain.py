"""A chain as a simulated run's backend: its slots, and for each client endpoints, a wallet and the real RPC client."""

import errno
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import trio

from psyche.backends.kinds import CHAIN, BackendTraits
from psyche.backends.solana.member.backend import ChainPlatform, SolanaBackend, open_chain_backend
from psyche.backends.solana.member.following import MinimumSlotFile
from psyche.backends.solana.rpc.client import Rpc
from psyche.core.encoding.account import encode_state
from psyche.core.state.genesis import create_run
from psyche.core.state.messages import Message, Pause, Resume
from psyche.core.state.state import Coordinator
from psyche.localchain.blocks import ChainBlock
from psyche.localchain.core_chain import CoreChain
from psyche.network.memory.line import Arrivals
from psyche.sim.chain.endpoints import SimulatedEndpoint, SimulatedTransport
from psyche.sim.chain.facts import ChainFacts
from psyche.sim.hosts import Host
from psyche.sim.identity import SimIdentity, build_machine_identity
from psyche.sim.invariants.shadow import ChainShadow, OnRecord
from psyche.sim.invariants.views import Check, NoteSize
from psyche.sim.runtime import build_rng
from psyche.sim.scenarios.scenario import RUN_ID, START_UNIX, build_run
from psyche.sim.surroundings import Caller, Surroundings
from psyche.telemetry.sink import EventSink
from psyche.wire.crypto import blake3_hash
from psyche.wire.line.tls import TlsConnection

CLOCK_STEP_S: Final = 0.1  # by which the Clock's lag changes from block to block, at most
LAG_SPREAD: Final = 0.5  # a client's later endpoints are slower than its first by up to this share
FLOOR_FILE: Final = "chain-floor"
MAX_WAITING: Final = 1_024  # transactions


class ChainBackend:
    """A chain with one run on it. `on_record` is called after each message that takes effect."""

    host: ClassVar[None] = None
    traits: ClassVar[BackendTraits] = CHAIN

    def __init__(self, world: Surroundings, on_record: OnRecord) -> None:
        scenario = world.scenario
        self.controls = self
        self._world = world
        self._conditions = scenario.chain
        self._rng = build_rng(scenario.seed, "chain")
        self._clock_lag_s = self._conditions.clock_lag_s * self._rng.random()
        state = _create(world)
        genesis = blake3_hash(f"psyche/simulator {scenario.seed} chain".encode())
        self.chain = CoreChain(RUN_ID, state, world.owner.public, genesis, START_UNIX)
        self._skips = build_rng(scenario.seed, "blocks")
        self._skipped = 0  # slots without a block, up to now
        self._is_halted = False
        self.shadow = ChainShadow(on_record, encode_state(state), START_UNIX)
        self.facts = ChainFacts()
        self.chain.on_block.append(self._take_block)
        self._arrivals = Arrivals()
        self._endpoints: dict[str, list[SimulatedEndpoint]] = {}
        self._lives: dict[str, int] = {}  # of the process that uses a machine's endpoints

    @property
    def machines(self) -> tuple[Host, ...]:
        return ()

    @property
    def is_alive(self) -> bool:
        return not self._is_halted

    def start(self) -> None:
        self._world.spawn(self._make_blocks)

    def add_machine(self, name: str, key: bytes) -> None:
        del key
        self._endpoints[name] = self._build_endpoints(name)
        wallet = self._make_wallet(name).public
        self.chain.fund(wallet)
        self.facts.names[wallet] = name

    def find_endpoints(self, name: str, number: int) -> list[SimulatedEndpoint]:
        """A client's endpoint of this number, from 1 on; 0: all of them."""
        return self._endpoints[name] if not number else self._endpoints[name][number - 1 : number]

    def drop(self, key: bytes) -> None:
        """Do nothing: a chain keeps no connections."""

    async def connect(self, key: bytes, host: str, port: int) -> TlsConnection:
        del key
        await trio.lowlevel.checkpoint()
        raise OSError(errno.ECONNREFUSED, f"{host}:{port}: connection refused")

    @asynccontextmanager
    async def open_backend(
        self, caller: Caller, decode: Callable[[bytes], Coordinator]
    ) -> AsyncIterator[SolanaBackend]:
        wallet, seed = self._make_wallet(caller.name), self._world.scenario.seed

        def show(raw: bytes) -> Coordinator:
            self.facts.note_shown(caller.name, caller.life, raw)
            return decode(raw)

        platform = ChainPlatform(
            rng=build_rng(seed, caller.name, "backend", caller.life), floor=MinimumSlotFile(caller.folder / FLOOR_FILE),
            decode=show,
        )  # fmt: skip
        self._lives[caller.name] = caller.life
        rpc = self._open_rpc(self._endpoints[caller.name], caller.log, caller.name, caller.life)
        try:
            async with (
                self.chain.open_member_link(rpc, wallet.seed, caller.identity) as link,
                open_chain_backend(link, sink=caller.log, platform=platform) as backend,
            ):
                yield backend
        finally:
            self.facts.note_gone((caller.name, caller.life))

    def _open_rpc(self, endpoints: Sequence[SimulatedEndpoint], sink: EventSink | None, *names: object) -> Rpc:
        transport, rng = SimulatedTransport(endpoints), build_rng(self._world.scenario.seed, *names, "rpc")
        return Rpc(transport.addresses, transport, sink=sink, rng=rng)

    def _make_wallet(self, name: str) -> SimIdentity:
        return build_machine_identity(self._world.scenario.seed, f"{name} wallet")

    def _build_endpoints(self, name: str) -> list[SimulatedEndpoint]:
        """A client's endpoints; the first one has its least delay."""
        conditions, seed = self._conditions, self._world.scenario.seed
        rng = build_rng(seed, name, "endpoints")
        first_s = rng.uniform(conditions.lag_least_s, conditions.lag_most_s)
        return [
            self._build_endpoint(
                name, number + 1, min(conditions.lag_most_s, first_s * (1 + number * LAG_SPREAD * rng.random()))
            )
            for number in range(conditions.endpoints)
        ]

    def _build_endpoint(self, name: str, number: int, lag_s: float) -> SimulatedEndpoint:
        rng = build_rng(self._world.scenario.seed, name, "endpoint", number)
        return SimulatedEndpoint(
            f"{name}-endpoint-{number}", self.chain, rng, self._conditions, lag_s, self._arrivals,
            lambda signature: self.facts.note_sent(signature, (name, self._lives.get(name, 0))),
        )  # fmt: skip

    async def _make_blocks(self) -> None:
        while True:
            await trio.sleep(self._conditions.slot_s)
            self._move_clock(self._rng)
            if self._skips.random() < self._conditions.skipped or self._is_halted:
                self._skipped += 1
                continue
            now_s = trio.current_time()
            self.chain.end_slot(now_s, START_UNIX + int(now_s - self._clock_lag_s), self._skipped)
            self._skipped = 0

    def _take_block(self, block: ChainBlock) -> None:
        is_in_round = self.shadow.state.in_round
        self.shadow.take_block(block)
        self.facts.take_block(block, is_in_round=is_in_round)

    def _move_clock(self, rng: random.Random) -> None:
        lag_s = self._clock_lag_s + rng.uniform(-CLOCK_STEP_S, CLOCK_STEP_S)
        self._clock_lag_s = min(max(lag_s, 0.0), self._conditions.clock_lag_s)

    def halt_chain(self, *, is_halted: bool) -> None:
        self._is_halted = is_halted

    async def command(self, message: Message) -> None:
        """Send a message of the owner's wallet, over an endpoint of its own.

        Raises:
            CoordinatorError: the rules refuse it.
        """
        assert isinstance(message, Pause | Resume), "no fault sends another one"
        rpc = self._open_rpc([self._build_endpoint("owner", 1, self._conditions.lag_least_s)], None, "owner")
        await self.chain.command(rpc, self._world.owner.seed, message)

    def get_facts(self) -> dict[str, Any]:
        return {"chain": self.facts}

    def measure(self, note: NoteSize) -> None:
        """Measure what waits for a block (I6)."""
        note("transactions that wait", self.chain.waiting, MAX_WAITING)

    def check_end(self, check: Check) -> None:
        """I8: what took effect gives the account of the newest block."""
        self.shadow.check_block(self.chain.newest)
        check(not self.shadow.complaints, "I8", "the chain gives its account", self.shadow.complaints)


def _create(world: Surroundings) -> Coordinator:
    file = build_run(world.config, world.model)
    uid = hashlib.sha256(world.owner.public + RUN_ID.encode()).digest()
    return create_run(file.config, file.model, RUN_ID, uid, file.metadata, "", START_UNIX)
