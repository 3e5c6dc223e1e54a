"""Calls that send transactions, try them, and ask what became of them."""

import base64
import binascii
from functools import partial
from typing import Any, Final

import base58
from solders.message import Message, MessageV0, from_bytes_versioned
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche.localchain.bank import Bank, Trial
from psyche.localchain.calls import Method
from psyche.localchain.encodings import Form, check_reply_size, describe_account
from psyche.localchain.errors import (
    PREFLIGHT_FAILED,
    SIGNATURE_FAILED,
    UNSUPPORTED_VERSION,
    CallError,
    InvalidParams,
    describe_transaction_error,
)
from psyche.localchain.history import LandedTransaction, Landing
from psyche.localchain.methods.blocks import describe_hash
from psyche.localchain.methods.context import check_context, wrap
from psyche.localchain.params import COMMITMENTS, Options, Params, check_signature
from psyche.localchain.transactions import (
    compute_fee,
    decode_text,
    describe_instruction,
    describe_returned,
    get_version,
    read_transaction,
    take_message,
)

MAX_STATUSES: Final = 256
MAX_LISTED: Final = 1_000
MAX_SHOWN_ACCOUNTS: Final = 128
_SENT_AS: Final = ("base58", "base64")
_SHOWN_AS: Final = ("json", "jsonParsed", "base58", "base64")


def make_transaction_methods(bank: Bank) -> dict[str, Method]:
    """The methods on a chain."""
    return {
        "getFeeForMessage": partial(get_fee_for_message, bank),
        "getSignatureStatuses": partial(get_signature_statuses, bank),
        "getSignaturesForAddress": partial(get_signatures_for_address, bank),
        "getTransaction": partial(get_transaction, bank),
        "sendTransaction": partial(send_transaction, bank),
        "simulateTransaction": partial(simulate_transaction, bank),
    }


# --- sending ------------------------------------------------------------------------------------------------


def send_transaction(bank: Bank, params: Params) -> str:
    """Carry out a transaction. Without preflight nobody learns here that it was refused, as on the chain itself."""
    config = params.get_config(1)
    transaction = _take_transaction(params, config)
    config.get_integer("maxRetries")
    config.get_choice("preflightCommitment", COMMITMENTS, "finalized")
    check_context(bank, config)
    signature = str(transaction.signatures[0])
    if config.get_flag("skipPreflight"):
        bank.execute(transaction)
        return signature
    _check_signatures(transaction)
    trial = _try(bank, transaction, is_verified=True)
    if trial.error is not None:
        text = f"Transaction simulation failed: {describe_transaction_error(trial.error)}"
        raise CallError(PREFLIGHT_FAILED, text, _describe_trial(bank, transaction, trial))
    bank.execute(transaction)
    return signature


def _take_transaction(params: Params, config: Options) -> VersionedTransaction:
    return read_transaction(decode_text(params.take_text(0), config.get_choice("encoding", _SENT_AS, "base58")))


def _check_signatures(transaction: VersionedTransaction) -> None:
    if not all(transaction.verify_with_results()):
        raise CallError(SIGNATURE_FAILED, "Transaction signature verification failure")


def _try(bank: Bank, transaction: VersionedTransaction, *, is_verified: bool) -> Trial:
    refusal = bank.find_refusal(transaction)
    return bank.simulate(transaction, is_verified=is_verified) if refusal is None else Trial(refusal, None, {})


def simulate_transaction(bank: Bank, params: Params) -> Any:
    """Try a transaction without effect."""
    config = params.get_config(1)
    transaction = _take_transaction(params, config)
    check_context(bank, config)
    is_verified, is_replaced = config.get_flag("sigVerify"), config.get_flag("replaceRecentBlockhash")
    if is_verified and is_replaced:
        raise InvalidParams("sigVerify may not be used with replaceRecentBlockhash")
    if is_verified:
        _check_signatures(transaction)
    refusal = bank.find_refusal(transaction)
    if refusal is None or (is_replaced and refusal != "SanitizeFailure"):
        trial = bank.simulate(transaction, is_verified=is_verified)
    else:
        trial = Trial(refusal, None, {})
    described = _describe_trial(bank, transaction, trial)
    described["accounts"] = _describe_accounts(bank, config, trial)
    if is_replaced:
        described["replacementBlockhash"] = describe_hash(bank)
    return wrap(bank, described)


def _describe_trial(bank: Bank, transaction: VersionedTransaction, trial: Trial) -> dict[str, Any]:
    result = trial.result
    return {
        "accounts": None,
        "err": trial.error,
        "innerInstructions": None,
        "loadedAccountsDataSize": bank.compute_loaded_bytes(take_message(transaction)),
        "logs": [] if result is None else result.logs(),
        "replacementBlockhash": None,
        "returnData": None if result is None else describe_returned(result),
        "unitsConsumed": 0 if result is None else result.compute_units_consumed(),
    }


