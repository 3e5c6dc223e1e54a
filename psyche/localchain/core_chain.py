"""The simulator's chain: one run over `psyche.core`, and endpoints that show it with a delay."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any, Final, cast

from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import COORDINATOR, EVERYBODY, get_authorization_address
from psyche.backends.solana.interface.coordinator import ED25519, ChainRun, OwnerMessage, build_owner_message
from psyche.backends.solana.rpc.client import CLOCK_ADDRESS, Rpc
from psyche.backends.solana.rpc.replies import CLOCK
from psyche.backends.solana.rpc.run_link import RpcLink, open_link
from psyche.backends.solana.rpc.sender import TransactionSender
from psyche.core.state.state import Coordinator
from psyche.localchain.bank import CONFIRMED_SLOTS, FINALIZED_SLOTS, SYSTEM, Bank, CompleteSlot, begin_chain
from psyche.localchain.blocks import ChainBlock, Effect, Payment
from psyche.localchain.coordinator_calls import CoordinatorCall
from psyche.localchain.core_machine import RUN_LAMPORTS, CoreMachine
from psyche.localchain.history import LandedTransaction, Landing
from psyche.localchain.machine import Execution
from psyche.localchain.rpc.calls import answer_body
from psyche.localchain.rpc.encodings import CLOSED, Form, describe_account
from psyche.localchain.rpc.hub import encode_notification
from psyche.localchain.rpc.methods import make_methods
from psyche.localchain.rpc.params import Params
from psyche.localchain.rpc.transactions import take_transaction
from psyche.localchain.transactions import take_message
from psyche.wire.crypto import Identity

KEPT_BLOCKS: Final = 200  # that endpoints may still show
WALLET_LAMPORTS: Final = 1 << 40
Show = Callable[[ChainBlock], bytes]


class CoreChain:
    """A chain with one run on it; `end_slot` makes the next block.

    Args:
        run_id: the run's.
        state: the run as it was created; owned from now on.
        owner: the public key of the wallet that may command the run.
        genesis: 32 bytes from which the chain's hashes follow.
        unix: the clock of the first block.
    """

    def __init__(self, run_id: str, state: Coordinator, owner: bytes, genesis: bytes, unix: int) -> None:
        self.machine = CoreMachine()
        self.bank = Bank(self.machine, begin_chain(genesis, unix))
        self.run = ChainRun.find(run_id, Pubkey(genesis))
        self.authorization = get_authorization_address(Pubkey(owner), EVERYBODY)
        self.machine.add_run(self.run.account, owner, state)
        self.blocks: deque[ChainBlock] = deque(maxlen=KEPT_BLOCKS)
        self.on_block: list[Callable[[ChainBlock], None]] = []
        self._made_s = 0.0
        self._pending: dict[Signature, VersionedTransaction] = {}
        self._effects: list[Effect] = []
        self.machine.on_effect.append(self._effects.append)
        self.bank.on_block.append(self._take_slot)
        for _ in range(2):
            self.bank.advance(unix)
        self.fund(owner)

    @property
    def newest(self) -> ChainBlock:
        return self.blocks[-1]

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def fund(self, wallet: bytes) -> None:
        self.machine.put_account(Pubkey(wallet), Account(WALLET_LAMPORTS, b"", SYSTEM))

    def submit(self, transaction: VersionedTransaction) -> None:
        """Give a transaction to the leaders; the bank takes none twice."""
        self._pending.setdefault(transaction.signatures[0], transaction)

    def end_slot(self, now_s: float, unix: int, skipped: int = 0) -> None:
        """Carry out what waits, and begin the next slot but `skipped`; `now_s` is the simulated time."""
        self.bank.set_clock(unix)  # that of its end: members wait for it, and for no further slot
        waiting, self._pending = self._pending, {}
        for transaction in waiting.values():
            self.bank.execute(transaction)
        self._made_s = now_s
        self.bank.advance(unix, skipped)

    def _take_slot(self, slot: CompleteSlot) -> None:
        effects, last = tuple(self._effects), self.blocks[-1] if self.blocks else None
        self._effects.clear()
        raw = self.machine.read_run(self.run.account)
        made, newest = self.bank.history.blocks[slot.slot], self.bank.newest_hash
        block = ChainBlock(
            slot.slot, made.height, bytes(newest), self.bank.get_last_height(newest) or 0, self._made_s, made.unix, raw,
            last is None or raw is not last.raw, effects, tuple(map(_describe_payment, slot.records)),
        )  # fmt: skip
        self.blocks.append(block)
        for tell in tuple(self.on_block):
            tell(block)

    # --- endpoints ----------------------------------------------------------------------------------------------

    def make_endpoint(
        self, get_block: Callable[[], ChainBlock], show: Show, send: Callable[[str, Callable[[], None]], None]
    ) -> Callable[[bytes], bytes]:
        """What an endpoint answers to a body of JSON-RPC.

        Args:
            get_block: the newest block that it shows now.
            show: the account after a block, as it has it.
            send: takes the signature of a transaction that it is given, and what brings it to the leaders.
        """
        methods = make_methods(cast("Bank", DelayedView(self, get_block, show)))

        def send_transaction(params: Params) -> str:
            transaction = take_transaction(params, params.get_config(1))
            signature = str(transaction.signatures[0])
            send(signature, lambda: self.submit(transaction))
            return signature

        methods["sendTransaction"] = send_transaction
        return lambda body: answer_body(methods, body) or b""

    # --- who uses it --------------------------------------------------------------------------------------------

    def open_member_link(self, rpc: Rpc, seed: bytes, identity: Identity) -> AbstractAsyncContextManager[RpcLink]:
        """The real client's way to the run for the wallet with this secret seed."""
        return open_link(rpc, self.run, Keypair.from_seed(seed), identity, self.authorization)

    async def command(self, rpc: Rpc, seed: bytes, message: OwnerMessage) -> None:
        """Send a message of the owner's wallet.

        Raises:
            CoordinatorError: the rules refuse it.
        """
        wallet = Keypair.from_seed(seed)
        await TransactionSender(rpc, wallet).send([build_owner_message(self.run, wallet.pubkey(), message)])


