"""Machines of a simulated world and the processes on them, assembled as `server run` and `client train` do.

A machine keeps its disk, its key and its clock; each process on it is one life. A killed process has no further
effect: its connections are reset, its pending writes, messages and log lines are lost, and its tasks are cancelled.
"""

import functools
import shutil
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from psyche.backends.port import Backend
from psyche.client.engine.records import RoundRecord
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.shell import Parts, Shell
from psyche.client.runtime.trainer_inputs import PayloadCheck
from psyche.core.state.messages import Message, WitnessMessage
from psyche.core.state.state import Coordinator
from psyche.data.client import BACK_OFF_S, TRIES
from psyche.data.dummy import DummyData
from psyche.data.provider import LocalProvider
from psyche.errors import DataError, PsycheError
from psyche.modeling.snapshot import clean_leftovers, list_snapshots
from psyche.network.blobs.store import run_in_thread
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.node import MemoryNode
from psyche.sim.byzantine.program import ByzantineProgram
from psyche.sim.byzantine.programs import wrap_backend, wrap_network
from psyche.sim.disk import DiskConditions
from psyche.sim.exam import SimExam
from psyche.sim.faults import DataTrouble, Degrade
from psyche.sim.identity import SimIdentity, build_machine_identity
from psyche.sim.invariants.views import ClientStatistics
from psyche.sim.links.lines import join_conditions
from psyche.sim.payloads import PayloadCodec
from psyche.sim.runtime import Task, build_rng
from psyche.sim.scenarios.scenario import MODEL_FOLDER, RUN_ID, START_UNIX, MachineClass
from psyche.sim.surroundings import Caller, MeasuredBackend, Surroundings
from psyche.sim.trace import NodeLog
from psyche.sim.trainer import VOCAB, SimTrainer, TrainerFaults
from psyche.telemetry import types
from psyche.wire.address_record import AddressRecord
from psyche.wire.line.tls import TlsConnection
from psyche.wire.peer_address import PeerAddress
from psyche.wire.ports import Proof

FIXED_ADDRESSES = 1_000_000
BOOTSTRAP_PEERS = 4  # clients whose addresses all know beforehand


@dataclass(eq=False)
class Life:
    log: NodeLog
    number: int
    scope: trio.CancelScope = field(default_factory=lambda: trio.CancelScope())  # noqa: PLW0108  # pyright: ignore[reportCallIssue]
    root: Task | None = None
    stops: int = 0  # faults under way that pause it
    on_death: list[Callable[[], None]] = field(default_factory=list)


