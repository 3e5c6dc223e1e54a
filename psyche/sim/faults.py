"""What can go wrong, as data: a few numbers each, in Python or in a TOML file, carried out by the world.

    [[fault]]
    kind = "kill"
    who = ["client-1", "random:2"]
    at_s = 40.0
    for_s = 12.0        # started again after so long; 0: never

Names of `who`: a machine ("server", "client-3"), "random:N", "witnesses" or "trainers" of the running
round, "all" (clients). A fault happens at `at_s`, but not before the journal's record `at_seq`, nor before
the round (`at_epoch`, `at_height`) is on record, and then `after_s` later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, Protocol

import trio

from psyche.core.state.messages import Join, Message, WarmupWitness, WitnessMessage
from psyche.errors import ConfigError
from psyche.network.links import LinkConditions
from psyche.server.journal.events import Event
from psyche.sim.disk import DiskConditions, ServerFiles
from psyche.telemetry import kinds

ANSWERED: Final[dict[str, type[Message]]] = {
    "join": Join,
    "warmup_witness": WarmupWitness,
    "witness": WitnessMessage,
}


class Machine(Protocol):
    """What a fault does to a machine."""

    is_gone: bool
    clock_s: float

    @property
    def name(self) -> str:
        """Of the machine."""
        ...

    @property
    def key(self) -> bytes:
        """Its public key."""
        ...

    @property
    def disk(self) -> DiskConditions:
        """What its disk is like."""
        ...

    def start(self) -> None:
        """Start its process, unless it runs."""
        ...

    def kill(self, *, erase: bool = False) -> None:
        """End its process as SIGKILL does."""
        ...

    def stop(self) -> Any:
        """Let its process stand still, which is returned."""
        ...

    def resume(self, life: Any) -> None:
        """Let a process go on that `stop` returned."""
        ...


class ServerMachine(Machine, Protocol):
    """The coordinator's machine."""

    @property
    def files(self) -> ServerFiles:
        """Its files."""
        ...


class Stage(Protocol):
    """What faults see of a world: machines by their names, lines, and the record as it grows."""

    @property
    def server(self) -> ServerMachine:
        """The coordinator's machine."""
        ...

    @property
    def record_listeners(self) -> list[Callable[[Event], None]]:
        """Called after each record of the journal."""
        ...

    def choose(self, fault: "Fault", names: Sequence[str]) -> list[Any]:
        """The machines that names stand for now; beside `Machine` clients have what their faults set."""
        ...

    def cut(self, fault: "Fault", groups: list[list[bytes]], *, silent: bool) -> None:
        """Part groups of machines until `heal`."""
        ...

    def heal(self, fault: "Fault") -> None:
        """Undo one partition."""
        ...

    def set_links(self) -> None:
        """Give every link the conditions of its two ends."""
        ...

    def reset_requests(self, key: bytes) -> None:
        """Break a machine's connections to the server."""
        ...

    def note(self, event: kinds.Event) -> None:
        """Write an event of the world itself."""
        ...

    async def wait_for_death(self, host: Any) -> None:
        """Until its process is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong; see the module for the times."""

    kind: ClassVar[str] = ""
    at_s: float = 0.0
    at_seq: int = 0
    at_epoch: int = 0
    at_height: int = -1
    after_s: float = 0.0
    for_s: float = 0.0

    def get_end_s(self) -> float:
        """When it is over, as far as that is known beforehand."""
        return self.at_s + self.after_s + self.for_s

    async def happen(self, world: Stage) -> None:
        """Do it, and undo it."""
        raise NotImplementedError


