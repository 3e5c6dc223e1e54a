"""Parts of transactions: their accounts, fees and inner instructions, and transactions as text."""

import base64
from collections.abc import Callable
from typing import Any, Final

import base58
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.instruction import CompiledInstruction
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import Legacy, VersionedTransaction
from solders.transaction_metadata import TransactionMetadata

from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE

_TABLE_HEAD_BYTES: Final = 56  # of a lookup table, before its addresses
_KEY_BYTES: Final = 32
_DEFAULT_UNITS: Final = 200_000  # per instruction that sets no limit
_MAX_UNITS: Final = 1_400_000


def take_message(transaction: VersionedTransaction) -> Message | MessageV0:
    """The message of a transaction that `read_transaction` has read."""
    message = transaction.message
    assert isinstance(message, Message | MessageV0)
    return message


def get_version(transaction: VersionedTransaction) -> int | str:
    """`legacy`, or the number of the message's version."""
    version = transaction.version()
    return "legacy" if isinstance(version, Legacy) else int(version)


def find_writable(message: Message | MessageV0) -> set[int]:
    """Indexes of the message's own accounts that it may write."""
    header, count = message.header, len(message.account_keys)
    signed = header.num_required_signatures
    written = range(signed - header.num_readonly_signed_accounts)
    return {*written, *range(signed, count - header.num_readonly_unsigned_accounts)}


def load_tables(message: Message | MessageV0, read: Callable[[Pubkey], bytes | None]) -> dict[str, list[Pubkey]]:
    """The accounts that a message takes from lookup tables; `read` gives a table's bytes, or None."""
    loaded: dict[str, list[Pubkey]] = {"writable": [], "readonly": []}
    for lookup in message.address_table_lookups if isinstance(message, MessageV0) else ():
        table = (read(lookup.account_key) or b"")[_TABLE_HEAD_BYTES:]
        for kind, indexes in (("writable", lookup.writable_indexes), ("readonly", lookup.readonly_indexes)):
            for index in indexes:
                key = table[index * _KEY_BYTES : (index + 1) * _KEY_BYTES]
                if len(key) == _KEY_BYTES:
                    loaded[kind].append(Pubkey(key))
    return loaded


def compute_fee(message: Message | MessageV0) -> int:
    """What a message costs in lamports: its signatures, and the price it offers for its compute units."""
    keys, price, limit, others = message.account_keys, 0, None, 0
    for instruction in message.instructions:
        data = bytes(instruction.data)
        if instruction.program_id_index >= len(keys) or keys[instruction.program_id_index] != COMPUTE_BUDGET:
            others += 1
        elif data[:1] == b"\x02" and len(data) == 5:
            limit = int.from_bytes(data[1:], "little")
        elif data[:1] == b"\x03" and len(data) == 9:
            price = int.from_bytes(data[1:], "little")
    units = min(_DEFAULT_UNITS * others if limit is None else limit, _MAX_UNITS)
    return LAMPORTS_PER_SIGNATURE * message.header.num_required_signatures + -(-price * units // 1_000_000)


def describe_instruction(instruction: CompiledInstruction, height: int | None = None) -> dict[str, Any]:
    """An instruction in the JSON form of the chain; `height` counts calls of programs by programs."""
    return {
        "programIdIndex": instruction.program_id_index,
        "accounts": list(bytes(instruction.accounts)),
        "data": base58.b58encode(bytes(instruction.data)).decode(),
        "stackHeight": height,
    }


def describe_inner(result: TransactionMetadata) -> list[dict[str, Any]]:
    """The instructions that programs ran, for each instruction that ran some."""
    return [
        {"index": index, "instructions": [describe_instruction(one.instruction(), one.stack_height()) for one in inner]}
        for index, inner in enumerate(result.inner_instructions())
        if inner
    ]


def describe_returned(result: TransactionMetadata) -> dict[str, Any] | None:
    returned = result.return_data()
    data = bytes(returned.data)
    if not data:
        return None
    return {"programId": str(returned.program_id), "data": [base64.b64encode(data).decode(), "base64"]}