class Host:
    def __init__(self, world: Surroundings, name: str, identity: SimIdentity) -> None:
        self.world = world
        self.name = name
        self.identity = identity
        self.key = identity.public
        self.clock_s = 0.0
        self.disk = DiskConditions()
        self.life: Life | None = None
        self.lives = 0
        self.is_gone = False  # ended, and nobody intends to start it again
        self.code: int | None = None  # exit code of its last process that ended by itself
        self.degraded: list[Degrade] = []
        self.uplink = self.downlink = LinkConditions()

    @property
    def is_alive(self) -> bool:
        return self.life is not None

    def unix(self) -> float:
        return START_UNIX + trio.current_time() + self.clock_s

    def start(self) -> None:
        if self.life is None and not self.world.is_over:
            self.lives += 1
            self.code, self.is_gone = None, False
            self.life = Life(NodeLog(self.world.trace, self.name), self.lives)
            self.world.note(types.Started(who=self.name, life=self.lives))
            self.world.spawn(self._live, self.life)

    def kill(self, *, erase: bool = False) -> None:
        life, self.life = self.life, None
        if life is not None:
            self.world.note(types.Killed(who=self.name, life=life.number))
            # First its log: what its tasks do while they are cancelled no longer happens.
            life.log.is_alive = False
            for notify in life.on_death:
                notify()
            self.world.drop(self.key)
            self.world.note_death()
            if life.stops and life.root is not None:
                self.world.queue.resume(life.root)  # a paused process could not even be cancelled
            life.scope.cancel()
        if erase:
            self.erase()

    def erase(self) -> None: ...

    def stop(self) -> Life | None:
        life = self.life
        if life is None or life.root is None:
            return None
        life.stops += 1
        if life.stops == 1:
            self.world.note(types.Stopped(who=self.name))
            self.world.queue.stop(life.root)
        return life

    def resume(self, life: Life | None) -> None:
        """Resume a process that `stop` returned, unless another fault still pauses it."""
        if life is not None and life is self.life:
            life.stops -= 1
            self._go_on(life)

    def wake(self) -> None:
        if self.life is not None and self.life.stops:
            self.life.stops = 0
            self._go_on(self.life)

    def _go_on(self, life: Life) -> None:
        if not life.stops and life.root is not None:
            self.world.note(types.Resumed(who=self.name))
            self.world.queue.resume(life.root)

    def degrade(self, fault: Degrade) -> None:
        self.degraded.append(fault)

    def restore(self, fault: Degrade) -> None:
        self.degraded.remove(fault)

    def get_uplink(self) -> LinkConditions:
        worse = [fault.get_conditions() for fault in self.degraded if fault.up]
        return functools.reduce(join_conditions, worse, self.uplink)

    def get_downlink(self) -> LinkConditions:
        worse = [fault.get_conditions() for fault in self.degraded if fault.down]
        return functools.reduce(join_conditions, worse, self.downlink)

    async def _live(self, life: Life) -> None:
        life.root = trio.lowlevel.current_task()
        self.world.roots[life.root] = self
        try:
            with life.scope:
                await self._guard(life)
        finally:
            del self.world.roots[life.root]
        if self.life is life:
            self.life = None
            self.world.drop(self.key)
            self.world.note(types.Ended(who=self.name, life=life.number, code=self.code))
            self.world.on_end(self)

    async def _guard(self, life: Life) -> None:
        """An exception ends the process; any that is not a `PsycheError` is a defect."""
        try:
            self.code = await self._main(life)
        except Exception as error:  # noqa: BLE001 - a simulated process may die of anything
            self.code = 1
            expected, others = _split(error)
            for one in expected:
                life.log.emit(types.ProcessFailed(error=str(one)))
            if others:
                life.log.emit(types.Crashed(error="".join(traceback.format_exception(error))))

    async def _main(self, life: Life) -> int:
        raise NotImplementedError


