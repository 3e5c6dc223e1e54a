"""What keeps a testnet's run: a server, or a local chain. Nothing else of a testnet asks which one it is."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import trio

from psyche import __version__
from psyche.backends.kinds import CHAIN, SERVER, BackendTraits
from psyche.config.load import LoadedRun
from psyche.errors import BackendError, ConfigError, PsycheError
from psyche.localchain.validator import Validator
from psyche.storage.port import StorageOptions
from psyche.telemetry.text import format_number
from psyche.testnet.free_port import choose_port
from psyche.testnet.process import PSYCHE
from psyche.testnet.settings import Layout, TestnetSettings

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche.backends.solana.rpc.client import Rpc
    from psyche.backends.solana.session import ChainSession
    from psyche.backends.solana.wallet import Wallet

HOST: Final = "127.0.0.1"
LAMPORTS: Final = 10 * 10**9  # of each client; a round costs about 0.00001 SOL
READY_S: Final = 180.0  # a real validator's first start takes some seconds, on a loaded machine many
POLL_S: Final = 0.1
KNOWN_CLIENTS: Final = 2  # that the record of a run on a chain names; the others are learned from them
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    layout: Layout
    run: LoadedRun
    server_port: int  # of the server, or of the chain
    data_config: Path | None
    held_out: Path | None
    client_keys: tuple[bytes, ...]  # the only keys that may join
    p2p_ports: tuple[int, ...] = ()  # of clients whose addresses the record names


class LocalBackend(ABC):
    """The backend of a testnet: `name` is that of its process, `title` says in a sentence what it is."""

    traits: ClassVar[BackendTraits]
    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, settings: TestnetSettings) -> None:
        self._settings = settings

    @abstractmethod
    def check_validator(self) -> None:
        """Check that it can have the validator that the settings name.

        Raises:
            ConfigError: it has none, or its program is not on this machine.
        """

    def prepare(self, run: LoadedRun, keys: Sequence[bytes], layout: Layout) -> tuple[LoadedRun, tuple[int, ...]]:
        """Make what it needs beside the run's files; return the run for its record, and the clients' p2p ports."""
        del keys, layout
        return run, ()

    @abstractmethod
    def get_argv(self, prepared: Prepared) -> list[str]: ...
    @abstractmethod
    def get_client_options(self, prepared: Prepared, number: int) -> list[str]: ...
    @abstractmethod
    def get_owner_options(self, prepared: Prepared) -> list[str]: ...

    async def create_run(self, prepared: Prepared, say: Say) -> None:
        """Once its process runs: put the run on record, let the clients in, and start it.

        Raises:
            PsycheError: it does not answer, or refuses.
        """
        del prepared, say
        await trio.lowlevel.checkpoint()


class ServerBackend(LocalBackend):
    """`psyche server run`, which creates the run and lets the clients in by itself."""

    traits, name, title = SERVER, "server", "the server"

    def check_validator(self) -> None:
        if self._settings.validator is Validator.real:
            raise ConfigError("--validator real: needs --backend solana; a server needs no chain")

    def get_argv(self, prepared: Prepared) -> list[str]:
        layout, settings = prepared.layout, self._settings
        argv = [*PSYCHE, "server", "run", "--state", str(prepared.run.path)]
        argv += ["--server-port", str(prepared.server_port), "--bind-ip", HOST, "--state-dir", str(layout.server)]
        argv += ["--events-dir", str(layout.events), "--log", settings.log]
        for key in prepared.client_keys:
            argv += ["--allow", key.hex()]
        if prepared.data_config is not None:
            argv += ["--data-config", str(prepared.data_config)]
        if settings.write_log:
            argv += ["--write-log", str(layout.logs / "server.jsonl")]
        return argv

    def get_client_options(self, prepared: Prepared, number: int) -> list[str]:
        del number
        return ["--server-addr", f"{HOST}:{prepared.server_port}"]

    def get_owner_options(self, prepared: Prepared) -> list[str]:
        return ["--server-addr", f"{HOST}:{prepared.server_port}", "--state-dir", str(prepared.layout.server)]


class ChainBackend(LocalBackend):
    """`psyche dev validator`: wallets with lamports, and a run that its owner creates, opens and starts there."""

    traits, name, title = CHAIN, "chain", "a local chain"

    def check_validator(self) -> None:
        if self._settings.validator is Validator.real:
            from psyche.localchain.real import find_tool

            find_tool()

    def prepare(self, run: LoadedRun, keys: Sequence[bytes], layout: Layout) -> tuple[LoadedRun, tuple[int, ...]]:
        from psyche.backends.solana.wallet import Wallet, write_wallet

        for path in (layout.owner_wallet, *(layout.wallet(number + 1) for number in range(len(keys)))):
            write_wallet(path, Wallet())
        ports = tuple(choose_port() for _ in keys)  # fixed, since the record names some: a chain has no address book
        known = tuple(get_bootstrap_address(port, key) for port, key in zip(ports, keys, strict=True))
        return replace(run, bootstrap=run.bootstrap or known[:KNOWN_CLIENTS]), ports

    def get_argv(self, prepared: Prepared) -> list[str]:
        """It funds the owner's wallet once it is ready."""
        layout, settings = prepared.layout, self._settings
        argv = [*PSYCHE, "dev", "validator", "--validator", settings.validator]
        argv += ["--port", str(prepared.server_port), "--slot-ms", str(settings.slot_ms)]
        argv += ["--wallet", str(layout.owner_wallet)]
        is_recorded = settings.keep and settings.validator is Validator.embedded
        return [*argv, "--record", str(layout.chain_record)] if is_recorded else argv

    def get_client_options(self, prepared: Prepared, number: int) -> list[str]:
        wallet, port = prepared.layout.wallet(number), prepared.p2p_ports[number - 1]
        options = ["--rpc", get_rpc_url(prepared.server_port), "--wallet-private-key-path", str(wallet)]
        return [*options, "--bind-p2p-port", str(port)]

    def get_owner_options(self, prepared: Prepared) -> list[str]:
        options = ["--run-id", prepared.run.run_id, "--rpc", get_rpc_url(prepared.server_port)]
        return [*options, "--wallet-private-key-path", str(prepared.layout.owner_wallet), "--yes"]

    async def create_run(self, prepared: Prepared, say: Say) -> None:
        from psyche.backends.solana.cluster import parse_endpoint
        from psyche.backends.solana.owner.funds import request_lamports
        from psyche.backends.solana.rpc.client import open_rpc
        from psyche.backends.solana.session import ChainSession
        from psyche.backends.solana.wallet import read_wallet

        layout, run = prepared.layout, prepared.run
        clients = [read_wallet(layout.wallet(number + 1)) for number in range(self._settings.num_clients)]
        async with open_rpc([parse_endpoint(get_rpc_url(prepared.server_port))]) as rpc:
            session = ChainSession(rpc, read_wallet(layout.owner_wallet), lambda _quote: None)
            await _until_ready(rpc, session.key)
            for wallet in clients:
                await request_lamports(rpc, wallet.pubkey(), LAMPORTS)
            await _create(session, run, [] if run.access.is_open else clients, self._settings.storage)
        who = "everybody" if run.access.is_open else format_number(len(clients), "wallet")
        say(f"run {run.run_id!r} is on the chain, and {who} may join it")


