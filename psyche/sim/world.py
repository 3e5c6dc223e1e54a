"""A simulated world: machines on links, a run on them, and the faults that hit it.

outcome = simulate(Scenario(seed=7))
print(outcome.describe())
"""

import functools
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import trio

from psyche.core.committee.elections import get_witnesses
from psyche.core.encoding.account import decode_state
from psyche.core.state.bits import get_members
from psyche.core.state.messages import Message
from psyche.core.state.state import Coordinator, RunState
from psyche.network.memory.links import Links
from psyche.network.memory.node import MemoryHub
from psyche.server.journal.changes import Change
from psyche.sim import runtime
from psyche.sim.backends.server import ServerBackend, ServerHost
from psyche.sim.byzantine.programs import build_program
from psyche.sim.disk import is_writer
from psyche.sim.faults import EndpointOfClient, Fault
from psyche.sim.hosts import ClientHost, Host
from psyche.sim.identity import build_machine_identity
from psyche.sim.invariants.checker import Invariants, Violation
from psyche.sim.links.lines import Lines
from psyche.sim.payloads import PayloadCodec
from psyche.sim.runtime import build_rng, find_root
from psyche.sim.scenarios.report import describe_crash, describe_replay
from psyche.sim.scenarios.scenario import (
    CHAIN,
    Scenario,
    build_run_config,
    build_run_model,
    compute_farewell_s,
    compute_limit_s,
    compute_patience_s,
    compute_transition_s,
)
from psyche.sim.trace import Trace
from psyche.telemetry import types
from psyche.telemetry.events import Entry, encode_entry

if TYPE_CHECKING:
    from psyche.sim.backends.chain import ChainBackend

