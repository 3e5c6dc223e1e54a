"""A small chain over core with a run that waits for members, and real clients of it over simulated endpoints."""

import random
from collections.abc import Awaitable, Callable, Sequence

import trio
from kits.chain.chain_run import build_message
from kits.chain.endpoints import Events
from kits.clocks import make_autojump_clock
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message as TransactionMessage
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.run_link import RpcLink
from psyche.core.state.genesis import create_run
from psyche.core.state.messages import Join, Message
from psyche.core.state.state import Coordinator, Metadata
from psyche.errors import BackendError
from psyche.localchain.core_chain import CoreChain
from psyche.localchain.history import Landing
from psyche.network.memory.line import Arrivals
from psyche.sim.chain.endpoints import SimulatedEndpoint, SimulatedTransport
from psyche.sim.scenarios.scenario import ChainConditions, Scenario, build_run_config, build_small_model
from psyche.wire.crypto import Identity
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof

START: int = 1_700_000_000
OWNER = Identity(b"\xff" * 32)


def build_chain(**config: int) -> CoreChain:
    """A chain whose run any two members begin at once."""
    values = {"init_min_clients": 2, "waiting_for_members_extra_time": 1, "entropy_delay": 4} | config
    settings = build_run_config(Scenario(config=values))
    state = create_run(settings, build_small_model(), "run", b"\1" * 32, Metadata(), "", START)
    chain = CoreChain("run", state, OWNER.public, b"\2" * 32, START)
    for number in range(1, 10):
        chain.fund(get_key(number)[0])
    return chain


def get_state(chain: CoreChain) -> Coordinator:
    """The run as the chain has it, to read or to change."""
    return chain.machine._runs[chain.run.account].state


def get_identities(number: int) -> tuple[Identity, Identity]:
    """A member's wallet and session key."""
    return Identity(bytes([number]) * 32), Identity(bytes([100 + number]) * 32)


def get_key(number: int) -> tuple[bytes, bytes]:
    """The public keys of a member's wallet and session."""
    wallet, session = get_identities(number)
    return wallet.public, session.public


def sign(
    chain: CoreChain, wallet: Identity, *messages: Message, session: Identity | None = None
) -> VersionedTransaction:
    """A transaction on the newest block."""
    payer, run = Keypair.from_seed(wallet.seed), chain.run
    key = payer.pubkey()
    instructions = [build_message(run, key, key, chain.authorization, message) for message in messages]
    signers = [payer] if session is None else [payer, Keypair.from_seed(session.seed)]
    told = TransactionMessage.new_with_blockhash(instructions, key, Hash(chain.newest.hash))
    return VersionedTransaction(told, signers)


def join(chain: CoreChain, number: int) -> VersionedTransaction:
    """A member's join."""
    wallet, session = get_identities(number)
    return sign(chain, wallet, Join(session.public), session=session)


def pass_slots(chain: CoreChain, count: int = 1, skipped: int = 0) -> None:
    """Let slots of a second pass."""
    for _ in range(count):
        now_s = chain.bank.slot + skipped
        chain.end_slot(float(now_s), START + now_s, skipped)


def land(chain: CoreChain, transaction: VersionedTransaction) -> Landing:
    """Submit it and let it land."""
    chain.submit(transaction)
    pass_slots(chain)
    return chain.bank.history.statuses[transaction.signatures[0]]


class MemberLink(RpcLink):
    """The real link over endpoints of its own; keeps what was asked to be sent."""

    sent: tuple[Message, ...] = ()
    is_poor = False

    def __init__(
        self, chain: CoreChain, number: int, endpoints: Sequence[SimulatedEndpoint], session: Identity
    ) -> None:
        self.endpoints, transport = endpoints, SimulatedTransport(endpoints)
        rpc = Rpc(transport.addresses, transport, sink=Events(), rng=random.Random(number))
        wallet = Keypair.from_seed(get_identities(number)[0].seed)
        super().__init__(rpc, chain.run, wallet, session, chain.authorization)

    async def send(
        self, messages: Sequence[Message], proof: Proof = None, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        if self.is_poor:
            raise BackendError("the wallet is empty")
        self.sent += tuple(messages)
        return await super().send(messages, proof, is_wanted=is_wanted)


class ChainStage:
    """A chain that goes on, and links to it."""

    def __init__(self, nursery: trio.Nursery, conditions: ChainConditions, **config: int) -> None:
        self.nursery, self.conditions = nursery, conditions
        self.chain = build_chain(**config)
        self.effects: list[tuple[bytes, Message]] = []
        self.chain.on_block.append(lambda block: self.effects.extend((e.sender, e.message) for e in block.effects))
        self.events = Events()
        self.links: list[MemberLink] = []
        self._arrivals = Arrivals()
        self._rng = random.Random(7)

    async def make_blocks(self) -> None:
        skipped = 0
        while True:
            await trio.sleep(self.conditions.slot_s)
            if self._rng.random() < self.conditions.skipped:
                skipped += 1
            else:
                self.chain.end_slot(trio.current_time(), START + int(trio.current_time()), skipped)
                skipped = 0

    def build_endpoint(self, lag_s: float, number: int = 1) -> SimulatedEndpoint:
        rng = random.Random(number)
        return SimulatedEndpoint(
            f"endpoint-{lag_s}", self.chain, rng, self.conditions, lag_s, self._arrivals, lambda _signature: None
        )

    def build_link(
        self, number: int, lags_s: tuple[float, ...] = (0.5,), session: Identity | None = None
    ) -> MemberLink:
        endpoints = [self.build_endpoint(lag_s, number) for lag_s in lags_s]
        self.links.append(MemberLink(self.chain, number, endpoints, session or get_identities(number)[1]))
        return self.links[-1]

    async def join_somebody(self, number: int) -> None:
        """Join as a member that has no backend here."""
        await self.build_link(number).send([Join(get_key(number)[1])])

    def count(self, kind: type[Message]) -> int:
        """How many messages of a kind took effect."""
        return sum(isinstance(message, kind) for _, message in self.effects)

    def write_account(self, raw: bytes) -> None:
        """Let the chain have this account from its next block on, as after a restart from an older ledger."""
        owner = COORDINATOR if raw else Keypair().pubkey()
        self.chain.bank.put_account(self.chain.run.account, Account(1, raw, owner))


def run_stage(
    play: Callable[[ChainStage], Awaitable[None]], conditions: ChainConditions,
    stage_kind: type[ChainStage] = ChainStage, **config: int,
) -> None:  # fmt: skip
    """Play on a stage whose endpoints have blocks to show."""

    async def main() -> None:
        async with open_plain_nursery() as nursery:
            stage = stage_kind(nursery, conditions, **config)
            nursery.start_soon(stage.make_blocks)
            await trio.sleep(5.0)
            with trio.fail_after(1_000):
                await play(stage)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=make_autojump_clock())
