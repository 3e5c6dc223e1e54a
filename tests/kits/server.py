"""Shared by the server's tests: keys, a disk in memory, and honest members that send real requests."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kits.runs import Run, get_equal_keys
from psyche.config.load import LoadedRun
from psyche.core.committee.seeds import Entropy
from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import Join, Message, WarmupWitness, WitnessMessage
from psyche.core.state.state import ZERO32, Config, Coordinator, Metadata, Model, RunState
from psyche.server.access import AccessChanges, AllowList
from psyche.server.handler import CoordinatorHandler
from psyche.server.journal.journal import Journal, JournalDisk
from psyche.server.journal.recovery import OpenRun, create_journal, recover
from psyche.telemetry.sink import EventSink
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_identity, build_model, build_state
from psyche.wire import backend as wire
from psyche.wire.access import OPEN, Access
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.backend import AnyMessage
from psyche.wire.crypto import Identity

SERVER, OWNER = build_identity("server"), build_identity("owner")
CLIENTS = [build_identity(number) for number in range(8)]
RUN_OF_THREE: Final = {"init_min_clients": 3, "min_clients": 2, "total_steps": 5}  # it continues with two


class MemoryDisk:
    """A disk whose contents a test can copy, tear and break; `broken` makes every write fail."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.syncs = 0
        self.broken = False
        self.errno = errno.EIO

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        return self.files[name]

    def append(self, name: str, data: bytes) -> None:
        self.replace(name, self.files.get(name, b"") + data)

    def replace(self, name: str, data: bytes) -> None:
        if self.broken:
            raise OSError(self.errno, os.strerror(self.errno))
        self.files[name] = data
        self.syncs += 1

    def truncate(self, name: str, size_bytes: int) -> None:
        self.files[name] = self.files[name][:size_bytes]

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def close(self) -> None: ...


@dataclass(frozen=True)
class RunFile(LoadedRun):
    """A run's configuration without a file."""

    run_id: str = "test-run"
    config: Config = field(default_factory=lambda: build_config(**RUN_OF_THREE))
    model: Model = field(default_factory=build_model)
    metadata: Metadata = field(default_factory=lambda: Metadata(name="test"))
    path: Path = Path("/run.toml")
    warnings: tuple[str, ...] = ()

    def build_state(self) -> Coordinator:
        return build_state(self.config, self.model, run_id=self.run_id)


def build_file(**config: Any) -> RunFile:
    """A run of three; keywords override its configuration."""
    return RunFile(config=build_config(**(RUN_OF_THREE | config)))


def build_entropy() -> Callable[[], bytes]:
    """Entropy that is the same in every test run."""
    numbers = iter(range(1 << 60))
    return lambda: build_hash("entropy", next(numbers))


def build_handler(
    state: Coordinator | None = None,
    disk: MemoryDisk | None = None,
    journal: Journal | None = None,
    access: Access = OPEN,
    access_list: AllowList | None = None,
    **options: Any,
) -> CoordinatorHandler:
    state = state or RunFile().build_state()
    journal = journal or create_journal(disk or MemoryDisk(), START_UNIX, encode_state(state))
    settings = {"now": START_UNIX, "owners": frozenset({OWNER.public}), "entropy": build_entropy(), "program": "test"}
    settings["access"] = access_list or AllowList(access, AccessChanges(), OWNER.public)
    return CoordinatorHandler(state, journal, **(settings | options))


def build_record(identity: Identity, port: int = 4001, expires_unix: int = START_UNIX + 100_000) -> AddressRecord:
    return sign_address_record(identity, [f"/ip4/127.0.0.1/tcp/{port}"], expires_unix)


def build_join_request(record: AddressRecord) -> wire.SubmitRequest:
    return wire.build_submit(Join(record.p2p), record)


def recover_run(disk: JournalDisk, *, accept_loss: bool = False) -> OpenRun:
    """The run that is on the disk."""
    found = recover(disk, accept_loss=accept_loss)
    assert found is not None
    return found


def build_restarted(disk: MemoryDisk, access: Access = OPEN, sink: EventSink | None = None) -> CoordinatorHandler:
    """The handler of a server that comes back with what is on the disk."""
    found = recover_run(disk)
    allowed = AllowList(access, found.access, OWNER.public)
    return build_handler(
        found.state, journal=found.journal, now=found.now, op_ids=found.op_ids, sink=sink, access_list=allowed
    )


class Members(Run):
    """Honest members that talk to a handler: each message goes as a client's request.

    A refusal is a reply, not an exception: use `ask` to look at the reply.
    """

    def __init__(self, handler: CoordinatorHandler, identities: list[Identity] | None = None) -> None:
        self.identities = identities or CLIENTS[:3]
        super().__init__(handler.state, now=handler.now, keys=lambda number: get_equal_keys(self.identities, number))
        self.handler = handler
        self._ids = 1_000

    @property
    def run_state(self) -> RunState:
        return self.handler.state.run_state

    def ask(self, sender: bytes, body: wire.RequestBody) -> wire.Reply:
        self._ids += 1
        reply = self.handler.handle(self.now, sender, wire.Request(self._ids, body)).reply
        self._take_state()
        return reply

    def command(self, message: AnyMessage, op_id: bytes = bytes(range(16)), key: bytes = OWNER.public) -> wire.Reply:
        """Send an owner's command."""
        return self.ask(key, wire.build_submit(message, op_id=op_id))

    def submit(self, sender: bytes, message: AnyMessage) -> wire.Reply:
        return self.ask(sender, wire.build_submit(message))

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        """Send the message as a request; return whether anything changed."""
        identity = next(i for i in self.identities if i.public == sender)
        nonce = self.state.nonce
        self.ask(sender, wire.build_submit(message, build_record(identity) if isinstance(message, Join) else None))
        return self.state.nonce != nonce

    def tick(self, entropy: Entropy | str = "drawn") -> bool:
        """Tick the handler, which draws its own entropy."""
        nonce = self.state.nonce
        self.handler.tick(self.now)
        self._take_state()
        return self.state.nonce != nonce

    def settle(self) -> int:
        return int(self.tick())

    def _take_state(self) -> None:
        self.handler.journal.flush()
        self.state = self.handler.state  # after a defect it is another object

    def send(self, message: WitnessMessage) -> None:
        """Send a report, unless the round is already over."""
        if self.state.in_round and self.state.current.height == message.height:
            super().send(message)

    def key(self, member: int) -> bytes:
        return self.handler.state.clients[member].p2p

    def join_all(self) -> None:
        for identity in self.identities:
            self.handler.connected(identity.public)
        self.join(*range(len(self.identities)))

    def get_warmup(self, member: int) -> wire.SubmitRequest:
        return wire.build_submit(WarmupWitness(self.state.progress.epoch, member, self.get_start_digest()))

    def get_witness(self, member: int, **overrides: Any) -> wire.SubmitRequest:
        return wire.build_submit(self.build_witness(member, **overrides))

    def step(self) -> None:
        """Do what the run needs next."""
        match self.run_state:
            case RunState.WAITING_FOR_MEMBERS:
                self.join_all()
                self.warm_up()
            case RunState.ROUND_TRAIN | RunState.ROUND_WITNESS:
                self.run_round()
            case RunState.COOLDOWN:
                self.wait(self.state.config.cooldown_time)
            case _:
                raise AssertionError(f"nothing to do in {self.run_state.name}")

    def finish(self) -> Iterator[None]:
        """Run to the end, one step at a time."""
        for _ in range(200):
            if self.run_state is RunState.FINISHED:
                return
            self.step()
            yield
        raise AssertionError("the run does not finish")
