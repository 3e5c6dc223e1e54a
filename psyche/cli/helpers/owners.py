"""An owner's access to a run's backend, a server or a chain, and the key that commands."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from psyche.cli.helpers.chain import ChainOptions, choose_backend, spell_options
from psyche.cli.helpers.common import parse_hex, run_async

if TYPE_CHECKING:
    from psyche.backends.port import Administration
    from psyche.backends.solana.session import ChainSession
    from psyche.backends.tcp.owner import TcpAdministration
    from psyche.wire.backend import RunStatus
    from psyche.wire.crypto import Identity
    from psyche.wire.messages import AnyMessage

SERVER_KEY_NAME = "server.key"  # in the state folder
OF_SERVER: Final = ("server_addr",)  # options that lead to a run on a server
OF_KEY: Final = ("server_key", "identity_secret_key_path", "state_dir")  # and those that let its owner command it
_Found = TypeVar("_Found")


def say(text: str) -> None:
    typer.echo(text, err=True)


@dataclass(frozen=True)
class Owner:
    """The owner's options: which run to command, at which backend, and with which key.

    A run is on a server (`server_addr`) or on a chain; what is for the other backend has no effect.
    """

    server_addr: str | None
    server_key: str | None
    identity_secret_key_path: Path | None
    state_dir: Path | None
    timeout_s: float
    run_id: str = ""
    chain: ChainOptions = field(default_factory=ChainOptions)
    treasurer_index: int | None = None
    yes: bool = False

    @property
    def is_on_chain(self) -> bool:
        return choose_backend(self.server_addr, self.chain.rpc)[0] is None

    @property
    def has_key(self) -> bool:
        return self.is_on_chain or self._has_file

    @property
    def _has_file(self) -> bool:
        return self.state_dir is not None or self.identity_secret_key_path is not None

    def _open_server(self, *, as_anybody: bool) -> "TcpAdministration":
        from psyche.backends.tcp.dial import parse_server
        from psyche.backends.tcp.owner import TcpAdministration
        from psyche.wire.key_file import make_identity

        is_stranger = as_anybody and not self._has_file
        identity = (
            make_identity()
            if is_stranger
            else load_server_identity(self.state_dir, self.identity_secret_key_path, create=False)
        )
        key = find_server_key(self.server_key, self.state_dir)
        if key is None and not is_stranger:  # K6
            say(
                "warning: the server's identity cannot be checked: name the server's key with "
                "--server-key HEX (`psyche server run` prints it)"
            )
        return TcpAdministration(parse_server(self.server_addr or "", self.run_id, key), identity, self.timeout_s, say)

    def run(self, function: "Callable[[Administration], Awaitable[_Found]]", *, as_anybody: bool = False) -> _Found:
        from psyche.cli.helpers.refusals import call_in_words

        if not self.is_on_chain:
            return run_async(call_in_words, function, self._open_server(as_anybody=as_anybody), self.spell)
        from psyche.cli.chain.session import call_at_chain, get_administration

        async def ask(session: "ChainSession") -> _Found:
            backend = await get_administration(session, self.run_id, self.treasurer_index)
            return await call_in_words(function, backend, self.spell)

        return call_at_chain(ask, self.chain, yes=self.yes, reads=as_anybody)

    def run_at_server(self, function: "Callable[[TcpAdministration], Awaitable[_Found]]", instead: str) -> _Found:
        from psyche.cli.helpers.refusals import call_in_words
        from psyche.errors import ConfigError

        if self.is_on_chain:
            raise ConfigError(f"this command is for a run on a server; on a chain use {instead}")
        return run_async(call_in_words, function, self._open_server(as_anybody=False), self.spell)

    def spell(self, command: str, *, signed: bool = True) -> str:
        if self.is_on_chain:
            return f"`{self.chain.spelling.spell(command, self.run_id, signed=signed)}`"
        keys = (*OF_SERVER, *OF_KEY) if signed else OF_SERVER
        words = spell_options({name: getattr(self, name) for name in keys})
        return f"`{' '.join((f'psyche {command}', *words.values()))}`"

    def command(self, message: "AnyMessage") -> "RunStatus":
        return self.run(lambda backend: backend.command(message))


def find_server_key(server_key: str | None, state_dir: Path | None) -> bytes | None:
    """Return the server's public key from --server-key or the state folder; None if neither has it."""
    from psyche.errors import ConfigError
    from psyche.wire.key_file import read_key_file

    named = parse_hex("--server-key", server_key) if server_key else None
    file = state_dir / SERVER_KEY_NAME if state_dir else None
    if file is None or not file.exists():
        return named
    found = read_key_file(file).public
    if named not in (None, found):
        raise ConfigError(f"--server-key {server_key} is not the key of {file}: name one of the two servers")
    return found


def load_server_identity(folder: Path | None, path: Path | None, *, create: bool) -> "Identity":
    """Load the named key, or that of a server's state folder."""
    from psyche.errors import ConfigError
    from psyche.wire.key_file import make_identity, read_key_file, write_key_file

    if path is None and folder is None:
        raise ConfigError(
            "name the owner's key: --state-dir FOLDER (the server's state folder), or --identity-secret-key-path FILE"
        )
    key = path or (folder or Path()) / SERVER_KEY_NAME
    if path is None and not key.exists():
        if not create:
            raise ConfigError(
                f"no key {key}: --state-dir must be the state folder of the server, which has its key; where the "
                "key is elsewhere, and on another machine, name an owner's key with --identity-secret-key-path FILE "
                "(`server run --owner` admits others)"
            )
        write_key_file(key, make_identity())
    return read_key_file(key)
