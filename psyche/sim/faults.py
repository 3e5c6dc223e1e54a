"""Faults as data: a few numbers each, written in Python or in a TOML file, carried out by the world.

    [[fault]]
    kind = "kill"
    who = ["client-1", "random:2"]
    at_s = 40.0
    for_s = 12.0        # restarted after this time; 0: never

Names of `who`: a machine ("server", "client-3"), "random:N", "witnesses" or "trainers" of the running
round, "all" (clients). A fault happens at `at_s`, but not before record `at_seq` of the journal, nor before
the round (`at_epoch`, `at_height`) has begun on record, and then `after_s` later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Protocol, cast, dataclass_transform

import trio

from psyche.core.state.errors import CannotResume, CoordinatorError
from psyche.core.state.messages import Join, Message, Pause, Resume, WarmupWitness, WitnessMessage
from psyche.errors import ConfigError
from psyche.network.memory.line import LinkConditions
from psyche.server.journal.changes import Change
from psyche.sim.disk import DiskConditions, ServerFiles
from psyche.telemetry import types

ANSWERED: Final[dict[str, type[Message]]] = {"join": Join, "warmup_witness": WarmupWitness, "witness": WitnessMessage}


class Machine(Protocol):
    is_gone: bool
    clock_s: float

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def disk(self) -> DiskConditions: ...
    def start(self) -> None: ...
    def kill(self, *, erase: bool = False) -> None: ...
    def stop(self) -> Any: ...
    def resume(self, life: Any) -> None: ...


class ServerMachine(Machine, Protocol):
    @property
    def files(self) -> ServerFiles: ...


class EndpointOfClient(Protocol):
    def suffer(self, trouble: "EndpointFault") -> None: ...
    def recover(self, trouble: "EndpointFault") -> None: ...


class Stage(Protocol):
    """The world as faults see it: machines by name, links, and the record as it grows."""

    @property
    def server(self) -> ServerMachine: ...
    @property
    def record_listeners(self) -> list[Callable[[Change], None]]: ...

    def choose(self, fault: "Fault", names: Sequence[str]) -> list[Any]:
        """The machines that these names mean now; clients also have the attributes that faults set."""
        ...

    def cut(self, fault: "Fault", groups: list[list[bytes]], *, silent: bool) -> None: ...
    def heal(self, fault: "Fault") -> None: ...
    def set_links(self) -> None: ...
    def reset_requests(self, key: bytes) -> None: ...
    def note(self, event: types.Event) -> None: ...
    async def wait_for_death(self, host: Any) -> None: ...
    def find_endpoints(self, name: str, number: int) -> Sequence["EndpointOfClient"]: ...
    def halt_chain(self, *, is_halted: bool) -> None: ...

    async def command(self, message: Message) -> None:
        """Send a message of the run's owner, until it takes effect or is refused."""
        ...


