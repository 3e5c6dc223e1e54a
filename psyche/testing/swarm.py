"""Several whole clients in one process: real engine, shell and network, and a coordinator beside them.

    async with open_swarm(3, tmp_path, config=build_config(...)) as swarm:
        codes = await swarm.run()

Over the in-memory network everything runs on trio's clock, so a `MockClock` with autojump plays
hours in seconds; `over="libp2p"` uses real sockets on loopback.
"""

import itertools
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from psyche.backends.memory import MemoryBackend, MemoryCoordinator
from psyche.backends.port import Backend
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.app import LazyData
from psyche.client.runtime.data_manifests import DataManifests
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.shell import Parts, Shell
from psyche.client.runtime.trainer_tasks import RestartableTrainer
from psyche.config.load import DATA_MANIFEST_NAME
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Config, Model
from psyche.data.dummy import DummyData
from psyche.data.provider import DataProvider, LocalProvider
from psyche.network.memory.node import MemoryHub
from psyche.storage.port import StorageOptions
from psyche.telemetry.events import EventLog, Subscription
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_identity, build_model, build_state
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.wire.crypto import Identity
from psyche.wire.ports import Network

EVENTS_KEPT = 100_000
RUN_ID = "swarm"


@dataclass
class Member:
    """One client of a swarm."""

    shell: Shell
    engine: RoundEngine
    network: Network
    trainer: RestartableTrainer
    settings: ClientSettings
    events: Subscription

    @property
    def digest(self) -> bytes | None:
        """The digest of its weights, as its engine knows it at an epoch's start or end."""
        return self.engine.membership.weights_digest


@dataclass
class Swarm:
    """Clients around one coordinator."""

    coordinator: MemoryCoordinator
    members: list[Member]
    hub: MemoryHub | None
    codes: dict[int, int] = field(default_factory=dict)

    async def run(self, *, delays: Mapping[int, float] | None = None) -> list[int]:
        """Run every client to its end, some start later (seconds); return exit codes. Bound it by a cancel scope."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.coordinator.run)
            async with trio.open_nursery() as clients:
                for index in range(len(self.members)):
                    clients.start_soon(self._run_one, index, (delays or {}).get(index, 0.0))
            nursery.cancel_scope.cancel()
        return [self.codes[index] for index in range(len(self.members))]

    async def _run_one(self, index: int, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self.codes[index] = await self.members[index].shell.run()


@asynccontextmanager
async def open_swarm(
    clients: int,
    folder: Path,
    *,
    config: Config | None = None,
    model: Model | None = None,
    over: str = "memory",
    make_trainer: Callable[[int], RestartableTrainer] | None = None,
    seed: int = 0,
    first_weights: bytes = ZERO32,
    storage: StorageOptions | None = None,
) -> AsyncIterator[Swarm]:
    """A swarm whose nodes are running. Its model folder is `folder / "model"`, which is created if missing.

    Args:
        over: "memory" or "libp2p".
        make_trainer: makes the trainer of a client number; None: dummy trainers.
        first_weights: the digest that the record begins with (S11); zero: none.
        storage: how members read the data and weights that the record names; None: the data is a dummy.
    """
    (folder / "model").mkdir(parents=True, exist_ok=True)
    model = model or build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    config = config or build_config(init_min_clients=clients, min_clients=1)
    # one second of slack: trio's clock starts at any fraction
    state = build_state(config, model, run_id=RUN_ID, start_unix=START_UNIX - 1, first_weights=first_weights)
    start_unix = START_UNIX - int(trio.current_time())
    draws = itertools.count(1)
    coordinator = MemoryCoordinator(state, start_unix, lambda: build_hash("entropy", next(draws)))

    def unix_now() -> float:
        return float(coordinator.unix)

    hub = MemoryHub(random.Random(seed)) if over == "memory" else None  # noqa: S311
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        for index in range(clients):
            identity = build_identity(index)
            network = await stack.enter_async_context(_open_network(hub, identity, folder / f"client-{index}"))
            trainer = make_trainer(index) if make_trainer is not None else DummyTrainer()
            backend, engine = MemoryBackend(coordinator, identity.public), RoundEngine(identity)
            members.append(
                build_member(engine, backend, network, trainer, folder, index, unix_now=unix_now, storage=storage)
            )
        yield Swarm(coordinator, members, hub)


def _open_network(hub: MemoryHub | None, identity: Identity, folder: Path) -> AbstractAsyncContextManager[Network]:
    if hub is not None:
        return hub.open_node(identity, folder / "network")
    from psyche.network.node import open_node  # heavy: libp2p

    return open_node(identity, "127.0.0.1", 0, folder / "network")


def build_member(
    engine: RoundEngine, backend: Backend, network: Network, trainer: RestartableTrainer, folder: Path, index: int, *,
    unix_now: Callable[[], float], data: DataProvider | None = None, storage: StorageOptions | None = None,
) -> Member:  # fmt: skip
    """Assemble a whole client; payload checks are disabled, and the data is a dummy unless it or `storage` is given."""
    settings = ClientSettings(
        run_id=RUN_ID,
        data_dir=folder / f"client-{index}",
        local_root=folder,
        node_name=f"client-{index}",
        storage=storage or StorageOptions(),
    )
    manifests = DataManifests(network, backend, settings.data_dir / "data-manifests", folder / DATA_MANIFEST_NAME)
    if storage is not None:
        data = LazyData(lambda: engine.state, build_identity(index), settings, manifests.find)
    log = EventLog(None, node=settings.node_name)
    parts = Parts(
        engine=engine,
        backend=backend,
        network=network,
        trainer=trainer,
        data=data or LocalProvider(DummyData(build_model().max_seq_len, 256)),
        log=log,
        unix_now=unix_now,
        check_payload=lambda _body: None,
        measure_data=manifests.measure,
    )
    return Member(Shell(parts, settings), engine, network, trainer, settings, log.subscribe(EVENTS_KEPT))
