"""`psyche client train`: puts identity, backend, network, trainer and engine together and runs them."""

import math
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from pathlib import Path

import trio

from psyche.backends.port import Backend
from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.data_manifests import DataManifests
from psyche.client.runtime.evals.exam import TaskExam
from psyche.client.runtime.preflight import check_participation, find_model_problem, read_local_model
from psyche.client.runtime.reporting import Reporter
from psyche.client.runtime.settings import KEY_NAME, ClientSettings
from psyche.client.runtime.shell import Parts, Shell
from psyche.client.runtime.trainer_inputs import PayloadCheck
from psyche.client.runtime.trainer_tasks import RestartableTrainer
from psyche.client.runtime.weights.exporting import get_export_time
from psyche.client.runtime.weights.sharing import check_shared_folder
from psyche.client.runtime.weights.uploading import check_upload, is_uploading
from psyche.config.load import find_data_manifest, find_local_data
from psyche.core.encoding.data_manifest import FindManifest
from psyche.core.state.state import Coordinator, DataLocation, DataLocationKind, DataType, RunState
from psyche.data.provider import DataProvider, open_provider
from psyche.durable import make_folder, open_lock, warn_of_others
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.device_name import check_devices
from psyche.modeling.snapshot import clean_leftovers
from psyche.modeling.trainer.process import TrainerProcess
from psyche.network.limits import NetworkLimits
from psyche.network.node import open_node
from psyche.telemetry import types
from psyche.telemetry.loading import EXIT_INTERRUPTED
from psyche.telemetry.sink import EventSink
from psyche.wire.crypto import Identity
from psyche.wire.key_file import make_identity, read_key_file, write_key_file
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Network
from psyche.wire.trainer import CheckRequest, LoadRequest, MemoryRequest

LOCK_NAME = "client.lock"
NAME_DIGITS = 8  # hex digits of the public key in a client's default name
EXIT_NOT_ENDED = 1  # stopped, but the shell had not ended when the grace was over
OpenBackend = Callable[[ClientSettings, Identity], AbstractAsyncContextManager[Backend]]


def load_identity(settings: ClientSettings) -> Identity:
    """From the environment, the given file, or the data folder, where it is made on first use."""
    raw = os.environ.get("RAW_IDENTITY_SECRET_KEY")
    if raw and settings.identity_path is not None:
        raise ConfigError("identity: give either --identity-secret-key-path or RAW_IDENTITY_SECRET_KEY, not both")
    if raw:
        try:
            return Identity(bytes.fromhex(raw))
        except ValueError as error:
            raise ConfigError("RAW_IDENTITY_SECRET_KEY: must be 64 hex digits") from error
    if settings.identity_path is not None:
        return read_key_file(settings.identity_path)
    path = settings.data_dir / KEY_NAME
    if not path.exists():
        try:
            write_key_file(path, make_identity())
        except FileExistsError:
            if not path.exists():
                raise  # otherwise another client has just made it; the lock on the folder admits one of the two
    return read_key_file(path)


def get_client_name(identity: Identity) -> str:
    """Return the name of a client that was given none: different for each key, and the same after a restart."""
    return f"client-{identity.public.hex()[:NAME_DIGITS]}"


class LazyData:
    """Opens the run's data when the first batch is requested: only then are the model and the record known.

    Opens it again if the owner has changed where it is, how long its sequences are, or the model's vocabulary (P9).
    """

    def __init__(
        self, get_state: Callable[[], Coordinator], identity: Identity, settings: ClientSettings,
        find_manifest: FindManifest | None = None,
    ) -> None:  # fmt: skip
        self._get_state = get_state
        self._find_manifest = find_manifest
        self._identity = identity
        self._settings = settings
        self._provider: DataProvider | None = None
        self._opened: tuple[DataLocation, int, int | None, bytes] | None = None
        self._lock = trio.Lock()
        self.vocab_size: int | None = None
        self.sequence_length = 0

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        async with self._lock:
            model, root = self._get_state().model, self._get_state().config.data_root
            wanted = (model.data_location, model.max_seq_len, self.vocab_size, root)
            if self._provider is None or self._opened != wanted:
                await self.aclose()
                self._provider = await trio.to_thread.run_sync(self._open)
                self._opened = wanted
            provider = self._provider
        return await provider.get(start, end, epoch=epoch, height=height)

    def _open(self) -> DataProvider:
        model = self._get_state().model
        self.sequence_length = model.max_seq_len
        location = model.data_location
        files = None
        if location.kind is DataLocationKind.LOCAL:
            files = find_local_data(self._settings.local_root / location.address)
        return open_provider(
            location,
            files=files,
            folder=self._settings.local_root,
            sequence_length=model.max_seq_len,
            vocab_size=self.vocab_size,
            identity=self._identity,
            expected_server=self._settings.server_key,
            storage=self._settings.storage,
            has_labels=model.data_type is DataType.FINETUNING,
            root=self._get_state().config.data_root,
            find_manifest=self._find_manifest,
        )

    async def aclose(self) -> None:
        provider, self._provider = self._provider, None
        if provider is not None:
            await provider.aclose()