ALL_KINDS: Final[dict[str, type["Fault"]]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _FaultData:
    """Makes each class below it a frozen dataclass with keywords, and knows it by its kind."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str = "") -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        if kind:
            cls.kind = kind
            ALL_KINDS[kind] = cast("type[Fault]", cls)


class Fault(_FaultData):
    """A fault; the module's docstring explains its times."""

    at_s: float = 0.0
    at_seq: int = 0
    at_epoch: int = 0
    at_height: int = -1
    after_s: float = 0.0
    for_s: float = 0.0

    def get_end_s(self) -> float:
        return self.at_s + self.after_s + self.for_s

    async def happen(self, world: Stage) -> None:
        raise NotImplementedError


class MachineFault(Fault):
    who: tuple[str, ...] = ()


def set_gone(hosts: Sequence[Machine]) -> None:
    for host in hosts:
        host.is_gone = True


class Kill(MachineFault, kind="kill"):
    """The processes of these machines are killed as by SIGKILL and restarted after `for_s` (0: never)."""

    erase: bool = False  # the disk is lost, too

    async def happen(self, world: Stage) -> None:
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
        del host
        return True


class Failure(Kill):
    """A random machine failure: it does not bring back a machine that has left for good for another reason."""

    def _strikes(self, host: Machine) -> bool:
        return not host.is_gone


class Hang(MachineFault, kind="hang"):
    """The processes of these machines are paused for `for_s`, as by SIGSTOP; their connections stay open."""

    async def happen(self, world: Stage) -> None:
        stopped = [(host, host.stop()) for host in world.choose(self, self.who)]
        await trio.sleep(self.for_s)
        for host, life in stopped:
            host.resume(life)


class CleanExit(MachineFault, kind="leave"):
    """The users of these clients end them properly (Ctrl-C) and restart them after `for_s` (0: never)."""

    async def happen(self, world: Stage) -> None:
        leaving = world.choose(self, self.who)
        for host in leaving:
            host.ask_to_end("stopped by its user")
        if self.for_s:
            for host in leaving:
                await world.wait_for_death(host)  # a client that cannot reach the server takes a while to end
            await trio.sleep(self.for_s)
            for host in leaving:
                host.start()
        else:
            set_gone(leaving)


class Partition(Fault, kind="partition"):
    """The groups cannot reach each other for `for_s`.

    A machine in no group reaches all. `silent`: connections stay open but nothing arrives; else they break.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    silent: bool = False

    async def happen(self, world: Stage) -> None:
        world.cut(self, [[h.key for h in world.choose(self, g)] for g in self.groups], silent=self.silent)
        await trio.sleep(self.for_s)
        world.heal(self)


class Degrade(MachineFault, kind="degrade"):
    """The links of these machines are worse for `for_s`: seconds and shares are added, bytes a second are a cap."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bandwidth_bytes_s: float = 0.0  # 0: unchanged
    loss: float = 0.0
    duplicate: float = 0.0
    up: bool = True
    down: bool = True

    def get_conditions(self) -> LinkConditions:
        return LinkConditions(
            latency_s=self.latency_s, bandwidth_bytes_s=self.bandwidth_bytes_s or float("inf"), loss=self.loss,
            jitter_s=self.jitter_s, duplicate=self.duplicate,
        )  # fmt: skip

    async def happen(self, world: Stage) -> None:
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.degrade(self)
        world.set_links()
        await trio.sleep(self.for_s)
        for host in chosen:
            host.restore(self)
        world.set_links()


class ClockJump(MachineFault, kind="clock"):
    """The wall clocks of these machines jump by `offset_s`; after `for_s` (0: never) they jump back."""

    offset_s: float = 0.0

    async def happen(self, world: Stage) -> None:
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.clock_s += self.offset_s
        if self.for_s:
            await trio.sleep(self.for_s)
            for host in chosen:
                host.clock_s -= self.offset_s


class DiskFull(MachineFault, kind="disk_full"):
    """The disks of these machines are full for `for_s`."""

    async def happen(self, world: Stage) -> None:
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.disk.fills += 1
        await trio.sleep(self.for_s)
        for host in chosen:
            host.disk.fills -= 1


class SlowDisk(MachineFault, kind="slow_disk"):
    """Each write to the disks of these machines takes `sync_s`, for `for_s`."""

    sync_s: float = 0.5

    async def happen(self, world: Stage) -> None:
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.disk.slowed_s.append(self.sync_s)
        await trio.sleep(self.for_s)
        for host in chosen:
            host.disk.slowed_s.remove(self.sync_s)


class DataTrouble(MachineFault, kind="data"):
    """What these clients read of the training data comes `delay_s` late, for `for_s`; `is_away`: not at all then."""

    delay_s: float = 0.0
    is_away: bool = False

    async def happen(self, world: Stage) -> None:
        chosen = world.choose(self, self.who)
        for host in chosen:
            host.data_troubles.append(self)
        await trio.sleep(self.for_s)
        for host in chosen:
            host.data_troubles.remove(self)


class TornWrite(Fault, kind="torn_write"):
    """The server's machine fails during a write, `after_bytes` from now; it restarts after `for_s`."""

    after_bytes: int = 0

    async def happen(self, world: Stage) -> None:
        failed = trio.Event()

        def fail() -> None:
            world.server.kill()
            failed.set()

        world.server.files.on_torn.append(fail)
        world.server.files.tear_after = self.after_bytes
        await failed.wait()
        await trio.sleep(self.for_s)
        world.server.start()


class TrainerCrash(MachineFault, kind="trainer_crash"):
    """The trainer processes of these clients crash at their next request."""

    async def happen(self, world: Stage) -> None:
        for host in world.choose(self, self.who):
            host.trainer_faults.crash = True


class TrainerHang(MachineFault, kind="trainer_hang"):
    """The next training of these clients hangs until the watchdog ends the trainer after `for_s`."""

    async def happen(self, world: Stage) -> None:
        for host in world.choose(self, self.who):
            host.trainer_faults.hang_s = self.for_s


class BitFlip(MachineFault, kind="bit_flip"):
    """One weight of these clients is wrong after their next apply: a memory error."""

    place: int = 0

    async def happen(self, world: Stage) -> None:
        for host in world.choose(self, self.who):
            host.trainer_faults.flip = self.place


class LostAnswer(MachineFault, kind="lost_answer"):
    """The connection breaks as the next `what` of these clients goes on record: the answer is lost, not the request.

    Armed for `for_s`. The client sends the request again, but it must not go on record a second time.
    """

    what: str = "witness"  # or join, warmup_witness

    async def happen(self, world: Stage) -> None:
        wanted = {host.key: host.name for host in world.choose(self, self.who)}
        cut: list[Change] = []

        def see(change: Change) -> None:
            key = change.sender
            if change in cut:
                world.note(types.RecordedTwice(who=wanted[key], what=self.what))
            elif not cut and type(change.message) is ANSWERED[self.what] and key in wanted:
                cut.append(change)
                world.note(types.AnswerLost(who=wanted[key], what=self.what))
                world.reset_requests(key)

        world.record_listeners.append(see)
        await trio.sleep(self.for_s)
        world.record_listeners.remove(see)


KINDS: Final = dict(ALL_KINDS)  # those above

# --- faults of a chain: worlds with a server know none of them --------------------------------------------------------


AGAIN_S: Final = 2.0
MOST_TRIES: Final = 200  # an epoch's last rounds and Cooldown are over by then


class EndpointFault(MachineFault, kind="endpoint"):
    """An endpoint of each of these clients is in trouble for `for_s`.

    Args:
        endpoint: its number, from 1 on; 0: all endpoints of the client.
        is_down: it answers nothing.
        stale_slots: by so many slots it is further behind.
        lag_s: by so many seconds it is slower.
        throttled: the share of requests that it refuses because there are too many (429).
        lost: the share of transactions that it loses.
        late: the share of transactions that it passes on late.
        cut: the share of pushed accounts that never arrive.
        is_forked: it shows accounts of blocks that the chain gave up.
        is_wrong: it shows another account than the chain's, whichever block it is asked for.
    """

    endpoint: int = 0
    is_down: bool = False
    stale_slots: int = 0
    lag_s: float = 0.0
    throttled: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    is_forked: bool = False
    is_wrong: bool = False

    async def happen(self, world: Stage) -> None:
        chosen = world.choose(self, self.who)
        endpoints = [one for host in chosen for one in world.find_endpoints(host.name, self.endpoint)]
        for endpoint in endpoints:
            endpoint.suffer(self)
        await trio.sleep(self.for_s)
        for endpoint in endpoints:
            endpoint.recover(self)


class ChainHalt(Fault, kind="chain_halt"):
    """The chain makes no blocks for `for_s`."""

    async def happen(self, world: Stage) -> None:
        world.halt_chain(is_halted=True)
        await trio.sleep(self.for_s)
        world.halt_chain(is_halted=False)


class OwnerPause(Fault, kind="pause"):
    """The owner pauses the run, and resumes it `for_s` later, or as soon as it is paused."""

    async def happen(self, world: Stage) -> None:
        with suppress(CoordinatorError):  # the run is over
            await world.command(Pause())
            await trio.sleep(self.for_s)
            await self._resume(world)

    async def _resume(self, world: Stage) -> None:
        """Resume as soon as the run is paused; it never is if it has finished first."""
        for _ in range(MOST_TRIES):
            try:
                await world.command(Resume())
            except CannotResume:
                await trio.sleep(AGAIN_S)
            else:
                return


CHAIN_KINDS: Final = {kind: cls for kind, cls in ALL_KINDS.items() if kind not in KINDS}


def read_faults(tables: Iterable[Mapping[str, Any]]) -> tuple[Fault, ...]:
    found: list[Fault] = []
    for number, table in enumerate(tables):
        try:
            found.append(_read_fault(table))
        except ConfigError as error:
            raise ConfigError(f"fault[{number}]: {error}") from error
    return tuple(found)


def _read_fault(values: Mapping[str, Any]) -> Fault:
    cls = ALL_KINDS.get(str(values.get("kind")))
    if cls is None:
        said = f"kind {values['kind']!r} is unknown" if "kind" in values else "kind is missing"
        raise ConfigError(f"{said}; known are {', '.join(ALL_KINDS)}")
    known = {field.name for field in fields(cls)}
    given = {name: _freeze(value) for name, value in values.items() if name != "kind"}
    if unknown := sorted(set(given) - known):
        raise ConfigError(f"{', '.join(unknown)} is unknown in a {cls.kind}; known are {', '.join(sorted(known))}")
    return cls(**given)


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
