"""A run on a local chain: created, opened to everybody and resumed by its owner; what lands there, and who pays."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.addresses import EVERYBODY, JOIN_SCOPE, get_authorization_address
from psyche.backends.solana.interface.authorizer import build_authorization_create, build_authorization_grantor_update
from psyche.backends.solana.interface.coordinator import (
    Authorities,
    ChainRun,
    build_collect,
    build_init,
    build_join_run,
    build_owner_message,
    build_user_message,
)
from psyche.backends.solana.member.backend import SolanaBackend, open_chain_backend
from psyche.backends.solana.rpc.client import Rpc, open_rpc
from psyche.backends.solana.rpc.run_link import open_link
from psyche.core.encoding.account import decode_state
from psyche.core.state import messages as msg
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import ZERO32, Config, Coordinator, Model, Progress
from psyche.localchain.bank import Bank
from psyche.localchain.chain import LocalChain, open_local_chain
from psyche.telemetry.sink import EventSink
from psyche.testing.builders import build_config, build_model
from psyche.wire.crypto import Identity
from psyche.wire.key_file import make_identity

SOL = 10**9


def fund(bank: Bank, lamports: int = 100 * SOL) -> Keypair:
    """A new wallet."""
    key = Keypair()
    bank.airdrop(key.pubkey(), lamports)
    return key


def sign(
    block_hash: Hash, payer: Keypair, instructions: Sequence[Instruction], *signers: Keypair
) -> VersionedTransaction:
    message = Message.new_with_blockhash(list(instructions), payer.pubkey(), block_hash)
    return VersionedTransaction(message, [payer, *signers])


def build_message(
    run: ChainRun, payer: Pubkey, owner: Pubkey, authorization: Pubkey, message: msg.Message, sender: bytes = ZERO32,
    run_uid: bytes = ZERO32,
) -> Instruction:  # fmt: skip
    """The instruction that says a message; the payer sends what has no sender. A collection names the run's uid."""
    user = payer if sender == ZERO32 else Pubkey(sender)
    match message:
        case msg.Join(p2p, expires):
            return build_join_run(run, user, Pubkey(p2p), authorization, expires)
        case msg.Collect(((signer, _),)):
            return build_collect(run, payer, run_uid, Pubkey(signer))
        case msg.Pause() | msg.Resume() | msg.SetRates() | msg.Update() | msg.UpdateClientVersion():
            return build_owner_message(run, owner, message)
        case _:
            return build_user_message(run, user, message)  # type: ignore[arg-type]


def read_run(bank: Bank, run: ChainRun) -> Coordinator:
    """The record, as the chain has it now."""
    account = bank.get_account(run.account)
    assert account is not None
    return decode_state(bytes(account.data))


def list_steps(
    owner: Pubkey, run_id: str, run: ChainRun, account: Keypair, deposit: int, config: Config | None = None,
    model: Model | None = None,
) -> list[tuple[list[Instruction], list[Keypair]]]:  # fmt: skip
    """The transactions that create a run which everybody may join, and who signs each beside the owner."""
    settings = msg.Update(config or build_config(), model or build_model(), Progress())
    grant = get_authorization_address(owner, EVERYBODY)
    return [
        ([*build_init(owner, run_id, run.account, Authorities(owner, owner), "", deposit)], [account]),
        ([build_owner_message(run, owner, settings)], []),
        ([build_authorization_create(owner, owner, EVERYBODY, JOIN_SCOPE)], []),
        ([build_authorization_grantor_update(owner, grant, active=True)], []),
        ([build_owner_message(run, owner, msg.Resume())], []),
    ]


@dataclass(frozen=True)
class BoxedRun:
    run_id: str
    run: ChainRun
    owner: Keypair

    def read(self, bank: Bank) -> Coordinator:
        return read_run(bank, self.run)


def begin_run(bank: Bank, run_id: str = "boxed", config: Config | None = None, model: Model | None = None) -> BoxedRun:
    """Create a run in the bank itself, in its present slot."""
    owner, account = fund(bank), Keypair()
    run = ChainRun.find(run_id, account.pubkey())
    steps = list_steps(owner.pubkey(), run_id, run, account, bank.machine.get_deposit(STATE_BYTES), config, model)
    for instructions, signers in steps:
        assert bank.execute(sign(bank.newest_hash, owner, instructions, *signers)) is None
    return BoxedRun(run_id, run, owner)


class Member(NamedTuple):
    backend: SolanaBackend
    wallet: Pubkey
    identity: Identity


@dataclass(frozen=True, slots=True)
class ChainRunKit:
    """A run, its owner and the chain over real sockets."""

    chain: LocalChain
    rpc: Rpc
    owner: Keypair
    run: ChainRun

    @property
    def authorization(self) -> Pubkey:
        return get_authorization_address(self.owner.pubkey(), EVERYBODY)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.chain.http, self.chain.ws)

    def fund(self, lamports: int = SOL) -> Keypair:
        return fund(self.chain.bank, lamports)

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
            opening = open_chain_backend(link, sink=sink)
            yield Member(await stack.enter_async_context(opening), wallet.pubkey(), identity)

    def read(self) -> Coordinator:
        return read_run(self.chain.bank, self.run)


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
    begun = begin_run(chain.bank, "run", config or build_config(min_clients=2), model)
    async with open_rpc([Endpoint(chain.http, chain.ws)]) as rpc:
        yield ChainRunKit(chain, rpc, begun.owner, begun.run)