def lock_data_dir(path: Path) -> int:
    """Two clients in one folder would sign with one key."""
    make_folder(path)
    warn_of_others(path)
    try:
        return open_lock(path / LOCK_NAME)
    except BlockingIOError as error:
        raise ConfigError(f"data folder {path}: another client is using it; give each its own --data-dir") from error


def check_client_settings(settings: ClientSettings) -> None:
    """Check what can be known before anything is started: the device, and that checkpoints can be shared."""
    check_devices(settings.device, settings.ranks, settings.rendezvous)
    check_upload(settings)
    if not settings.share_checkpoints:
        return
    if settings.checkpoint_dir is None:
        raise ConfigError("--share-checkpoints: name the folder with --checkpoint-dir")
    check_shared_folder(settings.checkpoint_dir, settings.local_root, settings.run_id)


async def run_client(settings: ClientSettings, log: EventSink, open_backend: OpenBackend) -> int:
    """Run one client to its end; return its exit code.

    0: the run is finished, or SIGTERM stopped the client; 130: Ctrl-C stopped it.
    `open_backend` connects to the run's backend (`backends.tcp.backend.open_backend` for TCP).
    """
    check_client_settings(settings)
    handle = lock_data_dir(settings.data_dir)
    try:
        return await _run_obeying(settings, log, open_backend)
    finally:
        os.close(handle)