def _split(error: BaseException) -> tuple[list[BaseException], list[BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        parts = [_split(inner) for inner in error.exceptions]
        return [e for known, _ in parts for e in known], [e for _, rest in parts for e in rest]
    return ([error], []) if isinstance(error, PsycheError) else ([], [error])


class _WatchedBackend:
    def __init__(self, inner: MeasuredBackend, on_answer: Callable[[WitnessMessage], None]) -> None:
        self._inner = inner
        self._on_answer = on_answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def submit(self, message: Message, proof: Proof = None) -> None:
        await self._inner.submit(message, proof)
        if isinstance(message, WitnessMessage):
            self._on_answer(message)


class ClientHost(Host):
    def __init__(self, world: Surroundings, number: int, identity: SimIdentity, cls: MachineClass) -> None:
        super().__init__(world, f"client-{number}", identity)
        self.number = number
        self.cls = cls
        self.clock_s = cls.clock_s
        self.uplink, self.downlink = cls.uplink, cls.downlink
        self.folder = world.folder / self.name
        self.trainer_faults = TrainerFaults()
        self.data_troubles: list[DataTrouble] = []
        self.programs: list[ByzantineProgram] = []
        self.complaints: list[str] = []  # from its trainers, over all lives
        self.shell: Shell | None = None
        self.engine: RoundEngine | None = None
        self.network: MemoryNode | None = None
        self.trainer: SimTrainer | None = None
        self.backend: MeasuredBackend | None = None
        self._prepare_disk()

    @property
    def is_honest(self) -> bool:
        return not self.programs

    def get_state(self) -> Coordinator:
        return self.engine.state if self.engine is not None else Coordinator()

    def get_victim(self) -> int:
        """The member that it denies: the honest one with the lowest index, so that colluding clients agree."""
        honest = self.world.get_honest_keys()
        clients = self.get_state().clients
        return next((member for member, client in enumerate(clients) if client.p2p in honest), 0)

    def get_friends(self) -> frozenset[bytes]:
        honest = self.world.get_honest_keys()
        return frozenset(one.p2p for one in self.get_state().registry.slots if one.p2p not in honest)

    @property
    def codec(self) -> PayloadCodec:
        return self.world.codec

    @property
    def member(self) -> int | None:
        return self.engine.member if self.engine is not None else None

    @property
    def signed(self) -> set[bytes]:
        return self.identity.signed

    @property
    def is_corrupt(self) -> bool:
        return self.trainer is not None and self.trainer.is_corrupt

    @property
    def struck(self) -> int:
        return self.trainer_faults.struck

    def is_living(self, life: int) -> bool:
        return self.life is not None and self.life.number == life

    def find_record(self, height: int) -> RoundRecord | None:
        return self.engine.chain.context.book.get(height) if self.engine is not None else None

    def get_records(self) -> list[RoundRecord]:
        return list(self.engine.chain.context.book.all()) if self.engine is not None else []

    def get_banned(self) -> set[bytes]:
        return set(self.network.banned()) if self.network is not None else set()

    def get_statistics(self) -> ClientStatistics | None:
        engine, shell, network, backend = self.engine, self.shell, self.network, self.backend
        if not self.is_alive or engine is None or shell is None or network is None:
            return None
        return ClientStatistics(
            members=len(engine.state.clients), rounds=len(self.get_records()), shell=shell.statistics(),
            backend=backend.statistics() if backend else None, network=network.statistics(),
            limits=network.limits, connection_streams=network.count_streams(),
        )  # fmt: skip

    def compute_root(self, digest: bytes) -> bytes | None:
        engine, trainer = self.engine, self.trainer
        if engine is None or trainer is None or trainer.weights is None or engine.membership.weights_digest != digest:
            return None
        return trainer.compute_root()

    def get_book(self) -> tuple[AddressRecord, ...]:
        show = self.backend.get_addresses if self.backend else None
        return () if show is None else tuple(show())

    def send_to(self, key: bytes, raw: bytes) -> None:
        if self.network is not None:
            self.network.send_to(key, raw)

    def _prepare_disk(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.cls.has_model:
            (self.folder / MODEL_FOLDER).mkdir(exist_ok=True)
            (self.folder / MODEL_FOLDER / "config.json").write_bytes(b"{}")

    def erase(self) -> None:
        shutil.rmtree(self.folder)
        self._prepare_disk()

    def has_weights(self, digest: bytes) -> bool:
        loaded = self.is_alive and self.engine is not None and self.engine.membership.weights_digest == digest
        return loaded or any(info.digest == digest for info in list_snapshots(self.folder / "resume"))

    def ask_to_end(self, reason: str) -> None:
        """End the client as Ctrl-C does: it withdraws and ends."""
        if self.shell is not None and self.life is not None and self.life.root is not None:
            self.world.note(types.AskedToEnd(who=self.name))
            self.shell.stop(reason)

    async def _main(self, life: Life) -> int:
        self.shell = None
        clean_leftovers(self.folder / "resume")
        self.trainer = SimTrainer(
            self.world.codec, self.cls.machine, build_rng(self.world.scenario.seed, self.name, "train", life.number),
            self.trainer_faults, complaints=self.complaints, parts=self.world.scenario.weight_parts,
            on_outcome=functools.partial(self.world.invariants.outcomes.check_told, self, life.number),
        )  # fmt: skip
        for program in self.programs:
            self.trainer.tamper = program.change_payload
            self.trainer.works.distort = program.change_works
            self.trainer.works.distort_calibration = program.change_calibration
            self.trainer.spoil = program.change_audit
        await self.trainer.start()  # M2: join only once the trainer is up
        async with AsyncExitStack() as stack:
            self.network = await stack.enter_async_context(self.world.hub.open_node(
                self.identity, self.folder / "network", limits=self.world.scenario.limits, run_io=run_in_thread,
                get_unix=lambda: int(self.unix()),
                address=None if self.world.backend.traits.lists_addresses else get_fixed_address(self.number),
            ))  # fmt: skip
            self.backend = await stack.enter_async_context(self._open_backend(life))
            self.shell = self._build_shell(life, self.network, self.backend, self.trainer)
            async with trio.open_nursery() as nursery:
                for program in self.programs:
                    nursery.start_soon(program.run)
                code = await self.shell.run()
                nursery.cancel_scope.cancel()
        return code

    async def connect(self, host: str, port: int) -> TlsConnection:
        return await self.world.backend.connect(self.key, host, port)

    def _open_backend(self, life: Life) -> AbstractAsyncContextManager[MeasuredBackend]:
        caller = Caller(self.name, self.number, life.number, self.identity, self.folder, life.log, self.unix)
        return self.world.backend.open_backend(caller, self.world.decode)

    def _watch_backend(self, backend: MeasuredBackend) -> Backend:
        """Its backend; what the server answers to an honest client is checked."""
        if self.programs:
            return wrap_backend(backend, self.programs)
        return cast("Backend", _WatchedBackend(backend, self._note_answer))

    def _note_answer(self, message: WitnessMessage) -> None:
        self.world.invariants.check_answered(self.name, message)

    def _build_shell(self, life: Life, network: MemoryNode, backend: MeasuredBackend, trainer: SimTrainer) -> Shell:
        shares = self.world.scenario.shares_checkpoints
        self.engine = RoundEngine(self.identity, share=shares)
        self.engine.audits.tolerances.leaves_if_unfit = not self.programs  # who cheats does not leave for it
        check = PayloadCheck(self.world.codec.check)
        parts = Parts(
            engine=self.engine, backend=self._watch_backend(backend),
            network=wrap_network(network, self.programs) if self.programs else network, trainer=trainer,
            data=_HostData(self), log=life.log, unix_now=self.unix,
            check_payload=check, on_loaded=lambda event: check.set_plan(event.reply.plan),
            exam=SimExam(documents) if (documents := self.world.scenario.eval_documents) else None,
        )  # fmt: skip
        settings = ClientSettings(
            run_id=RUN_ID, data_dir=self.folder,
            local_root=self.folder, node_name=self.name, share_checkpoints=shares,
            checkpoint_dir=self.folder if shares else None, bootstrap=self._get_bootstrap(),
        )  # fmt: skip
        return Shell(parts, settings)

    def _get_bootstrap(self) -> tuple[PeerAddress, ...]:
        """The addresses that its user gives it, where the backend lists none (N3)."""
        if self.world.backend.traits.lists_addresses:
            return ()
        seed, names = self.world.scenario.seed, self.world.scenario.names[:BOOTSTRAP_PEERS]
        keys = [build_machine_identity(seed, name).public for name in names]
        found = [PeerAddress(key, get_fixed_address(number)) for number, key in enumerate(keys)]
        return tuple(peer for peer in found if peer.key != self.key)


class _HostData(LocalProvider):
    """The samples of a client, as its faults let them through; it gives up where a real source does."""

    def __init__(self, host: ClientHost) -> None:
        super().__init__(DummyData(host.world.model.max_seq_len, VOCAB))
        self._host = host

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        if delay_s := sum(trouble.delay_s for trouble in self._host.data_troubles):
            await trio.sleep(delay_s)
        if any(trouble.is_away for trouble in self._host.data_troubles):
            await trio.sleep(sum(BACK_OFF_S))
            raise DataError(f"samples {start} to {end} did not arrive in {TRIES} tries")
        return await super().get(start, end, epoch=epoch, height=height)


def get_fixed_address(number: int) -> str:
    """The address of a client's node in a world where others must know it beforehand."""
    return f"/memory/{FIXED_ADDRESSES + number}"
