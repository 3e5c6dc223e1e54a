"""Calls about what has landed: the statuses of transactions, transactions, and the blocks that they are in."""

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import base58
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche.localchain.bank import Bank
from psyche.localchain.history import LandedBlock, LandedTransaction, Landing
from psyche.localchain.rpc.context import check_context, rpc_method, wrap
from psyche.localchain.rpc.encodings import check_reply_bytes
from psyche.localchain.rpc.errors import (
    CLEANED_UP,
    NO_BLOCK,
    SKIPPED_SLOT,
    UNSUPPORTED_VERSION,
    CallError,
    InvalidParams,
)
from psyche.localchain.rpc.params import COMMITMENTS, Options, Params, check_signature
from psyche.localchain.rpc.parsed_instructions import parse_instruction
from psyche.localchain.transactions import describe_instruction, find_writable, get_version, take_message

MAX_STATUSES: Final = 256
MAX_LISTED: Final = 1_000
MAX_LISTED_BLOCKS: Final = 500_000
_SHOWN_AS: Final = ("json", "jsonParsed", "base58", "base64")
_NEWEST: Final = "maxSupportedTransactionVersion"
_DETAILS: Final = ("full", "accounts", "signatures", "none")


# --- transactions -------------------------------------------------------------------------------------------


@rpc_method
def get_signature_statuses(bank: Bank, params: Params) -> Any:
    """Where transactions landed, null for those that have not."""
    listed = params.take(0)
    params.get_config(1).get_flag("searchTransactionHistory")
    if not isinstance(listed, list) or len(listed) > MAX_STATUSES:
        raise InvalidParams(f"Too many inputs provided; max {MAX_STATUSES}")
    statuses = [bank.get_status(check_signature(one)) for one in listed]
    return wrap(bank, [_describe_status(bank, status) for status in statuses])


def _describe_status(bank: Bank, status: Landing | None) -> dict[str, Any] | None:
    if status is None:
        return None
    level = bank.get_level(status.slot)
    return {
        "slot": status.slot,
        "confirmations": None if level == "finalized" else bank.slot - status.slot,
        "err": status.error,
        "status": _describe_outcome(status.error),
        "confirmationStatus": level,
    }


def _describe_outcome(error: Any) -> dict[str, Any]:
    return {"Ok": None} if error is None else {"Err": error}


@rpc_method
def get_signatures_for_address(bank: Bank, params: Params) -> Any:
    """The transactions that name an account, newest first."""
    key, config = params.take_key(0), params.get_config(1)
    check_context(bank, config)
    least = _take_settled_level(config)
    limit = config.get_integer("limit", MAX_LISTED) or MAX_LISTED
    before, until = config.get_signature("before"), config.get_signature("until")
    found: list[dict[str, Any]] = []
    is_open = before is None
    for record in bank.history.find(key):
        if record.signature == until or len(found) == limit:
            break
        if is_open and _has_reached(bank, record.status.slot, least):
            found.append(_list(bank, record))
        is_open = is_open or record.signature == before
    return found


def _list(bank: Bank, record: LandedTransaction) -> dict[str, Any]:
    return {
        "signature": str(record.signature),
        "slot": record.status.slot,
        "err": record.status.error,
        "memo": None,
        "blockTime": record.unix,
        "confirmationStatus": bank.get_level(record.status.slot),
    }


def _take_settled_level(config: Options) -> str:
    level = config.get_commitment()
    if level == "processed":
        raise InvalidParams("Method does not support commitment below `confirmed`")
    return level


def _has_reached(bank: Bank, slot: int, level: str) -> bool:
    return COMMITMENTS.index(bank.get_level(slot)) >= COMMITMENTS.index(level)


def _read_shown(params: Params) -> tuple[Options, "Shown", str]:
    raw_config = params.get(1)
    config = Options({"encoding": raw_config} if isinstance(raw_config, str) else raw_config)
    encoding, newest = config.get_choice("encoding", _SHOWN_AS, "json"), config.get_integer(_NEWEST, most=255)
    return config, Shown(encoding, newest), _take_settled_level(config)


