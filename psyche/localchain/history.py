"""What became of transactions: a status for each recent one, and everything about as many as there is room for."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche.localchain.machine import Execution

MAX_STATUSES: Final = 1 << 16
MAX_RECORD_BYTES: Final = 128 << 20
MAX_BLOCKS: Final = 1 << 16
_OVERHEAD_BYTES: Final = 1_000  # of a record, apart from its transaction and logs


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a transaction landed. `error` is None if it succeeded, else as in JSON-RPC."""

    slot: int
    error: Any


@dataclass(frozen=True, slots=True)
class LandedTransaction:
    """A transaction that landed, with what it did. `keys` has those of lookup tables at its end."""

    signature: Signature
    status: Landing
    unix: int
    raw: bytes
    keys: tuple[Pubkey, ...]
    loaded: dict[str, list[str]]
    done: Execution
    fee_lamports: int
    balances: tuple[list[int], list[int]]  # before and after
    tokens: tuple[list[dict[str, Any]], list[dict[str, Any]]]

    def compute_size_bytes(self) -> int:
        """What the record occupies in memory, roughly."""
        return _OVERHEAD_BYTES + len(self.raw) + sum(map(len, self.done.logs)) + 100 * len(self.keys)


@dataclass(frozen=True, slots=True)
class LandedBlock:
    """A block that is complete, without its transactions."""

    parent_slot: int
    height: int
    unix: int
    hash: Hash
    previous_hash: Hash
    signatures: Sequence[Signature]


class History:
    """Landed transactions, oldest first. The oldest are forgotten: a status never while its blockhash is valid."""

    def __init__(self) -> None:
        self.statuses: OrderedDict[Signature, Landing] = OrderedDict()
        self.blocks: OrderedDict[int, LandedBlock] = OrderedDict()  # by slot
        self.forgotten_slot = -1  # the newest of whose transactions one is forgotten
        self.count = 0
        self._records: OrderedDict[Signature, LandedTransaction] = OrderedDict()
        self._by_key: dict[Pubkey, deque[Signature]] = {}
        self._size_bytes = 0

    def add(self, record: LandedTransaction, oldest_slot: int) -> None:
        """Add the newest transaction; statuses from `oldest_slot` on stay."""
        self.count += 1
        self.statuses[record.signature] = record.status
        while len(self.statuses) > MAX_STATUSES and next(iter(self.statuses.values())).slot < oldest_slot:
            self.statuses.popitem(last=False)
        self._records[record.signature] = record
        self._size_bytes += record.compute_size_bytes()
        for key in dict.fromkeys(record.keys):
            self._by_key.setdefault(key, deque()).append(record.signature)
        while self._size_bytes > MAX_RECORD_BYTES:
            self._forget(self._records.popitem(last=False)[1])

    def add_block(self, slot: int, block: LandedBlock) -> None:
        self.blocks[slot] = block
        if len(self.blocks) > MAX_BLOCKS:
            self.blocks.popitem(last=False)

    def _forget(self, record: LandedTransaction) -> None:
        self.forgotten_slot = record.status.slot
        self._size_bytes -= record.compute_size_bytes()
        for key in dict.fromkeys(record.keys):
            signatures = self._by_key[key]
            signatures.popleft()  # it is the oldest of each of its keys
            if not signatures:
                del self._by_key[key]

    def get(self, signature: Signature) -> LandedTransaction | None:
        """Everything about a transaction; None if it never landed or is forgotten."""
        return self._records.get(signature)

    def find(self, key: Pubkey) -> Iterator[LandedTransaction]:
        """The transactions that name an account, newest first."""
        return (self._records[signature] for signature in reversed(self._by_key.get(key, ())))
