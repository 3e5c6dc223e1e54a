"""The local chain of a testnet: wallets with lamports, and a run that its owner creates, opens and starts there."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from psyche import __version__
from psyche.errors import BackendError, PsycheError
from psyche.localchain.validator import Validator
from psyche.telemetry.text import format_number
from psyche.testnet.settings import Layout, TestnetSettings

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche.backends.solana.rpc.client import Rpc
    from psyche.backends.solana.session import ChainSession
    from psyche.backends.solana.wallet import Wallet
    from psyche.config.load import LoadedRun

HOST: Final = "127.0.0.1"
LAMPORTS: Final = 10 * 10**9  # of each client; a round costs about 0.00001 SOL
READY_S: Final = 180.0  # a real validator's first start takes some seconds, on a loaded machine many
POLL_S: Final = 0.1


def get_rpc_url(port: int) -> str:
    """The address of the chain's calls; its subscriptions are at the next port."""
    return f"http://{HOST}:{port}"


def make_wallets(layout: Layout, settings: TestnetSettings) -> None:
    """Make a wallet for the run's owner and one for each client."""
    from psyche.backends.solana.wallet import Wallet, write_wallet

    for path in (layout.owner_wallet, *(layout.wallet(number + 1) for number in range(settings.num_clients))):
        write_wallet(path, Wallet())


async def found_run(
    run: "LoadedRun", layout: Layout, settings: TestnetSettings, port: int, say: Callable[[str], None]
) -> None:
    """Fund the clients, create the run, let their wallets join, or everybody, and start it, as its owner does.

    Raises:
        PsycheError: the chain does not answer, or refuses.
    """
    from psyche.backends.solana.cluster import parse_endpoint
    from psyche.backends.solana.owner.faucet import request_lamports
    from psyche.backends.solana.rpc.client import open_rpc
    from psyche.backends.solana.session import ChainSession
    from psyche.backends.solana.wallet import read_wallet

    clients = [read_wallet(layout.wallet(number + 1)) for number in range(settings.num_clients)]
    async with open_rpc([parse_endpoint(get_rpc_url(port))]) as rpc:
        session = ChainSession(rpc, read_wallet(layout.owner_wallet), lambda _quote: None)
        await _until_ready(rpc, session.key)
        for wallet in clients:
            await request_lamports(rpc, wallet.pubkey(), LAMPORTS)
        await _create(session, run, [] if run.access.is_open else clients)
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


async def _create(session: "ChainSession", run: "LoadedRun", clients: "list[Wallet]") -> None:
    """Create the run, let these clients join, or everybody where there are none, and start it."""
    from psyche.backends.solana.interface.addresses import EVERYBODY
    from psyche.backends.solana.joining import plan_grant
    from psyche.backends.solana.owner.administration import SolanaAdministration
    from psyche.backends.solana.owner.creation import Founding, plan_create
    from psyche.core.state.messages import Resume
    from psyche.server.run import find_first_weights

    digest, _ = find_first_weights(run.model, run.model_folder)
    await session.carry_out(await plan_create(session, Founding(run.run_id, run, __version__, first_weights=digest)))
    for key in [wallet.pubkey() for wallet in clients] or [EVERYBODY]:
        await session.carry_out(await plan_grant(session, key))
    await SolanaAdministration(session, run.run_id).command(Resume())


def get_chain_argv(layout: Layout, port: int, settings: TestnetSettings) -> list[str]:
    """`psyche dev validator` for this testnet; it funds the owner's wallet once it is ready."""
    argv = [sys.executable, "-m", "psyche", "dev", "validator", "--validator", settings.validator]
    argv += ["--port", str(port), "--slot-ms", str(settings.slot_ms), "--wallet", str(layout.owner_wallet)]
    is_recorded = settings.keep and settings.validator is Validator.embedded
    return [*argv, "--record", str(layout.chain_record)] if is_recorded else argv


def get_bootstrap_address(port: int, key: bytes) -> str:
    """Where a client of this machine is found, for the run's record."""
    return f"/ip4/{HOST}/tcp/{port}/p2p/{key.hex()}"


def find_client_options(layout: Layout, port: int, p2p_port: int, number: int) -> list[str]:
    """What tells client `number` its backend and wallet. Its p2p port is fixed, since the record may name it."""
    wallet: Path = layout.wallet(number)
    options = ["--rpc", get_rpc_url(port), "--wallet-private-key-path", str(wallet)]
    return [*options, "--bind-p2p-port", str(p2p_port)]