@rpc_method
def get_transaction(bank: Bank, params: Params) -> Any:
    """Everything about a transaction; null until it has reached the commitment."""
    _, shown, level = _read_shown(params)
    record = bank.history.get(params.take_signature(0))
    if record is None or not _has_reached(bank, record.status.slot, level):
        return None
    return {"slot": record.status.slot, "blockTime": record.unix, **shown.describe(record)}


class Shown(NamedTuple):
    """How a caller wants transactions: in an encoding, and up to a version; None: those without a version."""

    encoding: str
    newest: int | None

    def describe(self, record: LandedTransaction) -> dict[str, Any]:
        """A transaction, and what it did.

        Raises:
            CallError: it has a version that the caller does not know.
        """
        transaction = VersionedTransaction.from_bytes(record.raw)
        version = get_version(transaction)
        if self.newest is None and version != "legacy":
            raise CallError(
                UNSUPPORTED_VERSION,
                f"Transaction version ({version}) is not supported by the requesting client. Please try the request "
                f'again with the following configuration parameter: "{_NEWEST}": {version}',
            )
        described = {"transaction": self._show(record, transaction), "meta": _describe_record(record, self.encoding)}
        return described if self.newest is None else {**described, "version": version}

    def _show(self, record: LandedTransaction, transaction: VersionedTransaction) -> Any:
        if self.encoding == "base64":
            return [base64.b64encode(record.raw).decode(), self.encoding]
        if self.encoding == "base58":
            return [base58.b58encode(record.raw).decode(), self.encoding]
        message = take_message(transaction)
        shown = _parse_message(message, record) if self.encoding == "jsonParsed" else _show_message(message)
        return {"signatures": [str(one) for one in transaction.signatures], "message": shown}


def _show_message(message: Message | MessageV0) -> dict[str, Any]:
    header = message.header
    shown: dict[str, Any] = {
        "header": {
            "numRequiredSignatures": header.num_required_signatures,
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
        },
        "accountKeys": [str(key) for key in message.account_keys],
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [describe_instruction(one) for one in message.instructions],
    }
    return {**shown, **_show_lookups(message)}


def _show_lookups(message: Message | MessageV0) -> dict[str, Any]:
    if not isinstance(message, MessageV0):
        return {}
    lookups = [
        {
            "accountKey": str(one.account_key),
            "writableIndexes": list(bytes(one.writable_indexes)),
            "readonlyIndexes": list(bytes(one.readonly_indexes)),
        }
        for one in message.address_table_lookups
    ]
    return {"addressTableLookups": lookups}


def _parse_message(message: Message | MessageV0, record: LandedTransaction) -> dict[str, Any]:
    instructions = [parse_instruction(describe_instruction(one, 1), record.keys) for one in message.instructions]
    return {
        "accountKeys": _list_keys(message, record),
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": instructions,
        **_show_lookups(message),
    }


def _list_keys(message: Message | MessageV0, record: LandedTransaction) -> list[dict[str, Any]]:
    own, signed = len(message.account_keys), message.header.num_required_signatures
    written = find_writable(message) | set(range(own, own + len(record.loaded["writable"])))
    return [
        {
            "pubkey": str(key),
            "signer": index < signed,
            "source": "transaction" if index < own else "lookupTable",
            "writable": index in written,
        }
        for index, key in enumerate(record.keys)
    ]


def _describe_balances(record: LandedTransaction) -> dict[str, Any]:
    return {
        "err": record.status.error,
        "status": _describe_outcome(record.status.error),
        "fee": record.fee_lamports,
        "preBalances": record.balances[0],
        "postBalances": record.balances[1],
        "preTokenBalances": record.tokens[0],
        "postTokenBalances": record.tokens[1],
    }


def _describe_record(record: LandedTransaction, encoding: str) -> dict[str, Any]:
    meta: dict[str, Any] = {
        **_describe_balances(record),
        "innerInstructions": record.done.inner or [],
        "logMessages": record.done.logs,
        "rewards": [],
        "loadedAddresses": record.loaded,
        "computeUnitsConsumed": record.done.units,
    }
    if encoding == "jsonParsed":
        meta["innerInstructions"] = parse_inner(record.done.inner or (), record.keys)
        del meta["loadedAddresses"]  # they are among the account keys
    return meta if record.done.returned is None else {**meta, "returnData": record.done.returned}