def _describe_accounts(bank: Bank, config: Options, trial: Trial) -> list[Any] | None:
    shown = config.get_config("accounts")
    if shown is None:
        return None
    keys, form = shown.get_keys("addresses", MAX_SHOWN_ACCOUNTS), Form.read(shown, default="base64")
    if form.encoding in {"base58", "binary"}:
        raise InvalidParams("base58 encoding not supported")
    if trial.error is not None:
        return [None] * len(keys)
    accounts = [trial.accounts.get(key) or bank.get_account(key) for key in keys]
    check_reply_size(accounts, form)
    return [describe_account(account, form) for account in accounts]


def get_fee_for_message(bank: Bank, params: Params) -> Any:
    """What a message would cost; null if its hash is too old."""
    text, config = params.take_text(0), params.get_config(1)
    check_context(bank, config)
    try:
        message = from_bytes_versioned(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidParams(f"failed to deserialize the message: {error}") from None
    if not isinstance(message, Message | MessageV0):
        raise InvalidParams("failed to deserialize the message: expected a valid transaction message version")
    is_valid = bank.get_last_height(message.recent_blockhash) is not None
    return wrap(bank, compute_fee(message) if is_valid else None)


# --- asking -------------------------------------------------------------------------------------------------


def get_signature_statuses(bank: Bank, params: Params) -> Any:
    """Where transactions landed, null for those that have not."""
    listed = params.take(0)
    params.get_config(1).get_flag("searchTransactionHistory")
    if not isinstance(listed, list) or len(listed) > MAX_STATUSES:
        raise InvalidParams(f"Too many inputs provided; max {MAX_STATUSES}")
    statuses = [bank.history.statuses.get(check_signature(one)) for one in listed]
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
        if is_open and _has_reached(bank, record, least):
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


def _has_reached(bank: Bank, record: LandedTransaction, level: str) -> bool:
    return COMMITMENTS.index(bank.get_level(record.status.slot)) >= COMMITMENTS.index(level)


def get_transaction(bank: Bank, params: Params) -> Any:
    """Everything about a transaction; null until it has reached the commitment."""
    raw_config = params.get(1)
    config = Options({"encoding": raw_config} if isinstance(raw_config, str) else raw_config)
    encoding, level = config.get_choice("encoding", _SHOWN_AS, "json"), _take_settled_level(config)
    newest = config.get_integer("maxSupportedTransactionVersion", most=255)
    record = bank.history.get(params.take_signature(0))
    if record is None or not _has_reached(bank, record, level):
        return None
    transaction = VersionedTransaction.from_bytes(record.raw)
    version = get_version(transaction)
    if newest is None and version != "legacy":
        raise CallError(
            UNSUPPORTED_VERSION,
            f"Transaction version ({version}) is not supported by the requesting client. Please try the request "
            f'again with the following configuration parameter: "maxSupportedTransactionVersion": {version}',
        )
    reply = {
        "slot": record.status.slot,
        "blockTime": record.unix,
        "transaction": _show(record, transaction, encoding),
        "meta": _describe_record(record),
    }
    return reply if newest is None else {**reply, "version": version}


def _show(record: LandedTransaction, transaction: VersionedTransaction, encoding: str) -> Any:
    if encoding == "base64":
        return [base64.b64encode(record.raw).decode(), encoding]
    if encoding == "base58":
        return [base58.b58encode(record.raw).decode(), encoding]
    return {
        "signatures": [str(one) for one in transaction.signatures],
        "message": _show_message(take_message(transaction)),
    }


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
    if isinstance(message, MessageV0):
        shown["addressTableLookups"] = [
            {
                "accountKey": str(one.account_key),
                "writableIndexes": list(bytes(one.writable_indexes)),
                "readonlyIndexes": list(bytes(one.readonly_indexes)),
            }
            for one in message.address_table_lookups
        ]
    return shown


def _describe_record(record: LandedTransaction) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "err": record.status.error,
        "status": _describe_outcome(record.status.error),
        "fee": record.fee_lamports,
        "preBalances": record.balances[0],
        "postBalances": record.balances[1],
        "innerInstructions": record.inner,
        "logMessages": record.logs,
        "preTokenBalances": record.tokens[0],
        "postTokenBalances": record.tokens[1],
        "rewards": [],
        "loadedAddresses": record.loaded,
        "computeUnitsConsumed": record.units,
    }
    return meta if record.returned is None else {**meta, "returnData": record.returned}


def describe_logs(record: LandedTransaction) -> dict[str, Any]:
    """What subscribers of logs learn of a transaction."""
    return {"signature": str(record.signature), "err": record.status.error, "logs": record.logs}


def names_any(record: LandedTransaction, keys: frozenset[Pubkey]) -> bool:
    """Whether a transaction names one of these accounts."""
    return not keys.isdisjoint(record.keys)
