"""The chain itself: slots, block hashes, the clock, and what becomes of each transaction. It does no I/O."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import SanitizeError, VersionedTransaction

from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE
from psyche.backends.solana.programs.loader import UPGRADEABLE
from psyche.core.rules.rounds import RECORDED_SLOTS
from psyche.localchain.history import History, LandedBlock, LandedTransaction, Landing
from psyche.localchain.machine import Execution, Machine
from psyche.localchain.tokens import find_token_balances
from psyche.localchain.transactions import compute_fee, find_writable, load_tables, take_message

BLOCK_HASHES: Final = 150  # blocks for which a hash counts
CONFIRMED_SLOTS: Final = 1  # until a landed transaction is reported as confirmed: its slot is complete
FINALIZED_SLOTS: Final = 32
FAUCET_LAMPORTS: Final = 1 << 62
SYSTEM: Final = Pubkey.default()


@dataclass(frozen=True, slots=True)
class CompleteSlot:
    """A slot that is complete.

    Args:
        parent: the slot before it that was not skipped.
        records: what landed in it, in order.
        written: the accounts that may have changed.
    """

    slot: int
    parent: int
    records: Sequence[LandedTransaction]
    written: Sequence[Pubkey]


class Clocks(msgspec.Struct, frozen=True):
    """Where a chain is. `slot_hashes` are newest first; `block_hashes` have the last height at which each is valid."""

    genesis: bytes
    slot: int
    height: int
    unix: int
    slot_hashes: list[tuple[int, bytes]]
    block_hashes: list[tuple[bytes, int]]


class Bank:
    """A chain in this process, for one task. Slots follow each other as `advance` is called.

    Args:
        machine: carries out transactions.
        clocks: where the chain begins.
    """

    def __init__(self, machine: Machine, clocks: Clocks) -> None:
        self.machine = machine
        self.genesis = Hash(clocks.genesis)
        self.slot, self.height, self.unix = clocks.slot, clocks.height, clocks.unix
        self.parent, self._first_slot = 0, 0  # the first that begins in this process
        self.history = History()
        self.accounts: dict[Pubkey, None] = {}  # all that were ever written
        self.on_block: list[Callable[[CompleteSlot], None]] = []
        self.before_each: list[Callable[[VersionedTransaction], None]] = []  # of the transactions that are carried out
        self.after_each: list[Callable[[LandedTransaction], None]] = []
        self._slot_hashes = deque(((slot, Hash(raw)) for slot, raw in clocks.slot_hashes), maxlen=RECORDED_SLOTS)
        self._block_hashes = OrderedDict((Hash(raw), height) for raw, height in clocks.block_hashes)
        self._faucet = Keypair()
        machine.put_account(self._faucet.pubkey(), Account(FAUCET_LAMPORTS, b"", SYSTEM))
        self._records: list[LandedTransaction] = []
        self._written: dict[Pubkey, None] = {}

    # --- slots ------------------------------------------------------------------------------------------

    def advance(self, unix: int, skipped: int = 0) -> None:
        """Complete the slot and begin the next one; `skipped` slots between them have no block, and so no hash."""
        block = CompleteSlot(self.slot, self.parent, self._records, tuple(self._written))
        previous, height, begun_unix = self.newest_hash, self.height, self.unix
        if self.slot:
            self._slot_hashes.appendleft((self.slot, self._hash_block(block)))
        self.parent, self.slot = self.slot, self.slot + 1 + skipped
        self.height += 1
        self.unix = max(unix, self.unix)
        self._records, self._written = [], {}
        self.machine.begin_slot(self.slot, self.unix, self._slot_hashes)
        self._block_hashes[_hash(b"block", bytes(self.get_slot_hash()), self.slot)] = self.height + BLOCK_HASHES
        while next(iter(self._block_hashes.values())) < self.height:
            self._block_hashes.popitem(last=False)
        if self._first_slot:
            signatures = [record.signature for record in block.records]
            made = LandedBlock(block.parent, height, begun_unix, self.newest_hash, previous, signatures)
            self.history.add_block(block.slot, made)
        self._first_slot = self._first_slot or self.slot
        for tell in self.on_block if block.slot else ():
            tell(block)

    def set_clock(self, unix: int) -> None:
        """Let programs see this time for the rest of the slot; it never goes back."""
        self.unix = max(unix, self.unix)
        self.machine.begin_slot(self.slot, self.unix, self._slot_hashes)

    def get_slot_hash(self) -> Hash:
        """The newest hash that programs can read."""
        return self._slot_hashes[0][1] if self._slot_hashes else self.genesis

    def _hash_block(self, block: CompleteSlot) -> Hash:
        """A slot's hash follows from what landed, as the real one does, so that nobody knows it before."""
        landed = b"".join(bytes(record.signature) for record in block.records)
        return _hash(b"slot", bytes(self.get_slot_hash()) + bytes(self.newest_hash) + landed, block.slot)

    @property
    def newest_hash(self) -> Hash:
        """The block hash for new transactions."""
        return next(reversed(self._block_hashes), self.genesis)

    def get_last_height(self, block_hash: Hash) -> int | None:
        """The last block height at which a transaction with this hash can land; None if it cannot."""
        return self._block_hashes.get(block_hash)

    def get_level(self, slot: int) -> str:
        """The commitment that what landed in a slot has reached."""
        if self.slot - slot >= FINALIZED_SLOTS:
            return "finalized"
        return "confirmed" if self.slot - slot >= CONFIRMED_SLOTS else "processed"

    def get_status(self, signature: Signature) -> Landing | None:
        return self.history.statuses.get(signature)

    @property
    def root(self) -> int:
        """The newest slot that counts as finalized."""
        return max(0, self.slot - FINALIZED_SLOTS)

    @property
    def first_slot(self) -> int:
        """The oldest slot that everything is known about."""
        oldest = next(iter(self.history.blocks), self._first_slot)
        return max(oldest, self.history.forgotten_slot + 1)

    def get_clocks(self) -> Clocks:
        slot_hashes = [(slot, bytes(one)) for slot, one in self._slot_hashes]
        block_hashes = [(bytes(one), height) for one, height in self._block_hashes.items()]
        return Clocks(bytes(self.genesis), self.slot, self.height, self.unix, slot_hashes, block_hashes)

    # --- accounts ---------------------------------------------------------------------------------------

    def get_account(self, key: Pubkey) -> Account | None:
        return self.machine.get_account(key)

    def get_lamports(self, key: Pubkey) -> int:
        return self.machine.get_lamports(key)

    def put_account(self, key: Pubkey, account: Account) -> None:
        """Lay an account as it is, and tell its subscribers at the end of the slot."""
        self.machine.put_account(key, account)
        self._note(key)

    @property
    def faucet(self) -> Pubkey:
        """The account that airdrops come from."""
        return self._faucet.pubkey()

    def airdrop(self, key: Pubkey, lamports: int) -> Signature:
        """Give an account lamports; returns the signature of the transaction that does.

        Raises:
            OverflowError: the faucet has not that many, or the account has no room for them.
        """
        if not self.get_lamports(key) + lamports + LAMPORTS_PER_SIGNATURE < self.get_lamports(self.faucet):
            raise OverflowError
        giving = transfer(TransferParams(from_pubkey=self.faucet, to_pubkey=key, lamports=lamports))
        nonce = _hash(b"airdrop", bytes(self.newest_hash), self.history.count)  # so that two equal ones differ
        message = Message.new_with_blockhash([giving], self.faucet, nonce)
        transaction = VersionedTransaction(message, [self._faucet])
        self._carry_out(transaction)
        return transaction.signatures[0]

    # --- transactions -----------------------------------------------------------------------------------

    def find_refusal(self, transaction: VersionedTransaction) -> str | None:
        """Why the chain does not take a transaction, apart from its signatures; None if it does."""
        try:
            transaction.sanitize()
        except SanitizeError:
            return "SanitizeFailure"
        if transaction.signatures[0] in self.history.statuses:
            return "AlreadyProcessed"
        return None if transaction.message.recent_blockhash in self._block_hashes else "BlockhashNotFound"

    def execute(self, transaction: VersionedTransaction) -> Any:
        """Carry out a transaction; returns its error as in JSON-RPC, None if it succeeded.

        With an error it may have landed, and paid its fee: `history` knows.
        """
        refusal = self.find_refusal(transaction)
        return self._carry_out(transaction) if refusal is None else refusal

    def _carry_out(self, transaction: VersionedTransaction) -> Any:
        for look in self.before_each:
            look(transaction)
        message = take_message(transaction)
        loaded = load_tables(message, self._read)
        keys = (*message.account_keys, *loaded["writable"], *loaded["readonly"])
        before = [self.get_lamports(key) for key in keys]
        tokens_before = find_token_balances(keys, self.get_account)
        done = self.machine.execute(transaction)
        after = [self.get_lamports(key) for key in keys]
        if done.error is not None and before[0] == after[0]:
            return done.error  # it is in no block: nobody paid for it
        record = LandedTransaction(
            signature=transaction.signatures[0],
            status=Landing(self.slot, done.error),
            unix=self.unix,
            raw=bytes(transaction),
            keys=keys,
            loaded={kind: [str(key) for key in found] for kind, found in loaded.items()},
            done=done,
            fee_lamports=compute_fee(message) if done.error is None else before[0] - after[0],
            balances=(before, after),
            tokens=(tokens_before, find_token_balances(keys, self.get_account)),
        )
        self._add(record, message, loaded["writable"])
        return done.error

    def _add(self, record: LandedTransaction, message: Message | MessageV0, loaded: Sequence[Pubkey]) -> None:
        # An entry's hash is older than the chain's oldest valid one long before its status goes.
        self.history.add(record, oldest_slot=self.slot - 4 * BLOCK_HASHES)
        self._records.append(record)
        for tell in self.after_each:
            tell(record)
        if record.status.error is not None:
            self._note(record.keys[0])
            return
        for index in sorted(find_writable(message)):
            self._note(record.keys[index])
        for key in loaded:
            self._note(key)

    def _note(self, key: Pubkey) -> None:
        if key != self.faucet:
            self._written[key] = self.accounts[key] = None

    def _read(self, key: Pubkey) -> bytes | None:
        account = self.get_account(key)
        return None if account is None else bytes(account.data)

    def simulate(self, transaction: VersionedTransaction, *, is_verified: bool) -> Execution:
        return self.machine.simulate(transaction, is_verified=is_verified)

    def list_keys(self, message: Message | MessageV0) -> list[Pubkey]:
        """The accounts of a message, those of lookup tables at the end."""
        loaded = load_tables(message, self._read)
        return [*message.account_keys, *loaded["writable"], *loaded["readonly"]]

    def compute_loaded_bytes(self, message: Message | MessageV0) -> int:
        """What a message loads, as the limit on loaded data counts it: accounts, and the code of programs."""
        accounts = [account for key in self.list_keys(message) if (account := self.get_account(key)) is not None]
        programs = [Pubkey(bytes(one.data)[4:36]) for one in accounts if one.owner == UPGRADEABLE and one.executable]
        code = [account for key in programs if (account := self.get_account(key)) is not None]
        return sum(_ACCOUNT_BYTES + len(account.data) for account in (*accounts, *code))


_ACCOUNT_BYTES: Final = 64  # that every account counts beside its data


def begin_chain(genesis: bytes, unix: int) -> Clocks:
    """A new chain; `genesis`: 32 bytes that tell it from others, and from which its hashes follow."""
    return Clocks(genesis, 0, 0, unix, [], [])


def _hash(kind: bytes, raw: bytes, number: int) -> Hash:
    return Hash(sha256(kind + raw + number.to_bytes(8, "little")).digest())