KEPT_STATES: Final = 16  # each endpoint of a chain shows another one of the last few
WATCH_S: Final = 5.0  # seconds between two checks for progress
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder for the clients' files that costs no disk


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of a simulation.

    `rounds` counts closed rounds, `digest` covers the whole event log; times are in seconds.
    """

    scenario: Scenario
    violations: list[Violation]
    rounds: int
    events: int
    records: int
    digest: str
    simulated_s: float
    wall_s: float
    state: Coordinator
    codes: tuple[int | None, ...]
    entries: list[Entry]
    last: list[str]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[bytes]:
        return list(map(encode_entry, self.entries))

    def describe(self) -> str:
        name, seed = self.scenario.name, self.scenario.seed
        head = f"{name} seed {seed}: {self.rounds} rounds, {self.events} events, {self.simulated_s:.0f} s".lstrip()
        if not self.violations:
            return f"{head}, nothing violated"
        replay = describe_replay(self.scenario)
        return "\n".join([head, *replay, *self.last, *(f"violated {violation}" for violation in self.violations)])


class World:
    """One simulated world; `run` plays it to its end."""

    def __init__(self, scenario: Scenario, folder: Path, *, keep_lines: bool = True) -> None:
        self.scenario = scenario
        self.folder = folder
        self.config = build_run_config(scenario)
        self.model = build_run_model(scenario)
        self.codec = PayloadCodec(self.model.optimizer)
        self.trace = Trace(str(folder), keep_lines=keep_lines)
        self.links = Links(build_rng(scenario.seed, "links"))
        self.hub = MemoryHub(build_rng(scenario.seed, "hub"), links=self.links, weigh_blobs=scenario.weigh_blob)
        self.lines = Lines(self.links, shares_lines=scenario.shares_lines)
        self.owner = build_machine_identity(scenario.seed, "owner")
        self.backend = self._build_backend()
        self.clients = [
            ClientHost(self, number, build_machine_identity(scenario.seed, name), scenario.get_class(number))
            for number, name in enumerate(scenario.names)
        ]
        self.roots: dict[runtime.Task, Host] = {}
        self.queue = runtime.RunQueue(self._end_stuck)
        self.shadow = self.backend.shadow
        self.invariants = Invariants(self)
        self.is_over = False
        self.under_way: list[Fault] = []
        self.happened: list[Fault] = []  # those that have begun
        self.companions: list[Callable[[], Awaitable[object]]] = []  # tasks beside the world; set before it starts
        self.quiet_since = 0.0  # since when no fault is under way
        self.progress_at = 0.0
        self.longest_wait_s = 0.0  # without progress, while nothing was wrong
        self._nursery: trio.Nursery | None = None
        self.record_listeners: list[Callable[[Change], None]] = []  # called after each record of the journal
        self._is_lost = False  # stalled with an excuse: more liars than the protocol tolerates
        self._recorded = trio.Event()
        self._ended = trio.Event()
        self._newest: tuple[bytes, Coordinator] | None = None  # of the states that were decoded
        self._decode_once = functools.lru_cache(KEPT_STATES)(self._decode)
        self._prepare()

    def _build_backend(self) -> "ServerBackend | ChainBackend":
        if self.scenario.backend != CHAIN:
            return ServerBackend(self, self._on_record)
        from psyche.sim.backends.chain import ChainBackend  # needs the extra `solana`, which a server does not

        return ChainBackend(self, self._on_record)

    def _prepare(self) -> None:
        for host in self.clients:
            self.backend.add_machine(host.name, host.key)
        for number, member in enumerate(self.scenario.byzantine):
            rng = build_rng(self.scenario.seed, "liar", number)  # seeds the generator: keep the name
            host = self.clients[member.who]
            host.programs.append(build_program(member, host, rng))
        self.set_links()

    # --- what machines and faults need ----------------------------------------------------------------

    @property
    def server(self) -> ServerHost:
        host = self.backend.host
        assert host is not None, "checked with the scenario"
        return host

    def find_endpoints(self, name: str, number: int) -> Sequence[EndpointOfClient]:
        return self._chain.find_endpoints(name, number)

    def halt_chain(self, *, is_halted: bool) -> None:
        self._chain.halt_chain(is_halted=is_halted)

    async def command(self, message: Message) -> None:
        await self._chain.command(message)

    @property
    def _chain(self) -> "ChainBackend":
        controls = self.backend.controls
        assert controls is not None, "checked with the scenario"
        return controls

    @property
    def machines(self) -> tuple[Host, ...]:
        return (*self.backend.machines, *self.clients)

    def get_honest_keys(self) -> set[bytes]:
        return {host.key for host in self.clients if host.is_honest}

    def note(self, event: types.Event) -> None:
        self.trace.note(event)

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        assert self._nursery is not None, "while it runs"
        self._nursery.start_soon(function, *args)

    def drop(self, key: bytes) -> None:
        self.hub.drop(key)
        self.backend.drop(key)

    def reset_requests(self, key: bytes) -> None:
        self.backend.drop(key)

    def set_links(self) -> None:
        self.lines.update(self.machines)

    def cut(self, fault: Fault, groups: list[list[bytes]], *, silent: bool) -> None:
        self.lines.cut(id(fault), groups, silent=silent)

    def heal(self, fault: Fault) -> None:
        self.lines.heal(id(fault))

    def choose(self, fault: Fault, names: Sequence[str]) -> list[Any]:
        chosen: dict[str, Host] = {}
        for name in names:
            chosen.update((host.name, host) for host in self._find(fault, name))
        return list(chosen.values())

    def _find(self, fault: Fault, name: str) -> Sequence[Host]:
        if name == "server":
            return [self.server]
        if name == "all":
            return self.clients
        if name.startswith("random:"):
            rng = build_rng(self.scenario.seed, "choose", fault)
            return rng.sample(self.clients, min(len(self.clients), int(name.removeprefix("random:"))))
        if name in ("witnesses", "trainers"):
            return self._find_members(name)
        return [host for host in self.clients if host.name == name]

    def _find_members(self, role: str) -> list[Host]:
        state = self.shadow.state
        if not state.in_round:
            return []
        members = get_witnesses(state.current) if role == "witnesses" else get_members(state.current.members)
        keys = {state.clients[member].p2p for member in members}
        return [host for host in self.clients if host.key in keys]

    def decode(self, raw: bytes) -> Coordinator:
        """Decode a state; the clients of a world share the object, which none of them changes."""
        if self._newest is None or self._newest[0] != raw:  # comparing takes less time than finding it by its hash
            self._newest = raw, self._decode_once(raw)
        return self._newest[1]

    def _decode(self, raw: bytes) -> Coordinator:
        self.invariants.check_shown(raw)
        return decode_state(raw)

    def find_host(self) -> Host | None:
        root = find_root(trio.lowlevel.current_task(), self.roots)
        return None if root is None else self.roots[root]

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking function here instead of in a thread; a write takes the time that the machine's disk takes."""
        host = self.find_host()
        if host is not None and is_writer(function):
            if host.disk.write_s:
                await trio.sleep(host.disk.write_s)
            if host not in self.backend.machines:
                host.disk.check_room()
        await trio.lowlevel.checkpoint()
        return function(*args)

    async def wait_for_death(self, host: Host) -> None:
        while host.is_alive:
            await self._ended.wait()

    def note_death(self) -> None:
        self._ended.set()
        self._ended = trio.Event()

    def on_end(self, host: Host) -> None:
        """A process has ended by itself; restart it if it failed."""
        self.note_death()
        if host.code and self.scenario.respawn_s and not self.is_over:
            self.spawn(self._respawn, host)

    async def _respawn(self, host: Host) -> None:
        await trio.sleep(self.scenario.respawn_s)
        host.start()

    # --- the course of the run --------------------------------------------------------------------------

    async def run(self) -> None:
        """Play until the run is finished and its clients have ended, or until the time limit."""
        self.queue = runtime.install_queue(self._end_stuck)
        limit_s = compute_limit_s(self.scenario, self.config)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.backend.start()
            for number, host in enumerate(self.clients):
                nursery.start_soon(self._join, host, number)
            for fault in self.scenario.faults:
                nursery.start_soon(self._carry_out, fault)
            for watch in (self._watch, *self.companions):
                nursery.start_soon(watch)
            with trio.move_on_after(limit_s) as scope:
                await self._wait_for_end()
            if scope.cancelled_caught and self.scenario.must_advance:
                self.invariants.fail("I5", "the run ends", f"not after {limit_s:.0f} s", self.invariants.where())
            await self._wait_for_clients()
            self.invariants.check_end()
            self._end()

    def give_up(self, expected: str, found: str) -> None:
        """End a stalled run now (I5), without waiting for another record."""
        self.invariants.fail("I5", expected, found, self.invariants.where())
        self._wake_waiting()

    def _end_stuck(self, names: list[str]) -> None:
        """End the simulation: tasks wake each other for ever while time stands still."""
        self.invariants.fail("I5", "time goes on", f"these wake each other for ever: {', '.join(names)}")
        self._end()

    def _end(self) -> None:
        self.is_over = True
        for host in self.machines:
            host.wake()  # a paused process could not even be cancelled
        assert self._nursery is not None, "while it runs"
        self._nursery.cancel_scope.cancel()

    async def _join(self, host: ClientHost, number: int) -> None:
        cls = host.cls
        await trio.sleep(cls.join_s + cls.join_spread_s * build_rng(self.scenario.seed, "join", number).random())
        host.start()

    async def _wait_for_end(self) -> None:
        while not self.invariants.violations and not self.is_finished and not self._is_lost:
            await self._wait_for_record()

    async def _wait_for_clients(self) -> None:
        """P8: let the clients of a finished run fetch and serve the final weights, for as long as they may."""
        is_well = self.is_finished and not self.invariants.violations
        farewell_s = compute_farewell_s(self.config, compute_transition_s(self.scenario))
        with trio.move_on_after(farewell_s if is_well else 0):
            while any(host.is_alive for host in self.clients):
                await self._ended.wait()

    async def _wait_for_record(self) -> None:
        await self._recorded.wait()

    def _wake_waiting(self) -> None:
        self._recorded.set()
        self._recorded = trio.Event()

    async def _carry_out(self, fault: Fault) -> None:
        await trio.sleep(fault.at_s)
        while self.shadow.seq < fault.at_seq or not self._has_come(fault):
            await self._wait_for_record()
        if fault.after_s:
            await trio.sleep(fault.after_s)
        self.note(types.Fault(what=fault.kind, for_s=fault.for_s))
        self.happened.append(fault)
        self.under_way.append(fault)
        try:
            await fault.happen(self)
        finally:
            self.under_way.remove(fault)
            self.quiet_since = trio.current_time()
        self.note(types.FaultOver(what=fault.kind))

    def _has_come(self, fault: Fault) -> bool:
        state = self.shadow.state
        now = (state.progress.epoch, state.current.height if state.in_round else -1)
        return now >= (fault.at_epoch, fault.at_height)

    def _on_record(self, change: Change) -> None:
        before = self.invariants.place
        self.invariants.check_record(change)
        if self.invariants.place != before:
            self.progress_at = trio.current_time()
        for listen in tuple(self.record_listeners):
            listen(change)
        self._wake_waiting()

    async def _watch(self) -> None:
        """Check liveness: once healed, and with enough members, a run takes a step within its patience (I5)."""
        patience_s = compute_patience_s(self.config, self.scenario.faults, compute_transition_s(self.scenario))
        while True:
            await trio.sleep(WATCH_S)
            self.invariants.check_limits()
            now = trio.current_time()
            if not self.owes_progress():
                self.quiet_since = now
                continue
            waited_s = 0.0 if self.is_finished else now - max(self.quiet_since, self.progress_at)
            self.longest_wait_s = max(self.longest_wait_s, waited_s)
            is_stuck = waited_s > patience_s
            if is_stuck or self.invariants.liveness.has_stalled():
                excuse = self.invariants.liveness.find_excuse()
                if excuse:
                    self._is_lost = True
                    self.note(types.RunLost(why=excuse))
                    self._wake_waiting()
                elif is_stuck:
                    self.give_up("a step", f"none for {patience_s:.0f} s")
                return

    @property
    def is_finished(self) -> bool:
        return self.shadow.state.run_state is RunState.FINISHED

    def owes_progress(self) -> bool:
        """Whether nothing is wrong now that would excuse a run without progress (I5)."""
        return not self.under_way and self.is_able() and self.scenario.must_advance

    def is_able(self) -> bool:
        living = sum(host.is_alive and host.is_honest for host in self.clients)
        needed = max(self.config.init_min_clients, self.config.min_clients)
        return self.backend.is_alive and living >= needed