def set_gone(hosts: Sequence[Machine]) -> None:
    """Nobody means to start these again."""
    for host in hosts:
        host.is_gone = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(Fault):
    """The processes of these machines die as by SIGKILL and are started again after `for_s` (0: never)."""

    kind: ClassVar[str] = "kill"
    who: tuple[str, ...] = ()
    erase: bool = False  # the disk is lost, too

    async def happen(self, world: Stage) -> None:
        """Kill, wait, start."""
        victims = [host for host in world.choose(self, self.who) if self._strikes(host)]
        for host in victims:
            host.kill(erase=self.erase)
        if not self.for_s:
            set_gone(victims)
            return
        await trio.sleep(self.for_s)
        for host in victims:
            if self._strikes(host):
                host.start()

    def _strikes(self, host: Machine) -> bool:
        """Whether a machine is killed, and started again, by this."""
        del host
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Kill):
    """A machine fails by chance: who is away for good for another reason does not come back by it."""

    def _strikes(self, host: Machine) -> bool:
        return not host.is_gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(Fault):
    """The processes of these machines stand still for `for_s`, as by SIGSTOP; their connections stay open."""

    kind: ClassVar[str] = "hang"
    who: tuple[str, ...] = ()

    async def happen(self, world: Stage) -> None:
        """Stop and go on."""
        stopped = [(host, host.stop()) for host in world.choose(self, self.who)]
        await trio.sleep(self.for_s)
        for host, life in stopped:
            host.resume(life)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanExit(Fault):
    """Somebody ends these clients properly (Ctrl-C) and starts them again after `for_s` (0: never)."""

    kind: ClassVar[str] = "leave"
    who: tuple[str, ...] = ()

    async def happen(self, world: Stage) -> None:
        """Ask to end, wait, start."""
        leaving = world.choose(self, self.who)
        for host in leaving:
            host.ask_to_end("stopped by its user")
        if self.for_s:
            for host in leaving:
                await world.wait_for_death(host)  # who cannot reach the server takes a while to end
            await trio.sleep(self.for_s)
            for host in leaving:
                host.start()
        else:
            set_gone(leaving)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Fault):
    """The groups cannot reach each other for `for_s`.

    Whoever is in no group reaches all. `silent`: connections stay open and nothing arrives, else they break.
    """

    kind: ClassVar[str] = "partition"
    groups: tuple[tuple[str, ...], ...] = ()
    silent: bool = False

    async def happen(self, world: Stage) -> None:
        """Cut and heal."""
        world.cut(self, [[h.key for h in world.choose(self, g)] for g in self.groups], silent=self.silent)
        await trio.sleep(self.for_s)
        world.heal(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrade(Fault):
    """The lines of these machines are worse for `for_s`: seconds, bytes a second and shares are added to theirs."""

    kind: ClassVar[str] = "degrade"
    who: tuple[str, ...] = ()
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bandwidth_bytes_s: float = 0.0  # 0: as it was
    loss: float = 0.0
    duplicate: float = 0.0
    up: bool = True
    down: bool = True

    def get_conditions(self) -> LinkConditions:
        """What is added."""
        return LinkConditions(
            latency_s=self.latency_s, bandwidth_bytes_s=self.bandwidth_bytes_s or float("inf"), loss=self.loss,
            jitter_s=self.jitter_s, duplicate=self.duplicate,
        )  # fmt: skip

    async def happen(self, world: Stage) -> None:
        """Degrade and restore."""
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.degrade(self)
        world.set_links()
        await trio.sleep(self.for_s)
        for host in chosen:
            host.restore(self)
        world.set_links()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump(Fault):
    """The wall clocks of these machines jump by `offset_s`; after `for_s` (0: never) they jump back."""

    kind: ClassVar[str] = "clock"
    who: tuple[str, ...] = ()
    offset_s: float = 0.0

    async def happen(self, world: Stage) -> None:
        """Jump, and back."""
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.clock_s += self.offset_s
        if self.for_s:
            await trio.sleep(self.for_s)
            for host in chosen:
                host.clock_s -= self.offset_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFull(Fault):
    """The disks of these machines take nothing for `for_s`."""

    kind: ClassVar[str] = "disk_full"
    who: tuple[str, ...] = ()

    async def happen(self, world: Stage) -> None:
        """Fill and free."""
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.disk.fills += 1
        await trio.sleep(self.for_s)
        for host in chosen:
            host.disk.fills -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDisk(Fault):
    """Writing takes the disks of these machines `sync_s` for `for_s`."""

    kind: ClassVar[str] = "slow_disk"
    who: tuple[str, ...] = ()
    sync_s: float = 0.5

    async def happen(self, world: Stage) -> None:
        """Slow down and speed up."""
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.disk.slowed_s.append(self.sync_s)
        await trio.sleep(self.for_s)
        for host in chosen:
            host.disk.slowed_s.remove(self.sync_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TornWrite(Fault):
    """The server's machine fails within a write, `after_bytes` from now; it is up again after `for_s`."""

    kind: ClassVar[str] = "torn_write"
    after_bytes: int = 0

    async def happen(self, world: Stage) -> None:
        """Arm it, wait for it, start again."""
        failed = trio.Event()

        def fail() -> None:
            world.server.kill()
            failed.set()

        world.server.files.on_torn.append(fail)
        world.server.files.tear_after = self.after_bytes
        await failed.wait()
        await trio.sleep(self.for_s)
        world.server.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAnswer(Fault):
    """As the next `what` of these clients goes on record, its connection breaks: the answer is lost, not the request.

    Within `for_s`; no later record may be the same again, though the request is.
    """

    kind: ClassVar[str] = "lost_answer"
    who: tuple[str, ...] = ()
    what: str = "witness"  # or join, warmup_witness

    async def happen(self, world: Stage) -> None:
        """Break the connection, and look for a second effect."""
        wanted = {host.key: host.name for host in world.choose(self, self.who)}
        cut: list[Event] = []

        def see(event: Event) -> None:
            key = event.sender
            if event in cut:
                world.note(kinds.RecordedTwice(who=wanted[key], what=self.what))
            elif not cut and type(event.message) is ANSWERED[self.what] and key in wanted:
                cut.append(event)
                world.note(kinds.AnswerLost(who=wanted[key], what=self.what))
                world.reset_requests(key)

        world.record_listeners.append(see)
        await trio.sleep(self.for_s)
        world.record_listeners.remove(see)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCrash(Fault):
    """The trainer processes of these clients end at their next request."""

    kind: ClassVar[str] = "trainer_crash"
    who: tuple[str, ...] = ()

    async def happen(self, world: Stage) -> None:
        """Arm it."""
        for host in world.choose(self, self.who):
            host.trainer_faults.crash = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerHang(Fault):
    """The next training of these clients hangs until the watchdog ends the trainer after `for_s`."""

    kind: ClassVar[str] = "trainer_hang"
    who: tuple[str, ...] = ()

    async def happen(self, world: Stage) -> None:
        """Arm it."""
        for host in world.choose(self, self.who):
            host.trainer_faults.hang_s = self.for_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlip(Fault):
    """One weight of these clients is wrong after their next apply."""

    kind: ClassVar[str] = "bit_flip"
    who: tuple[str, ...] = ()
    place: int = 0

    async def happen(self, world: Stage) -> None:
        """Arm it."""
        for host in world.choose(self, self.who):
            host.trainer_faults.flip = self.place


KINDS: Final[dict[str, type[Fault]]] = {
    cls.kind: cls
    for cls in (
        Kill, Hang, CleanExit, Partition, Degrade, ClockJump, DiskFull, SlowDisk, TornWrite, TrainerCrash, TrainerHang,
        BitFlip, LostAnswer,
    )
}  # fmt: skip


def read_fault(values: Mapping[str, Any]) -> Fault:
    """A fault from a table of a TOML file.

    Raises:
        ConfigError: an unknown kind or key.
    """
    cls = KINDS.get(str(values.get("kind")))
    if cls is None:
        said = f"kind {values['kind']!r} is unknown" if "kind" in values else "kind is missing"
        raise ConfigError(f"{said}; there are {', '.join(KINDS)}")
    known = {field.name for field in fields(cls)}
    given = {name: _freeze(value) for name, value in values.items() if name != "kind"}
    if unknown := sorted(set(given) - known):
        raise ConfigError(f"{', '.join(unknown)} is unknown in a {cls.kind}; there are {', '.join(sorted(known))}")
    return cls(**given)


def read_faults(tables: Iterable[Mapping[str, Any]]) -> tuple[Fault, ...]:
    """The faults of `[[fault]]` tables.

    Raises:
        ConfigError: an unknown kind or key, naming the table.
    """
    found: list[Fault] = []
    for number, table in enumerate(tables):
        try:
            found.append(read_fault(table))
        except ConfigError as error:
            raise ConfigError(f"fault[{number}]: {error}") from error
    return tuple(found)


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def get_table(fault: Fault) -> dict[str, Any]:
    """The fault as a table: its kind, and what differs from the defaults."""
    plain = asdict(type(fault)())
    return {"kind": fault.kind} | {name: value for name, value in asdict(fault).items() if value != plain[name]}
