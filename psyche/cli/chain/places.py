"""Where a client finds its run: on a server or on a chain. Each is checked before a trainer starts, then opened."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from psyche.cli.helpers.chain import ChainOptions, choose_backend
from psyche.cli.helpers.common import parse_hex, run_async

if TYPE_CHECKING:
    from psyche.backends.port import Backend
    from psyche.backends.solana.member.entry import ChainMember, Entry
    from psyche.backends.tcp.dial import ServerAddress
    from psyche.telemetry.sink import EventSink
    from psyche.wire.crypto import Identity

GREETING_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ServerPlace:
    address: "ServerAddress"

    def check(self) -> None:
        """Ask the server whether it has this run. A server that does not answer now is waited for later.

        Raises:
            HandshakeError, RequestRefused: it is not the expected server, or has another run or protocol version.
        """
        import trio

        from psyche.backends.tcp.dial import dial
        from psyche.errors import BackendError, WireError
        from psyche.wire.backend import RequestRefused
        from psyche.wire.key_file import make_identity
        from psyche.wire.line.handshake import HandshakeError

        async def greet() -> None:
            with trio.move_on_after(GREETING_S):
                dialed = await dial(self.address, make_identity())
                await dialed.frames.aclose()

        try:
            run_async(greet)
        except (HandshakeError, RequestRefused):
            raise
        except (BackendError, WireError):
            pass

    @asynccontextmanager
    async def open(
        self,
        identity: "Identity",
        data_dir: Path,  # noqa: ARG002  # a server keeps everything itself
        sink: "EventSink",
    ) -> "AsyncIterator[Backend]":
        from psyche.backends.tcp.backend import open_backend

        async with open_backend(self.address, identity, sink=sink, follows_at_once=False) as backend:
            await backend.reach()
            yield backend


@dataclass(slots=True)
class ChainPlace:
    member: "ChainMember"
    _entry: "Entry | None" = field(default=None, init=False)

    def check(self) -> None:
        self._entry = run_async(self.member.check)
        assert self._entry is not None, "a check raises or finds the way in"
        if self._entry.programs:
            typer.echo(f"note: {self._entry.programs}", err=True)
        for note in self._entry.notes:
            typer.echo(f"warning: {note}", err=True)

    def open(self, identity: "Identity", data_dir: Path, sink: "EventSink") -> "AbstractAsyncContextManager[Backend]":
        assert self._entry is not None, "check first"
        return self.member.open(self._entry, identity, data_dir, sink)


def make_place(
    run_id: str, server_addr: str | None, server_key: str | None, chain: ChainOptions, authorizer: str | None
) -> ServerPlace | ChainPlace:
    address, _ = choose_backend(server_addr, chain.rpc)
    if address is not None:
        from psyche.backends.tcp.dial import parse_server

        key = parse_hex("--server-key", server_key) if server_key else None
        return ServerPlace(parse_server(address, run_id, key))
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.member.entry import ChainMember
    from psyche.backends.solana.rpc.transaction import FeePolicy

    grantee = parse_key(authorizer, "--authorizer") if authorizer else None
    chain.check_program_ids()
    return ChainPlace(
        ChainMember(
            chain.find_endpoints(),
            chain.load_wallet(),
            run_id,
            grantee,
            chain.spelling,
            chain.program_ids,
            fees=FeePolicy(max_lamports=chain.max_priority_lamports),
        )
    )
