"""A client's way into a run on a chain: what is checked before its trainer starts, and the backend that it uses."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.kinds import CHAIN
from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE, format_sol
from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.addresses import get_authorization_address
from psyche.backends.solana.interface.coordinator import ChainRun
from psyche.backends.solana.interface.failures import WalletEmpty
from psyche.backends.solana.joining import find_grantee
from psyche.backends.solana.lookup import find_run
from psyche.backends.solana.member.backend import ChainPlatform, SolanaBackend, open_chain_backend
from psyche.backends.solana.member.following import MinimumSlotFile, check_version
from psyche.backends.solana.rpc.client import Rpc, open_rpc
from psyche.backends.solana.rpc.run_link import open_link
from psyche.backends.solana.rpc.transaction import FeePolicy
from psyche.backends.solana.session import ChainSession
from psyche.backends.waits import describe_wrong_clock
from psyche.core.state.state import Coordinator, RunState
from psyche.durable import make_folder
from psyche.errors import BackendError, ConfigError
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.wire.crypto import Identity
from psyche.wire.nursery import open_plain_nursery

JOIN_SIGNATURES: Final = 8  # wallet and p2p key sign each join, which is renewed while the client waits
EPOCH_SIGNATURES: Final = 3  # the witness of the warm-up, a checkpoint, a withdrawal
TICKS_PER_ROUND: Final = 3  # transitions of a round that somebody has to ask for
TICKERS: Final = 2  # members that ask for one, on average
USUAL_ROUND_S: Final = 3  # for epochs whose length is a time
FLOOR_FILE: Final = "chain-slot"  # in the client's data folder


@dataclass(frozen=True, slots=True)
class Entry:
    """How a wallet gets into a run."""

    wallet: Keypair  # signs and pays
    accounts: ChainRun
    authorization: Pubkey  # lets the wallet in
    notes: tuple[str, ...] = ()  # for the wallet's owner
    programs: str = ""  # who may change the programs, a sentence


async def find_entry(session: ChainSession, run_id: str, authorizer: Pubkey | None) -> Entry:
    """Check that the session's wallet can take part, before the seconds that a trainer takes to start.

    `authorizer`: whose authorization lets it join; None: its own, or everybody's.
    """
    assert session.wallet is not None, "a member has one"
    programs = await session.check_programs()
    found = await find_run(session, run_id)
    state, wallet, grantor = found.state, session.key, found.instance.join_authority
    if state.run_state is RunState.FINISHED:
        return Entry(session.wallet, found.accounts, get_authorization_address(grantor, wallet))
    check_version(state)
    if problems := CHAIN.fit(state.config, state.model, state.bootstrap).problems:
        raise ConfigError(f"run {run_id!r}: {'; '.join(problems)}")
    grantee = await find_grantee(session, grantor, wallet, authorizer)
    if grantee is None:
        raise ConfigError(_explain_refusal(session, run_id, grantor, authorizer))
    funds = await _look_at_wallet(session.rpc, state, wallet)
    if funds.lamports <= funds.reserve:
        raise WalletEmpty(f"on the chain at {session.rpc.endpoints[0].name}, {funds.describe_shortage()}")
    _, chain_unix = await session.rpc.get_clock()
    clock = describe_wrong_clock(time.time(), chain_unix, "the chain")
    notes = tuple(filter(None, (clock, "" if funds.is_enough else funds.describe_shortage())))
    return Entry(session.wallet, found.accounts, get_authorization_address(grantor, grantee), notes, programs)


def _explain_refusal(session: ChainSession, run_id: str, grantor: Pubkey, authorizer: Pubkey | None) -> str:
    wallet = session.key
    grant = session.write_command(f"auth create --authorizer {authorizer or wallet}", signed=grantor == wallet)
    if authorizer is None:
        return (
            f"wallet {wallet} may not join run {run_id!r}: {grantor} must run {grant} with its wallet; if another "
            "wallet lets yours join as its delegate, name that one with --authorizer"
        )
    delegate = session.write_command(
        f"auth delegate --join-authority {grantor} --delegates-added {wallet}", signed=False
    )
    return (
        f"wallet {wallet} may not join run {run_id!r} by the authorization of {authorizer}: {grantor} must authorize "
        f"that wallet ({grant}), and that wallet must name yours as its delegate ({delegate}), each with its own wallet"
    )


@asynccontextmanager
async def open_entered(
    entry: Entry, endpoints: Sequence[Endpoint], fees: FeePolicy, identity: Identity, data_dir: Path, sink: EventSink
) -> AsyncGenerator[SolanaBackend]:
    """Open the backend of a member; its wallet is looked at once per epoch."""
    make_folder(data_dir)
    floor = MinimumSlotFile(data_dir / f"{FLOOR_FILE}-{entry.accounts.account}")
    wallet = entry.wallet.pubkey()
    async with (
        open_rpc(endpoints, sink=sink) as rpc,
        open_link(rpc, entry.accounts, entry.wallet, identity, entry.authorization, fees=fees) as link,
        open_chain_backend(link, sink=sink, platform=ChainPlatform(floor=floor)) as backend,
        open_plain_nursery() as nursery,
    ):
        nursery.start_soon(_watch_wallet, rpc, backend, wallet, sink)
        yield backend
        nursery.cancel_scope.cancel()


def estimate_epoch_lamports(state: Coordinator) -> int:
    """Estimate the lamports that a member pays for an epoch, without priority fees: a fee for each signature."""
    config = state.config
    rounds = config.rounds_per_epoch or config.epoch_time // USUAL_ROUND_S
    ticks = -(-TICKS_PER_ROUND * TICKERS // max(TICKERS, config.min_clients))
    return LAMPORTS_PER_SIGNATURE * (JOIN_SIGNATURES + EPOCH_SIGNATURES + rounds * (1 + ticks))


@dataclass(frozen=True, slots=True)
class Funds:
    """What a wallet has in lamports, what it cannot spend, and about what an epoch costs it."""

    wallet: Pubkey
    lamports: int
    reserve: int  # of every account on the chain: a wallet that would fall below it cannot pay
    epoch: int

    @property
    def is_enough(self) -> bool:
        return self.lamports - self.reserve >= self.epoch

    def describe_shortage(self) -> str:
        return (
            f"wallet {self.wallet} has {format_sol(self.lamports)}; an epoch costs about {format_sol(self.epoch)}, and "
            f"{format_sol(self.reserve)} must stay in it: send it more, or it cannot take part to the end"
        )


async def _look_at_wallet(rpc: Rpc, state: Coordinator, wallet: Pubkey) -> Funds:
    lamports, reserve = await rpc.get_balance(wallet), await rpc.get_deposit(0)
    return Funds(wallet, lamports, reserve, estimate_epoch_lamports(state))


async def _watch_wallet(rpc: Rpc, backend: SolanaBackend, wallet: Pubkey, sink: EventSink) -> None:
    epoch = -1
    async with aclosing(backend.states()) as states:
        async for state in states:
            if state.progress.epoch == epoch:
                continue
            epoch = state.progress.epoch
            with suppress(BackendError):  # the endpoints' trouble is told by those who need them
                funds = await _look_at_wallet(rpc, state, wallet)
                sink.emit(types.WalletBalance(epoch=epoch, lamports=funds.lamports, epoch_lamports=funds.epoch))
                if not funds.is_enough:
                    sink.emit(types.WalletLow(reason=funds.describe_shortage()))