def simulate(scenario: Scenario, *, keep_lines: bool = True, prepare: Callable[[World], None] | None = None) -> Outcome:
    """Play a scenario to its end. `prepare` may inspect or change the world before it starts.

    An exception that ends the simulation gets a note that says how to replay it (`report`).
    """
    runtime.free_former_world()
    shared = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="psyche-simulator-", dir=shared))
    started = perf_counter()
    world: World | None = None
    try:
        world = World(scenario, folder, keep_lines=keep_lines)
        if prepare is not None:
            prepare(world)
        simulated_s = runtime.run(functools.partial(_play, world), scenario.seed, world.run_blocking)
    except Exception as error:
        error.add_note(describe_crash(scenario, error, [] if world is None else world.trace.describe_last()))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        scenario=scenario, violations=world.invariants.violations, rounds=world.invariants.rounds,
        events=world.trace.count, records=world.shadow.seq, digest=world.trace.digest, simulated_s=simulated_s,
        wall_s=perf_counter() - started, state=world.shadow.state, codes=tuple(host.code for host in world.clients),
        entries=world.trace.entries, last=world.trace.describe_last(),
        facts=world.invariants.get_facts() | world.backend.get_facts(),
    )  # fmt: skip


async def _play(world: World) -> float:
    await world.run()
    return trio.current_time()