def describe_logs(record: LandedTransaction) -> dict[str, Any]:
    return {"signature": str(record.signature), "err": record.status.error, "logs": record.done.logs}


def parse_inner(inner: Sequence[dict[str, Any]], keys: Sequence[Pubkey]) -> list[dict[str, Any]]:
    return [{**one, "instructions": [parse_instruction(each, keys) for each in one["instructions"]]} for one in inner]


def names_any(record: LandedTransaction, keys: frozenset[Pubkey]) -> bool:
    return not keys.isdisjoint(record.keys)


# --- blocks -------------------------------------------------------------------------------------------------


def find_block(bank: Bank, slot: int, level: str) -> LandedBlock:
    """A block that has reached a commitment.

    Raises:
        CallError: there is none, with the number that says why.
    """
    if slot < bank.first_slot:
        text = f"Block {slot} cleaned up, does not exist on node. First available block: {bank.first_slot}"
        raise CallError(CLEANED_UP, text)
    if slot >= bank.slot or not _has_reached(bank, slot, level):
        raise CallError(NO_BLOCK, f"Block not available for slot {slot}")
    if slot not in bank.history.blocks:
        raise CallError(SKIPPED_SLOT, f"Slot {slot} was skipped, or missing due to ledger jump to recent snapshot")
    return bank.history.blocks[slot]


@rpc_method
def get_block(bank: Bank, params: Params) -> Any:
    config, shown, level = _read_shown(params)
    details = config.get_choice("transactionDetails", _DETAILS, "full")
    block = find_block(bank, params.take_integer(0), level)
    described: dict[str, Any] = {
        "previousBlockhash": str(block.previous_hash),
        "blockhash": str(block.hash),
        "parentSlot": block.parent_slot,
        "blockTime": block.unix,
        "blockHeight": block.height,
    }
    if details == "signatures":
        described["signatures"] = [str(signature) for signature in block.signatures]
    elif details != "none":
        records = [record for one in block.signatures if (record := bank.history.get(one)) is not None]
        size_bytes = sum(record.compute_size_bytes() for record in records)
        check_reply_bytes(size_bytes, "the transactions", "ask for transactionDetails of signatures")
        tell = shown.describe if details == "full" else _describe_accounts
        described["transactions"] = [tell(record) for record in records]
    return {**described, "rewards": []} if config.get_flag("rewards", default=True) else described


def _describe_accounts(record: LandedTransaction) -> dict[str, Any]:
    transaction = VersionedTransaction.from_bytes(record.raw)
    keys = _list_keys(take_message(transaction), record)
    signatures = [str(one) for one in transaction.signatures]
    return {"transaction": {"signatures": signatures, "accountKeys": keys}, "meta": _describe_balances(record)}


@rpc_method
def get_blocks(bank: Bank, params: Params) -> Any:
    """The slots with a block between two, which count too; the second may be left out."""
    start, second = params.take_integer(0), params.get(1)
    has_end = second is not None and not isinstance(second, dict)
    end = params.take_integer(1) if has_end else bank.slot
    if end - start > MAX_LISTED_BLOCKS:
        raise InvalidParams(f"Slot range too large; max {MAX_LISTED_BLOCKS}")
    return _list_blocks(bank, params.get_config(2 if has_end else 1), start, end)


@rpc_method
def get_blocks_with_limit(bank: Bank, params: Params) -> Any:
    start, limit = params.take_integer(0), params.take_integer(1)
    if limit > MAX_LISTED_BLOCKS:
        raise InvalidParams(f"Limit too large; max {MAX_LISTED_BLOCKS}")
    return _list_blocks(bank, params.get_config(2), start, bank.slot)[:limit]


def _list_blocks(bank: Bank, config: Options, start: int, end: int) -> list[int]:
    check_context(bank, config)
    level, first = _take_settled_level(config), max(start, bank.first_slot)
    return [slot for slot in bank.history.blocks if first <= slot <= end and _has_reached(bank, slot, level)]
