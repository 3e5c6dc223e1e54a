"""A run on a TCP server, as a target."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from psyche.backends.kinds import SERVER
from psyche.backends.port import Backend, Checked, Fitted, Person, TargetOptions, write_options
from psyche.backends.tcp.backend import open_backend
from psyche.backends.tcp.dial import ServerAddress, dial, parse_server
from psyche.backends.tcp.owner import TcpAdministration
from psyche.errors import BackendError, ConfigError, HandshakeError, WireError
from psyche.telemetry.sink import EventSink
from psyche.wire.backend import RequestRefused
from psyche.wire.crypto import Identity, parse_hex
from psyche.wire.key_file import make_identity, read_key_file, write_key_file

if TYPE_CHECKING:
    from psyche.config.load import LoadedRun

GREETING_S: Final = 3.0
SERVER_KEY_NAME: Final = "server.key"  # in the state folder
_PLACE: Final = ("server_addr",)  # options that lead to a run on a server
_KEY: Final = ("server_key", "identity_secret_key_path", "state_dir")  # and those that let its owner command it


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A run on a server; it is looked for only once it is opened."""

    options: TargetOptions

    @property
    def run_id(self) -> str:
        return self.options.run_id

    @property
    def shows_members(self) -> bool:
        return self.options.state_dir is not None or self.options.identity_secret_key_path is not None

    @property
    def open_access(self) -> "Callable[[Person], AbstractAsyncContextManager[TcpAdministration]]":
        return self.open_administration

    @property
    def open_wallets(self) -> None:
        return None

    def write_command(self, command: str, *, signed: bool = True) -> str:
        words = write_options(self.options, (*_PLACE, *_KEY) if signed else _PLACE)
        return f"`{' '.join((f'psyche {command}', *words))}`"

    def fit(self, file: "LoadedRun") -> Fitted:
        return Fitted(self, SERVER.fit_file(file))

    def _find_address(self) -> ServerAddress:
        key = find_server_key(self.options.server_key, self.options.state_dir)
        return parse_server(self.options.server_addr or "", self.options.run_id, key)

    async def check(self) -> Checked:
        """Ask the server whether it has this run. A server that does not answer now is waited for later."""
        address = self._find_address()
        try:
            with trio.move_on_after(GREETING_S):
                await (await dial(address, make_identity())).frames.aclose()
        except (HandshakeError, RequestRefused):
            raise
        except (BackendError, WireError):
            pass
        return Checked()

    @asynccontextmanager
    async def open_member(self, identity: Identity, data_dir: Path, sink: EventSink) -> AsyncGenerator[Backend]:
        """Look for the server until it answers; then connect to it again and again."""
        del data_dir  # a server keeps everything itself
        async with open_backend(self._find_address(), identity, sink=sink, follows_at_once=False) as backend:
            await backend.reach()
            yield backend

    @asynccontextmanager
    async def open_administration(
        self, person: Person, *, as_anybody: bool = False
    ) -> AsyncGenerator[TcpAdministration]:
        """Ask with the owner's key; `as_anybody` takes a fresh one where none is named."""
        options, address = self.options, self._find_address()
        say_wait = (lambda _text: None) if person.sees_waits else person.say
        if as_anybody and not self.shows_members:
            yield TcpAdministration(address, make_identity(), options.timeout, say_wait)
            return
        identity = load_server_identity(options.state_dir, options.identity_secret_key_path, create=False)
        if address.key is None:  # K6
            person.say(
                "warning: the server's identity cannot be checked: name the server's key with "
                "--server-key HEX (`psyche server run` prints it)"
            )
        yield TcpAdministration(address, identity, options.timeout, say_wait)


def find_server_key(server_key: str | None, state_dir: Path | None) -> bytes | None:
    """Return the server's public key from --server-key or the state folder; None if neither has it."""
    named = parse_hex("--server-key", server_key) if server_key else None
    file = state_dir / SERVER_KEY_NAME if state_dir else None
    if file is None or not file.exists():
        return named
    found = read_key_file(file).public
    if named not in (None, found):
        raise ConfigError(f"--server-key {server_key} is not the key of {file}: name one of the two servers")
    return found


def load_server_identity(folder: Path | None, path: Path | None, *, create: bool) -> Identity:
    """Load the named key, or that of a server's state folder, which `create` makes if it is missing."""
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
