"""What the server's tests share: keys, a disk in memory, and honest members that speak the wire's messages."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kits.runs import Run
from psyche.core.encoding.account import encode_state
from psyche.core.state.genesis import create_run
from psyche.core.state.messages import Join, WarmupWitness
from psyche.core.state.state import Config, Coordinator, Metadata, Model, Progress, RunState
from psyche.server.access import AccessChanges, AllowList
from psyche.server.handler import CoordinatorHandler
from psyche.server.journal.journal import Journal
from psyche.server.journal.recovery import create_journal
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_model
from psyche.wire import backend as wire
from psyche.wire.access import OPEN, Access
from psyche.wire.crypto import Identity, sign_address_record
from psyche.wire.ports import AddressRecord

OWNER = Identity(bytes([200]) * 32)
CLIENTS = [Identity(bytes([number + 1]) * 32) for number in range(8)]


class Sink:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, kind: str, **fields: object) -> None:
        self.events.append((kind, fields))

    def get(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == kind]


class MemoryDisk:
    """A disk whose contents a test can copy, tear and break; `broken` makes every write fail."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.syncs = 0
        self.broken = False

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        return self.files[name]

    def append(self, name: str, data: bytes) -> None:
        self.replace(name, self.files.get(name, b"") + data)

    def replace(self, name: str, data: bytes) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        self.files[name] = data
        self.syncs += 1

    def truncate(self, name: str, size_bytes: int) -> None:
        self.files[name] = self.files[name][:size_bytes]

    def remove(self, name: str) -> None:
        self.files.pop(name, None)


@dataclass
class RunFile:
    """A run's configuration, as the config package loads it."""

    config: Config = field(default_factory=lambda: build_config(init_min_clients=3, min_clients=2, total_steps=5))
    model: Model = field(default_factory=build_model)
    run_id: str = "test-run"
    metadata: Metadata = field(default_factory=lambda: Metadata(name="test"))
    progress: Progress = field(default_factory=Progress)
    pending_pause: bool = False
    bootstrap: tuple[str, ...] = ()


def build_entropy() -> Callable[[], bytes]:
    """Entropy that is the same in every test run."""
    numbers = iter(range(1 << 60))
    return lambda: build_hash("entropy", next(numbers))


def build_state(file: RunFile | None = None) -> Coordinator:
    file = file or RunFile()
    return create_run(file.config, file.model, file.run_id, build_hash("run"), file.metadata, "test", START_UNIX)


def build_handler(
    state: Coordinator | None = None,
    disk: MemoryDisk | None = None,
    journal: Journal | None = None,
    access: Access | None = None,
    **options: Any,
) -> CoordinatorHandler:
    state = state or build_state()
    journal = journal or create_journal(disk or MemoryDisk(), START_UNIX, encode_state(state))
    settings = {"now": START_UNIX, "owners": frozenset({OWNER.public}), "entropy": build_entropy(), "program": "test"}
    settings["access"] = AllowList(access or OPEN, AccessChanges(), OWNER.public)
    return CoordinatorHandler(state, journal, **(settings | options))


def build_record(identity: Identity, port: int = 4001, expires_unix: int = START_UNIX + 100_000) -> AddressRecord:
    return sign_address_record(identity, [f"/ip4/127.0.0.1/tcp/{port}"], expires_unix)


def build_join_request(record: AddressRecord) -> wire.SubmitRequest:
    """What a client sends to join."""
    return wire.build_submit(Join(record.p2p), record)


class Members:
    """Honest members that talk to a handler: each message as the request that a client would send."""

    def __init__(self, handler: CoordinatorHandler, identities: list[Identity] | None = None) -> None:
        self.handler = handler
        self.identities = identities or CLIENTS[:3]
        self.now = handler.now
        self._ids = 1_000

    @property
    def run(self) -> Run:
        """The builders' view of the state, which makes honest witness messages."""
        return Run(self.handler.state, now=self.now)

    @property
    def run_state(self) -> RunState:
        return self.handler.state.run_state

    def ask(self, sender: bytes, body: wire.RequestBody) -> wire.Reply:
        self._ids += 1
        reply = self.handler.handle(self.now, sender, wire.Request(self._ids, body)).reply
        self.handler.journal.flush()
        return reply

    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.handler.tick(self.now)
        self.handler.journal.flush()

    def key(self, member: int) -> bytes:
        return self.handler.state.clients[member].p2p

    def join_all(self) -> None:
        for identity in self.identities:
            self.handler.connected(identity.public)
            self.ask(identity.public, build_join_request(build_record(identity)))

    def get_warmup(self, member: int) -> wire.SubmitRequest:
        return wire.build_submit(WarmupWitness(self.handler.state.progress.epoch, member, self.run.get_start_digest()))

    def get_witness(self, member: int, **overrides: Any) -> wire.SubmitRequest:
        return wire.build_submit(self.run.build_witness(member, **overrides))

    def warm_up(self) -> None:
        """From joined members to the first round."""
        self.wait(self.handler.state.config.waiting_for_members_extra_time)
        assert self.run_state is RunState.WARMUP
        for member in self.run.get_members():
            self.ask(self.key(member), self.get_warmup(member))
        assert self.run_state is RunState.ROUND_TRAIN

    def run_round(self) -> None:
        height = self.handler.state.current.height
        self.wait(1)
        for member in self.run.get_speaking_witnesses():
            if self.handler.state.in_round and self.handler.state.current.height == height:
                self.ask(self.key(member), self.get_witness(member))

    def step(self) -> None:
        """Whatever the run needs next."""
        match self.run_state:
            case RunState.WAITING_FOR_MEMBERS:
                self.join_all()
                self.warm_up()
            case RunState.ROUND_TRAIN | RunState.ROUND_WITNESS:
                self.run_round()
            case RunState.COOLDOWN:
                self.wait(self.handler.state.config.cooldown_time)
            case _:
                raise AssertionError(f"nothing to do in {self.run_state.name}")

    def finish(self) -> Iterator[None]:
        """The whole run, one step at a time."""
        for _ in range(200):
            if self.run_state is RunState.FINISHED:
                return
            self.step()
            yield
        raise AssertionError("the run does not finish")
