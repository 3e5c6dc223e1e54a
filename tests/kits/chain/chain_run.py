"""A run on a local chain, over real sockets: created, opened to everybody and resumed by its owner."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.addresses import EVERYBODY, get_authorization_address
from psyche.backends.solana.interface.authorizer import build_authorization_create, build_authorization_grantor_update
from psyche.backends.solana.interface.coordinator import Authorities, ChainRun, build_init, build_owner_message
from psyche.backends.solana.member.backend import SolanaBackend, open_chain_backend
from psyche.backends.solana.rpc.client import Rpc, open_rpc
from psyche.backends.solana.rpc.run_link import open_link
from psyche.backends.solana.rpc.sender import TransactionSender
from psyche.core.encoding.account import decode_state
from psyche.core.state import messages as msg
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import Config, Coordinator, Model, Progress
from psyche.localchain.chain import LocalChain, open_local_chain
from psyche.telemetry.sink import EventSink
from psyche.testing.builders import build_config, build_model
from psyche.wire.crypto import Identity
from psyche.wire.key_file import make_identity

SOL = 10**9


class Member(NamedTuple):
    backend: SolanaBackend
    wallet: Pubkey
    identity: Identity


@dataclass(frozen=True, slots=True)
class ChainRunKit:
    """The run, its owner and the chain itself."""

    chain: LocalChain
    rpc: Rpc
    owner: Keypair
    run: ChainRun

    @property
    def authorization(self):  # noqa: ANN201 - solders' Pubkey
        return get_authorization_address(self.owner.pubkey(), EVERYBODY)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.chain.http, self.chain.ws)

    def fund(self, lamports: int = SOL) -> Keypair:
        """A new wallet."""
        key = Keypair()
        self.chain.bank.airdrop(key.pubkey(), lamports)
        return key

    @asynccontextmanager
    async def open_member(
        self, *endpoints: Endpoint, sink: EventSink | None = None, wallet: Keypair | None = None,
        identity: Identity | None = None,
    ) -> AsyncGenerator[Member]:  # fmt: skip
        """A member's process, over these endpoints or over the run's own client."""
        wallet, identity = wallet or self.fund(), identity or make_identity()
        async with AsyncExitStack() as stack:
            rpc = await stack.enter_async_context(open_rpc(endpoints, sink=sink)) if endpoints else self.rpc
            link = await stack.enter_async_context(open_link(rpc, self.run, wallet, identity, self.authorization))
            opening = open_chain_backend(link, bytes(wallet.pubkey()), identity.public, sink=sink)
            yield Member(await stack.enter_async_context(opening), wallet.pubkey(), identity)

    def read(self) -> Coordinator:
        """The record, as the chain has it now."""
        account = self.chain.bank.get_account(self.run.account)
        assert account is not None
        return decode_state(bytes(account.data))


@asynccontextmanager
async def open_chain_run(*, slot_ms: float = 50, config: Config | None = None) -> AsyncGenerator[ChainRunKit]:
    """Open a chain with one run that waits for members."""
    async with open_local_chain(slot_ms=slot_ms) as chain, create_run(chain, config) as kit:
        yield kit


@asynccontextmanager
async def create_run(
    chain: LocalChain, config: Config | None = None, model: Model | None = None
) -> AsyncGenerator[ChainRunKit]:
    """Create a run on a chain that is there."""
    async with open_rpc([Endpoint(chain.http, chain.ws)]) as rpc:
        owner, account = Keypair(), Keypair()
        chain.bank.airdrop(owner.pubkey(), 100 * SOL)
        kit = ChainRunKit(chain, rpc, owner, ChainRun.find("run", account.pubkey()))
        sender, key = TransactionSender(rpc, owner), owner.pubkey()
        deposit = await rpc.get_deposit(STATE_BYTES)
        init = build_init(key, "run", account.pubkey(), Authorities(key, key), "", deposit)
        await sender.send(init, [account])
        await sender.send(
            [
                build_authorization_create(key, key, EVERYBODY),
                build_authorization_grantor_update(key, kit.authorization, active=True),
            ]
        )
        config = config or build_config(min_clients=2)
        change = msg.Update(config, model or build_model(), Progress(0, 1, 0))
        await sender.send([build_owner_message(kit.run, key, change), build_owner_message(kit.run, key, msg.Resume())])
        yield kit
