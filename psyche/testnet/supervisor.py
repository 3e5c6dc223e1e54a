"""The supervisor: starts a server and its clients, watches them, kills some on request, and leaves nothing running."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from psyche.core.state.state import RunState
from psyche.errors import ConfigError, PsycheError
from psyche.modeling.trainer.process import HOST_VARIABLE
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import EventLog
from psyche.telemetry.loading import EXIT_INTERRUPTED
from psyche.telemetry.status import ENDED, PHASES, ROUND_PHASES
from psyche.telemetry.text import format_number
from psyche.testnet import ending
from psyche.testnet.backends import HOST, Prepared, build_backend
from psyche.testnet.prepare import prepare
from psyche.testnet.process import KILL_WAIT_S, PSYCHE, Child, describe_exit_status, stop_all
from psyche.testnet.report import build_report
from psyche.testnet.scratch import Scratch
from psyche.testnet.settings import TestnetSettings, get_node_name
from psyche.testnet.views import open_views
from psyche.watch.app import ConsoleView
from psyche.watch.sources import LogSource

SERVER_START_S: Final = 180.0  # for imports on a loaded machine; usually 2 s
TRAINERS_START_S: Final = 120.0  # for imports on a loaded machine; usually 10 s
POLL_S: Final = 0.1
REFRESH_S: Final = 0.3
STOP_CLIENTS_S: Final = 6.0  # F26 gives a client five seconds
STOP_SERVER_S: Final = 6.0
PAUSE_S: Final = 30.0  # for the server to take the command
DRAIN_S: Final = 180.0  # for the epoch to come to its end after a pause
LAST_LINES: Final = 8
EPOCHS_LEFT_ALONE: Final = 2  # after the last kill: one to rejoin in, one to finish together
SHARE_LEFT_ALONE: Final = 0.4  # of the steps, if epochs have no length in rounds


# The command lines of the processes, as a person would type them on several machines.


def get_trainer_host_argv(socket: Path) -> list[str]:
    argv = [sys.executable, "-X", "faulthandler", "-m", "psyche.modeling.trainer.host"]
    return [*argv, "--socket", str(socket), "--parent", str(os.getpid())]


def get_backend_argv(prepared: Prepared, settings: TestnetSettings) -> list[str]:
    return build_backend(settings).get_argv(prepared)


def get_client_argv(prepared: Prepared, settings: TestnetSettings, number: int) -> list[str]:
    layout, name = prepared.layout, get_node_name(number)
    argv = [*PSYCHE, "client", "train", "--run-id", prepared.run.run_id]
    argv += build_backend(settings).get_client_options(prepared, number)
    argv += ["--bind-p2p-interface", HOST, "--node-name", name]
    argv += ["--data-dir", str(layout.client(number)), "--checkpoint-dir", str(layout.checkpoints(number))]
    argv += ["--local-root", str(layout.config), "--events-dir", str(layout.events), "--log", settings.log]
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.num_clients)
    argv += ["--device", settings.device, "--threads", str(threads)]
    argv += ["--micro-batch-size", str(settings.micro_batch_size or "auto")]
    if settings.activation_checkpointing:
        argv.append("--activation-checkpointing")
    if settings.write_distro_data:
        argv += ["--write-gradients-dir", str(layout.client(number) / "distro")]
    if settings.optim_stats:
        argv += ["--optim-stats-steps", str(settings.optim_stats)]
    if settings.write_log:
        argv += ["--write-log", str(layout.logs / f"{name}.jsonl")]
    return argv


def get_owner_argv(prepared: Prepared, settings: TestnetSettings, command: str) -> list[str]:
    return [*PSYCHE, "run", command, *build_backend(settings).get_owner_options(prepared)]


@dataclass(frozen=True, slots=True)
class KillPlan:
    """`number` of the `allowed` clients (numbered from 1) every `interval_s` seconds."""

    number: int
    interval_s: float
    allowed: tuple[int, ...]


def make_kill_plan(number: int, interval_s: float, allowed: Sequence[int], num_clients: int) -> KillPlan | None:
    if number == 0:
        return None
    everyone = tuple(range(1, num_clients + 1))
    chosen = tuple(sorted(set(allowed))) or everyone
    if number < 0 or number > len(chosen):
        raise ConfigError(
            f"--random-kill-num {number}: must be between 0 and the {len(chosen)} clients that may be killed"
        )
    if interval_s <= 0:
        raise ConfigError(f"--random-kill-interval {interval_s}: must be above 0 seconds")
    unknown = [client for client in chosen if client not in everyone]
    if unknown:
        raise ConfigError(f"--allowed-to-kill {unknown[0]}: clients are numbered 1 to {num_clients}")
    return KillPlan(number, interval_s, chosen)


def choose_victims(plan: KillPlan, random: Random) -> list[int]:
    return sorted(random.sample(plan.allowed, plan.number))


def is_time_to_kill(step: int, total_steps: int, rounds_per_epoch: int) -> bool:
    """Whether enough of the run is left: the current epoch and `EPOCHS_LEFT_ALONE` whole ones after it."""
    if rounds_per_epoch > 0:
        return step + (EPOCHS_LEFT_ALONE + 1) * rounds_per_epoch <= total_steps
    return step <= total_steps * (1 - SHARE_LEFT_ALONE)


class Testnet:
    """A running server and its clients. Tests drive it directly and kill processes."""

    __test__ = False

    def __init__(self, prepared: Prepared, settings: TestnetSettings, console: Console) -> None:
        self.prepared = prepared
        self.settings = settings
        self.backend = build_backend(settings)
        self.events = EventLog(prepared.layout.events_of("testnet"), node="testnet")
        self.source = LogSource(prepared.layout.events)
        self.run = self.source.view
        self.run.run_id, self.run.total_steps = prepared.run.run_id, prepared.run.config.total_steps
        self.console = ConsoleView([self.run], console)
        self.training = trio.Event()  # set when the first round has begun
        self.server: Child | None = None
        self.trainers: Child | None = None  # forks the clients' trainers, so that they start quickly
        self.clients: dict[int, Child] = {}
        self.exits: dict[int, int | None] = dict.fromkeys(range(1, settings.num_clients + 1))
        self.kills: dict[int, int] = {}
        self.stopped = ""
        self._scratch = Scratch()
        self._trainer_socket = Path(os.environ.get(HOST_VARIABLE) or self._scratch.path / "trainers")
        self._to_restart: set[int] = set()
        self._hopeless = trio.Event()  # set when no epoch can form any longer
        self._at_rest = trio.Event()  # set when no client is in an epoch any longer

    def start_server(self) -> Child:
        output = self.prepared.layout.logs / f"{self.backend.name}.log"
        argv = get_backend_argv(self.prepared, self.settings)
        self.server = Child(self.backend.name, argv, output=output, env=self.settings.storage.get_variables())
        self.events.emit(types.ProcessStarted(name=self.backend.name, pid=self.server.pid))
        return self.server

    def start_trainers(self) -> None:
        """Start the host that imports torch once for all, unless the environment names one that is there.

        A client that cannot reach it starts its own trainer.
        """
        if self._trainer_socket.exists():
            return
        argv = get_trainer_host_argv(self._trainer_socket)
        self.trainers = Child("trainers", argv, output=self.prepared.layout.logs / "trainers.log")

    async def wait_for_trainers(self) -> None:
        """Wait until the host answers, ends, or takes too long; without it the clients only start more slowly."""
        with trio.move_on_after(TRAINERS_START_S):
            while self.trainers is not None and self.trainers.is_running():
                if await trio.Path(self._trainer_socket).exists():
                    return
                await trio.sleep(POLL_S)

    async def wait_for_server(self) -> None:
        """Wait until the port of server or chain answers."""
        assert self.server is not None, "call start_server first"
        with trio.move_on_after(SERVER_START_S):
            while self.server.is_running():
                with contextlib.suppress(OSError):
                    stream = await trio.open_tcp_stream(HOST, self.prepared.server_port)
                    await stream.aclose()
                    return
                await trio.sleep(POLL_S)
        late = f"the {self.backend.name} did not answer within {SERVER_START_S:.0f} s"
        raise PsycheError(describe_process_failure(self.server, late))

    def start_client(self, number: int) -> Child:
        name = get_node_name(number)
        output = self.prepared.layout.logs / f"{name}.log"
        environment = {HOST_VARIABLE: str(self._trainer_socket), "PSYCHE_PROGRAM_IDS": ""}  # of another chain
        environment |= self.settings.storage.get_variables()
        argv = get_client_argv(self.prepared, self.settings, number)
        child = Child(name, argv, output=output, env=environment)
        self.clients[number] = child
        self.events.emit(types.ProcessStarted(name=name, pid=child.pid))
        return child

    def kill_client(self, number: int, *, restart: bool = True) -> None:
        child = self.clients[number]
        if not child.is_running():
            return
        if restart:
            self._to_restart.add(number)
        self.kills[number] = self.kills.get(number, 0) + 1
        self.events.emit(types.ProcessKilled(name=child.name, pid=child.pid, restart=restart))
        self.console.say(f"{child.name} is killed (SIGKILL)" + (" and started again" if restart else ""))
        child.kill()

    async def run_client(self, number: int) -> None:
        while True:
            child = self.start_client(number)
            code = await child.wait()
            self.events.emit(types.ProcessEnded(name=child.name, pid=child.pid, code=code))
            if number not in self._to_restart:
                break
            self._to_restart.discard(number)
        self.exits[number] = code
        if code != 0:
            self.console.say(describe_process_failure(child, f"{child.name} ended: {describe_exit_status(code)}"))

    async def watch_server(self) -> None:
        assert self.server is not None, "call start_server first"
        code = await self.server.wait()
        how = f"the {self.backend.name} ended: {describe_exit_status(code)}"
        raise PsycheError(describe_process_failure(self.server, how))

    async def run_clients(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in self.exits:
                nursery.start_soon(self.run_client, number)

    async def kill_regularly(self, plan: KillPlan) -> None:
        config, random = self.prepared.run.config, Random(self.settings.seed)  # noqa: S311 - no secret
        of = format_number(len(plan.allowed), "client")
        self.console.say(f"{plan.number} of {of} killed every {plan.interval_s:g} s")
        while True:
            await trio.sleep(plan.interval_s)
            if not is_time_to_kill(self.run.step, config.total_steps, config.rounds_per_epoch):
                self.console.say("no more kills: all clients take part in the last epochs")
                self.events.emit(types.KillsEnded(step=self.run.step))
                return
            for victim in choose_victims(plan, random):
                self.kill_client(victim)

    async def refresh(self) -> None:
        while True:
            more = await self.source.refresh()
            self.console.refresh()
            if self.run.phase in ROUND_PHASES:
                self.training.set()
            if more:
                continue
            if self._is_at_rest():
                self._at_rest.set()
            if self._find_dead_end():
                self._hopeless.set()
            await trio.sleep(REFRESH_S)

    async def end_if_hopeless(self, scope: trio.CancelScope) -> None:
        """End the run when no epoch can form any more, because clients have failed and too few are left (M3)."""
        await self._hopeless.wait()
        self.stopped = self._find_dead_end()
        self.console.say(f"the run cannot go on: {self.stopped}")
        scope.cancel()

    def _find_dead_end(self) -> str:
        needed = self.prepared.run.config.init_min_clients
        failed = sum(1 for code in self.exits.values() if code)
        left = [number for number, code in self.exits.items() if code is None]
        if not failed or not left or len(left) >= needed:
            return ""
        if any(self._get_phase(number) != PHASES[RunState.WAITING_FOR_MEMBERS] for number in left):
            return ""  # the epoch that runs goes on to its end
        clients = format_number(failed, "client")
        return f"{clients} failed, {len(left)} left to wait for members, and an epoch needs {needed} (init_min_clients)"

    async def pause(self, reason: str) -> None:
        self.stopped = reason
        self.console.say(f"{reason}: pausing the run, which ends its epoch (at most {DRAIN_S:.0f} s)")
        argv = get_owner_argv(self.prepared, self.settings, "pause")
        command = Child("pause", argv, output=self.prepared.layout.logs / "pause.log")
        try:
            with trio.move_on_after(PAUSE_S):
                await command.wait()
        finally:
            await command.end()
        with trio.move_on_after(DRAIN_S):
            await self._at_rest.wait()

    def _is_at_rest(self) -> bool:
        return all(self._get_phase(number) in ("paused", "finished", ENDED) for number in self.exits)

    def _get_phase(self, number: int) -> str:
        node = self.run.nodes.get(get_node_name(number))
        return "" if node is None else node.phase

    async def stop(self) -> None:
        # The clients first: while the server still answers, they can withdraw (F26).
        stubborn = await stop_all(list(self.clients.values()), STOP_CLIENTS_S)
        for number, child in self.clients.items():
            self.exits[number] = child.returncode
        if self.server is not None:
            stubborn += await stop_all([self.server], STOP_SERVER_S)
        if self.trainers is not None:
            await self.trainers.end()
        self._scratch.remove()
        for name in stubborn:
            self.console.say(f"{name} did not leave in time and was killed")
        while self.source.read():
            pass
        self.console.skip_lines()  # what ends because it is to end is no news
        self.console.refresh()


def describe_process_failure(child: Child, what: str) -> str:
    lines = "".join(f"\n    {line}" for line in child.get_last_lines(LAST_LINES))
    return f"{what}; its last lines, all of them in {child.output}:{lines}"


@asynccontextmanager
async def open_testnet(prepared: Prepared, settings: TestnetSettings, console: Console) -> AsyncIterator[Testnet]:
    testnet = Testnet(prepared, settings, console)
    try:
        testnet.start_trainers()
        testnet.start_server()
        await testnet.wait_for_server()
        await testnet.backend.create_run(prepared, testnet.console.say)
        await testnet.wait_for_trainers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(testnet.watch_server)
            nursery.start_soon(testnet.refresh)
            yield testnet
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(STOP_CLIENTS_S + STOP_SERVER_S + KILL_WAIT_S) as scope:
            scope.shield = True
            await testnet.stop()
        testnet.events.close()
        console.clear_status()


async def run_testnet(settings: TestnetSettings, console: Console) -> int:
    plan = make_kill_plan(
        settings.random_kill_num, settings.random_kill_interval_s, settings.allowed_to_kill, settings.num_clients
    )
    code = EXIT_INTERRUPTED
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, nursery.cancel_scope, console)
        code = await _run(settings, plan, console)
        nursery.cancel_scope.cancel()
    return code


async def _run(settings: TestnetSettings, plan: KillPlan | None, console: Console) -> int:
    started = time.monotonic()
    prepared = await prepare(settings, console.print)
    console.print(f"starting {build_backend(settings).title}, and loading torch once for all clients (about 10 s)")
    try:
        async with open_testnet(prepared, settings, console) as testnet:
            console.print(f"{testnet.backend.name} on {HOST}:{prepared.server_port}, files in {prepared.layout.root}")
            async with open_views(testnet.backend, prepared, testnet.settings, testnet.console):
                await _train(testnet, plan)
    except BaseException:
        console.print(f"logs and events of this run: {prepared.layout.root}")
        raise
    seconds, run_id = time.monotonic() - started, prepared.run.run_id
    report = await trio.to_thread.run_sync(
        build_report, prepared.layout, run_id, testnet.exits, testnet.kills, seconds, testnet.stopped
    )
    return await ending.finish(prepared, settings, report, console)


async def _train(testnet: Testnet, plan: KillPlan | None) -> None:
    minutes = testnet.settings.minutes
    async with trio.open_nursery() as nursery:
        if plan is not None:
            nursery.start_soon(testnet.kill_regularly, plan)
        if minutes is not None:
            nursery.start_soon(_end_after, testnet, minutes, nursery.cancel_scope)
        nursery.start_soon(testnet.end_if_hopeless, nursery.cancel_scope)
        await testnet.run_clients()
        nursery.cancel_scope.cancel()


async def _end_after(testnet: Testnet, minutes: float, scope: trio.CancelScope) -> None:
    await testnet.training.wait()
    await trio.sleep(60 * minutes)
    await testnet.pause("1 minute is over" if minutes == 1 else f"{minutes:g} minutes are over")
    scope.cancel()


async def _watch_signals(
    scope: trio.CancelScope, console: Console, task_status: Any = trio.TASK_STATUS_IGNORED
) -> None:
    """Stop in order at the first signal; at the second end this process, whereupon the kernel kills its children."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        asked = False
        async for _ in signals:
            if asked:
                console.clear_status()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTERM)
            asked = True
            console.print("stopping everything (at most 12 s; Ctrl-C again kills at once)")
            scope.cancel()