class Orders:
    """Handles stop signals: before the shell exists, end at once; afterwards, withdraw first (F26)."""

    def __init__(self, stop_grace_s: float) -> None:
        self.shell: Shell | None = None
        self.code = EXIT_INTERRUPTED  # used if the scope is cancelled before the shell ends
        self.is_asked = False
        self.is_interrupted = False  # by Ctrl-C; a service manager's SIGTERM is no reason for an error code
        self.scope = trio.CancelScope()  # pyright: ignore[reportCallIssue]
        self._stop_grace_s = stop_grace_s

    async def obey(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if self.shell is None or self.is_asked:
                if not self.is_asked and number == signal.SIGTERM:
                    self.code = 0
                self.is_asked = True
                self.scope.cancel()
                return
            self.is_asked = True
            self.is_interrupted = number == signal.SIGINT
            self.code = EXIT_NOT_ENDED
            self.scope.deadline = trio.current_time() + self._stop_grace_s
            self.shell.stop(f"stopped by {signal.Signals(number).name}")

    def note_end(self, code: int, *, is_stopped: bool) -> None:
        """The shell has ended, stopped or by itself: set the exit code; lift the deadline while everything closes."""
        self.code = EXIT_INTERRUPTED if is_stopped and self.is_interrupted and code == 0 else code
        self.scope.deadline = math.inf


async def _run_obeying(settings: ClientSettings, log: EventSink, open_backend: OpenBackend) -> int:
    """Handle signals from the start: KeyboardInterrupt inside a library's task may surface as any error, or be lost."""
    orders = Orders(settings.stop_grace_s)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(orders.obey, signals)
            try:
                with orders.scope:
                    await _run(settings, log, open_backend, orders)
            except Exception:
                if orders.shell is not None or not orders.is_asked:
                    raise  # otherwise the error comes from cancelling an unfinished start-up
            nursery.cancel_scope.cancel()
    return orders.code


async def _run(settings: ClientSettings, log: EventSink, open_backend: OpenBackend, orders: Orders) -> None:
    identity = load_identity(settings)
    for folder in (settings.snapshots_dir, settings.models_dir):
        clean_leftovers(folder)
    threads = settings.threads or os.cpu_count() or 1
    limits = NetworkLimits(
        fetches=settings.max_concurrent_downloads, blobs_in_flight=settings.max_concurrent_parameter_requests
    )
    trainer = TrainerProcess(threads=threads, log_path=settings.data_dir / "trainer.log")
    reporter = log = Reporter(log, settings.node_name)
    log.emit(types.ClientStarted(identity=identity.public, run_id=settings.run_id, pid=os.getpid()))
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(open_backend(settings, identity))  # found before torch is loaded
        network = await stack.enter_async_context(
            open_node(identity, settings.bind_ip, settings.bind_port, settings.data_dir / "network", limits=limits)
        )
        stack.push_async_callback(_stop_trainer, trainer)
        await trainer.start()  # M2: join only once the trainer is up
        log.emit(types.TrainerStarted(pid=trainer.pid))
        await check_before_join(settings, backend, trainer, reporter)
        await _participate(settings, identity, reporter, backend, network, trainer, orders)


async def check_before_join(
    settings: ClientSettings, backend: Backend, trainer: TrainerProcess, reporter: Reporter
) -> None:
    """Check before the join whether this client can take part (M2): first its device, then the run; tell the owner."""
    try:
        await trainer.check(CheckRequest(**settings.devices))  # before it waits to be allowed
        async with aclosing(backend.states()) as states:
            state = await anext(states)
        local = await trio.to_thread.run_sync(read_local_model, state, settings)
        problem = await find_model_problem(state, settings, trainer, local)
        await trio.to_thread.run_sync(check_participation, state, settings, local, problem)
        is_over = state.run_state is RunState.FINISHED
        if local is not None and not problem and not local.check.problems and not is_over:
            await _check_memory(local.folder, state, settings, trainer, reporter)
    except (ConfigError, TrainerError) as error:
        reporter.emit(types.CannotTakePart(reason=str(error)))
        await reporter.say_last(backend)
        raise


async def _check_memory(
    folder: Path, state: Coordinator, settings: ClientSettings, trainer: TrainerProcess, reporter: Reporter
) -> None:
    """Predict what training takes, from config.json; a model that comes from elsewhere is predicted at its load."""
    load = LoadRequest(
        path=str(folder), is_snapshot=False, model=state.model, micro_batch_size=settings.micro_batch_size,
        **settings.devices, activation_checkpointing=settings.activation_checkpointing,
        offload=settings.offload, batch_size=state.config.global_batch_size_end,
        verifies=state.config.verification_percent > 0,
    )  # fmt: skip
    reply = await trainer.predict_memory(MemoryRequest(load=load))
    settings.micro_batch_size = settings.micro_batch_size or reply.micro_batch_size
    settings.is_memory_checked = True
    reporter.emit(
        types.MemoryPredicted(
            device=reply.device, needed_bytes=sum(reply.parts.values()), free_bytes=reply.free_bytes,
            micro_batch_size=reply.micro_batch_size, ranks=load.ranks,
        )
    )  # fmt: skip


async def _stop_trainer(trainer: TrainerProcess) -> None:
    with trio.move_on_after(2) as scope:
        scope.shield = True
        await trainer.stop()


async def _participate(
    settings: ClientSettings, identity: Identity, reporter: Reporter, backend: Backend, network: Network,
    trainer: RestartableTrainer, orders: Orders,
) -> None:  # fmt: skip
    share = settings.share_checkpoints or is_uploading(settings)
    engine = RoundEngine(identity, export=get_export_time(settings), share=share)
    own = find_data_manifest(settings.data_manifest, settings.local_root)
    manifests = DataManifests(network, backend, settings.data_dir / "data-manifests", own)
    data = LazyData(lambda: engine.state, identity, settings, manifests.find)
    check = PayloadCheck()

    def on_loaded(event: act.Loaded) -> None:
        check.set_plan(event.reply.plan)
        data.vocab_size = event.reply.vocab_size

    parts = Parts(
        engine=engine,
        backend=backend,
        network=network,
        trainer=trainer,
        data=data,
        log=reporter,
        unix_now=time.time,
        check_payload=check,
        on_loaded=on_loaded,
        measure_data=manifests.measure,
        exam=TaskExam(settings) if settings.has_evals else None,
    )
    orders.shell = Shell(parts, settings)
    try:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(reporter.run, backend)
            code = await orders.shell.run()
            nursery.cancel_scope.cancel()
        orders.note_end(code, is_stopped=orders.shell.is_stopped)
        if code:
            await reporter.say_last(backend)
    finally:
        with trio.move_on_after(1) as scope:
            scope.shield = True
            await data.aclose()
