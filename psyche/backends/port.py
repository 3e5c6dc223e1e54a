"""The ports of a backend, where a run's record lives: a member's part, an owner's, and the target of both."""

import os
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from psyche.core.state.messages import Message
from psyche.core.state.state import Coordinator
from psyche.telemetry.sink import EventSink
from psyche.wire.address_record import AddressRecord
from psyche.wire.backend import AllowedKeys, AnyMessage, Claim, Members, RunStatus
from psyche.wire.crypto import Identity
from psyche.wire.history import HistoryPoint
from psyche.wire.ports import Proof
from psyche.wire.report import SelfReport

if TYPE_CHECKING:
    from psyche.config.load import LoadedRun  # with pydantic, which few commands need

_Built = TypeVar("_Built")
Build: TypeAlias = Callable[[Coordinator], AnyMessage]  # of a command, from the newest record


class Backend(Protocol):
    """A run's record, as a member reaches it.

    An implementation reconnects and resends by itself; it raises `BackendError` only when it gives up for good. What a
    backend has no place for is an optional part, which is None.
    """

    def states(self) -> AsyncGenerator[Coordinator, None]:
        """Receive states as they change: only the newest, with increasing nonces; each is the caller's own copy.

        On a chain that went back an older one follows.

        Raises:
            BackendError: it gave up for good.
            VersionMismatch: the run's owner wants another version of this program.
        """
        ...

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message; return once it is on record. A repeat that has taken effect counts as success (K3).

        `proof` is what is checked before the message is accepted: a `Join` needs the address record of the joining
        member (M2), a `ReportEquivocation` two signed results (R7); other messages need none.

        Raises:
            CoordinatorError: the rules refuse it.
            BackendError: it gave up for good.
        """
        ...

    @property
    def get_addresses(self) -> Callable[[], Sequence[AddressRecord]] | None:
        """Returns the address records of the run's nodes; None: peers tell each other (N1 to N5)."""
        ...

    @property
    def report(self) -> Callable[[SelfReport], None] | None:
        """Shows the run's owner what this client does (K8); a report may be lost, and the next one replaces it."""
        ...

    @property
    def ask_data_manifest(self) -> Callable[[int], Awaitable[tuple[int, bytes]]] | None:
        """Asks for the data manifest from a byte on; returns its size and the bytes, none if it is not there (D1)."""
        ...

    @property
    def reconnect_soon(self) -> Callable[[], None] | None:
        """Cuts a wait before the next try short: peers are in a later round, so the record is there."""
        ...


class Administration(Protocol):
    """A run's record, as its owner reaches it. Methods raise BackendError if it refuses, or is not reached in time."""

    async def get_status(self) -> RunStatus:
        """Return a summary of the run, for people."""
        ...

    async def get_record(self) -> Coordinator:
        """Return the whole record.

        Raises:
            NotAllowed: this key may neither join the run nor command it.
        """
        ...

    async def get_members(self) -> Members:
        """Return who takes part and what each client says of itself; errors only if an owner asks (K8).

        Raises:
            NotOwner: this key does not command the run, has no place in it and may not join it.
        """
        ...

    async def get_history(self, after_step: int = 0) -> tuple[HistoryPoint, ...]:
        """Return a point for each round with data after a step, at most 2,000; on a chain as witnesses claim it."""
        ...

    async def command(self, message: AnyMessage | Build) -> RunStatus:
        """Carry out a command once, even if it must be sent again; return the status after it.

        A function builds the command from the newest record, in a thread.

        Raises:
            CoordinatorError: the record's rules refuse it.
            ConfigError: this key or wallet does not own the run, or this backend does not have the command.
            NotOwner: this key does not own the run, nor is it the join authority where that is enough (M12).
        """
        ...

    def name_key(self, key: bytes) -> str:
        """Write a key on record as this backend's commands take it."""
        ...


async def build_in_thread(build: Callable[[Coordinator], _Built], record: Coordinator) -> _Built:
    """Build a command in a thread: it may read gigabytes of weights. Ctrl-C does not wait for them."""
    return await trio.to_thread.run_sync(build, record, abandon_on_cancel=True)  # pyright: ignore[reportCallIssue]  # old stubs


