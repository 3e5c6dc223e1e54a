"""An owner's access to a run's home: the server's address and key, and the key that commands."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from psyche.cli.helpers.common import parse_hex, run_async

if TYPE_CHECKING:
    from psyche.backends.tcp.owner import TcpHome
    from psyche.wire.backend import RunStatus
    from psyche.wire.crypto import Identity
    from psyche.wire.messages import AnyMessage

SERVER_KEY_NAME = "server.key"  # in the state folder
_Found = TypeVar("_Found")


def say(text: str) -> None:
    """Print a progress message on stderr."""
    typer.echo(text, err=True)


@dataclass(frozen=True)
class Owner:
    """The owner's options: which server to command, and with which key."""

    server_addr: str
    server_key: str | None
    identity_secret_key_path: Path | None
    state_dir: Path | None
    timeout_s: float

    @property
    def has_key(self) -> bool:
        """Whether the options name a key that may be an owner's."""
        return self.state_dir is not None or self.identity_secret_key_path is not None

    def open(self, *, as_anybody: bool = False) -> "TcpHome":
        """Open the home of the run; `as_anybody` asks with a fresh key where no other is named.

        Raises:
            ConfigError: no key is named, its file is missing, or two options name different servers.
            BackendError: the address is malformed.
        """
        from psyche.backends.tcp.dial import parse_server
        from psyche.backends.tcp.owner import TcpHome
        from psyche.wire.key_file import make_identity

        is_stranger = as_anybody and not self.has_key
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
        return TcpHome(parse_server(self.server_addr, key=key), identity, self.timeout_s, say)

    def run(self, function: "Callable[[TcpHome], Awaitable[_Found]]") -> _Found:
        """Call an async function with the run's home; return its result.

        Raises:
            BackendError: the home refuses, or could not be reached in time; the message says what to do.
        """
        from psyche.cli.helpers.refusals import call_in_words

        return run_async(call_in_words, function, self.open())

    def command(self, message: "AnyMessage") -> "RunStatus":
        """Send a command to the run; return the status after it."""
        return self.run(lambda home: home.command(message))


def find_server_key(server_key: str | None, state_dir: Path | None) -> bytes | None:
    """Return the server's public key from --server-key or the state folder; None if neither has it.

    Raises:
        ConfigError: the two name different servers, or one cannot be read.
    """
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
    """Load the named key, or that of a server's state folder.

    Raises:
        ConfigError: neither is named, or the key file is missing.
    """
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