@lru_cache(maxsize=32)
def encode_push(slot: int, raw: bytes) -> bytes:
    """What subscribers to the run's account are sent for a block; every client of a world is sent the same."""
    account = Account(RUN_LAMPORTS, raw, COORDINATOR) if raw else CLOSED
    value = describe_account(account, Form("base64+zstd", 0, None), lambda _key: None)
    return encode_notification("account", 1, {"context": {"slot": slot}, "value": value})


def _describe_payment(record: LandedTransaction) -> Payment:
    message = take_message(VersionedTransaction.from_bytes(record.raw))
    keys, signatures, is_join = message.account_keys, message.header.num_required_signatures, False
    for one in message.instructions:
        program, data = keys[one.program_id_index], bytes(one.data)
        signatures += data[0] if program == ED25519 else 0
        is_join |= program == COORDINATOR and CoordinatorCall(data, ()).name == "join_run"
    return Payment(str(record.signature), bytes(keys[0]), signatures, is_join)


class DelayedView:
    """A bank as of an earlier block; what is no run's account is as it is now."""

    def __init__(self, chain: CoreChain, get_block: Callable[[], ChainBlock], show: Show) -> None:
        self._chain = chain
        self._get_block = get_block
        self._show = show

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain.bank, name)

    @property
    def slot(self) -> int:
        return self._get_block().slot

    @property
    def height(self) -> int:
        return self._get_block().height

    @property
    def newest_hash(self) -> Hash:
        return Hash(self._get_block().hash)

    def get_level(self, slot: int) -> str:
        behind = self.slot + CONFIRMED_SLOTS - slot  # its newest block is complete, the bank's is not
        return "finalized" if behind >= FINALIZED_SLOTS else "confirmed" if behind >= CONFIRMED_SLOTS else "processed"

    def get_status(self, signature: Signature) -> Landing | None:
        status = self._chain.bank.history.statuses.get(signature)
        return status if status is not None and status.slot <= self.slot else None

    def get_account(self, key: Pubkey) -> Account | None:
        block = self._get_block()
        if key == self._chain.run.account:
            return Account(RUN_LAMPORTS, self._show(block), COORDINATOR) if block.raw else None
        if key == CLOCK_ADDRESS:
            # what a transaction would see that runs now: it gets into the next slot at the earliest
            return Account(1, CLOCK.pack(block.slot + 1, 0, 0, 0, block.unix), SYSTEM)
        return self._chain.bank.get_account(key)

    def simulate(self, transaction: VersionedTransaction, *, is_verified: bool) -> Execution:
        del is_verified
        return self._chain.machine.simulate_on({self._chain.run.account: self._show(self._get_block())}, transaction)
