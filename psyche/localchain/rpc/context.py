"""What many methods do first and last: check the caller's wishes, and say of which slot the reply is."""

from typing import Any, Final, Protocol

from solders.account import Account
from solders.hash import Hash
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from psyche.localchain.history import History, Landing
from psyche.localchain.machine import Execution
from psyche.localchain.rpc.errors import BEHIND, CallError
from psyche.localchain.rpc.params import Options

API_VERSION: Final = "3.0.0"  # of the servers whose calls these are


class ChainView(Protocol):
    """What members ask a chain for: a `Bank` as it is now, or an earlier moment of one."""

    @property
    def slot(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def genesis(self) -> Hash: ...
    @property
    def history(self) -> History: ...
    @property
    def newest_hash(self) -> Hash: ...
    def get_last_height(self, block_hash: Hash) -> int | None: ...
    def get_level(self, slot: int) -> str: ...
    def get_status(self, signature: Signature) -> Landing | None: ...
    def get_account(self, key: Pubkey) -> Account | None: ...
    def get_lamports(self, key: Pubkey) -> int: ...
    def find_refusal(self, transaction: VersionedTransaction) -> str | None: ...
    def simulate(self, transaction: VersionedTransaction, *, is_verified: bool) -> Execution: ...
    def list_keys(self, message: Message | MessageV0) -> list[Pubkey]: ...
    def compute_loaded_bytes(self, message: Message | MessageV0) -> int: ...


def check_context(bank: ChainView, config: Options) -> None:
    """Check commitment and minContextSlot.

    Raises:
        CallError: the chain has not reached that slot.
    """
    config.get_commitment()
    least = config.get_integer("minContextSlot")
    if least is not None and least > bank.slot:
        raise CallError(BEHIND, "Minimum context slot has not been reached", {"contextSlot": bank.slot})


def wrap(bank: ChainView, value: Any) -> dict[str, Any]:
    """A value with the slot that it is of."""
    return {"context": {"apiVersion": API_VERSION, "slot": bank.slot}, "value": value}