class AccessAdministration(Administration, Protocol):
    """An administration that keeps a list of who may join, and what members have earned."""

    async def get_allowed(self) -> AllowedKeys:
        """Return who may join.

        Raises:
            NotOwner: this key is no owner of the run and not its join authority.
        """
        ...

    async def collect(self, signer: bytes | None = None) -> tuple[Claim, ...]:
        """Take the earnings of `signer`, or of everybody, out of the record; return them by key (M11).

        The caller must pay the amounts. Each amount is taken once, even if the command is resent.

        Raises:
            NotOwner: this key is no owner of the run.
            BackendError: the message names the amounts that were requested and may or may not be collected.
        """
        ...


class WalletAdministration(Administration, Protocol):
    """An administration that knows members by their wallets."""

    async def describe_wallet(self, address: str) -> dict[str, Any]:
        """Describe what the run knows of one wallet, as JSON can hold it.

        Raises:
            ConfigError: `address` is no key.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What a person says of where a run is and with which key to reach it; names are those of the options."""

    run_id: str = ""
    server_addr: str | None = None
    server_key: str | None = None
    identity_secret_key_path: Path | None = None  # the key that commands a run on a server
    state_dir: Path | None = None  # of the server, which has such a key too
    timeout: float = 10.0  # seconds to try a server that does not answer
    rpc: str | None = None  # an endpoint of a chain over HTTP, and for subscriptions; _2 and _3 are further ones
    ws_rpc: str | None = None
    rpc_2: str | None = None
    ws_rpc_2: str | None = None
    rpc_3: str | None = None
    ws_rpc_3: str | None = None
    wallet_private_key_path: Path | None = None  # of the wallet that signs and pays on a chain
    program_ids: Path | None = None  # the file of the chain's programs; None: what this version knows
    max_priority_fee: int | None = None  # lamports, for being early; None: the usual
    authorizer: str | None = None  # whose authorization lets the wallet join; None: the wallet's own, or everybody's
    treasurer_index: int | None = None  # checked where it is given


def write_options(options: TargetOptions, names: Iterable[str]) -> list[str]:
    """Write those of these options that were given as a shell reads them; what the environment says is left out."""
    given = {name: getattr(options, name) for name in names}
    return [
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in given.items()
        if value is not None
        and str(value) not in (os.environ.get(name.upper()), os.environ.get(f"PSYCHE_{name.upper()}"))
    ]


class Person(NamedTuple):
    """Who gives a command."""

    say: Callable[[str], None]  # tells progress and warnings
    confirm: Callable[[str, str], None]  # asks before a change, which an infinitive names; raises if not
    sees_waits: bool = False  # a view shows why an answer is late, so it need not be said


class Checked(NamedTuple):
    """What a person should know before a client starts."""

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Fitted(NamedTuple):
    """A run.toml that can run at a target, and the run that both mean."""

    target: "Target"
    file: "LoadedRun"


class Target(Protocol):
    """Where a run is. It opens and checks the run, and writes further commands for it."""

    @property
    def options(self) -> TargetOptions: ...

    @property
    def run_id(self) -> str:
        """The run; empty if it is not named, and there is only one."""
        ...

    @property
    def shows_members(self) -> bool:
        """Whether the run's members may be asked for."""
        ...

    def write_command(self, command: str, *, signed: bool = True) -> str:
        """Write a further command for this run, as a `WriteCommand`."""
        ...

    def fit(self, file: "LoadedRun") -> Fitted:
        """Fit a file of settings to this target; a target of many runs takes the file's run id if it has none.

        Raises:
            ConfigError: it has settings that cannot run there.
        """
        ...

    async def check(self) -> Checked:
        """Check that a client can take part, before the seconds that a trainer takes to start.

        Raises:
            PsycheError: it cannot; the message says what to do.
        """
        ...

    def open_member(self, identity: Identity, data_dir: Path, sink: EventSink) -> AbstractAsyncContextManager[Backend]:
        """Open the run as a member, after `check`."""
        ...

    def open_administration(
        self, person: Person, *, as_anybody: bool = False
    ) -> AbstractAsyncContextManager[Administration]:
        """Open the run as its owner does, or as anybody who only asks.

        Raises:
            ConfigError: the key or wallet that this needs is not there, or no run is named.
        """
        ...

    # Optional parts: None where a backend lacks them.

    @property
    def open_access(self) -> Callable[[Person], AbstractAsyncContextManager[AccessAdministration]] | None:
        """Open the run for its list of who may join, and for what members have earned."""
        ...

    @property
    def open_wallets(self) -> Callable[[Person], AbstractAsyncContextManager[WalletAdministration]] | None:
        """Open the run for what it knows of single wallets."""
        ...