async def _until_ready(rpc: "Rpc", owner: "Pubkey") -> None:
    """A validator funds the owner's wallet last: when it answers calls, and has the programs."""
    with trio.move_on_after(READY_S):
        while True:
            with contextlib.suppress(BackendError):
                if await rpc.get_balance(owner):
                    return
            await trio.sleep(POLL_S)
    raise PsycheError(f"the local chain was not ready within {READY_S:.0f} s")


async def _create(session: "ChainSession", run: LoadedRun, clients: "list[Wallet]", storage: StorageOptions) -> None:
    from psyche.backends.solana.interface.addresses import EVERYBODY
    from psyche.backends.solana.joining import plan_grant
    from psyche.backends.solana.owner.administration import SolanaAdministration
    from psyche.backends.solana.owner.creation import Creation, plan_create
    from psyche.core.state.messages import Resume
    from psyche.server.run import read_first_model

    first = await trio.to_thread.run_sync(read_first_model, run.model, run.model_folder, storage)
    file = CHAIN.fit_file(replace(run, model=replace(run.model, checkpoint=first.source)))
    new = Creation(run.run_id, file, __version__, first_weights=first.digest)
    await session.carry_out(await plan_create(session, new))
    for key in [wallet.pubkey() for wallet in clients] or [EVERYBODY]:
        await session.carry_out(await plan_grant(session, key))
    await SolanaAdministration(session, run.run_id).command(Resume())


def get_rpc_url(port: int) -> str:
    """The address of the chain's calls; its subscriptions are at the next port."""
    return f"http://{HOST}:{port}"


def get_bootstrap_address(port: int, key: bytes) -> str:
    return f"/ip4/{HOST}/tcp/{port}/p2p/{key.hex()}"


_CLASSES: Final = {one.traits.kind: one for one in (ServerBackend, ChainBackend)}


def build_backend(settings: TestnetSettings) -> LocalBackend:
    return _CLASSES[settings.backend](settings)
