"""Calls that send transactions, and try them."""

import base64
import binascii
from typing import Any, Final

import base58
from solders.message import Message, MessageV0, from_bytes_versioned
from solders.transaction import VersionedTransaction

from psyche.localchain.bank import Bank
from psyche.localchain.machine import Execution
from psyche.localchain.rpc.blocks import describe_hash
from psyche.localchain.rpc.context import check_context, rpc_method, wrap
from psyche.localchain.rpc.encodings import Form, check_reply_size, describe_account
from psyche.localchain.rpc.errors import (
    PREFLIGHT_FAILED,
    SIGNATURE_FAILED,
    CallError,
    InvalidParams,
    describe_transaction_error,
)
from psyche.localchain.rpc.landed import parse_inner
from psyche.localchain.rpc.params import COMMITMENTS, Options, Params
from psyche.localchain.transactions import (
    compute_fee,
    take_message,
)

TRANSACTION_BYTES: Final = 1_232  # what a packet of the chain's network has room for
MAX_SHOWN_ACCOUNTS: Final = 128
_ENCODED_BYTES: Final = {"base64": 1_644, "base58": 1_683}
_TYPE: Final = "solana_transaction::versioned::VersionedTransaction"
_SENT_AS: Final = ("base58", "base64")


# --- sending ------------------------------------------------------------------------------------------------


@rpc_method
def send_transaction(bank: Bank, params: Params) -> str:
    """Carry out a transaction. Without preflight nobody learns here that it was refused, as on the chain itself."""
    config = params.get_config(1)
    transaction = take_transaction(params, config)
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


def take_transaction(params: Params, config: Options) -> VersionedTransaction:
    return read_transaction(decode_text(params.take_text(0), config.get_choice("encoding", _SENT_AS, "base58")))


def decode_text(text: str, encoding: str) -> bytes:
    """Decode a transaction's or a message's text.

    Raises:
        InvalidParams: it is too large, or not of this encoding.
    """
    most = _ENCODED_BYTES[encoding]
    if len(text) > most:
        raise InvalidParams(
            f"{encoding} encoded {_TYPE} too large: {len(text)} bytes (max: encoded/raw {most}/{TRANSACTION_BYTES})"
        )
    try:
        raw = base64.b64decode(text, validate=True) if encoding == "base64" else base58.b58decode(text)
    except (binascii.Error, ValueError) as error:
        raise InvalidParams(f"invalid {encoding} encoding: {error}") from None
    if len(raw) > TRANSACTION_BYTES:
        raise InvalidParams(f"decoded {_TYPE} too large: {len(raw)} bytes (max: {TRANSACTION_BYTES} bytes)")
    return raw


def read_transaction(raw: bytes) -> VersionedTransaction:
    """Read a transaction with a legacy message or one of version 0.

    Raises:
        InvalidParams: it is none, or of a version that the chain does not know.
    """
    try:
        transaction = VersionedTransaction.from_bytes(raw)
    except ValueError as error:
        raise InvalidParams(f"failed to deserialize {_TYPE}: {error}") from None
    if not isinstance(transaction.message, Message | MessageV0):
        version = transaction.version()
        raise InvalidParams(
            f"failed to deserialize {_TYPE}: invalid value: integer `{version}`, expected a valid transaction "
            "message version"
        )
    count = len(transaction.signatures)
    if not count or count != transaction.message.header.num_required_signatures:
        raise InvalidParams("invalid transaction: Transaction failed to sanitize accounts offsets correctly")
    return transaction


def _check_signatures(transaction: VersionedTransaction) -> None:
    if not all(transaction.verify_with_results()):
        raise CallError(SIGNATURE_FAILED, "Transaction signature verification failure")


def _try(bank: Bank, transaction: VersionedTransaction, *, is_verified: bool) -> Execution:
    refusal = bank.find_refusal(transaction)
    return bank.simulate(transaction, is_verified=is_verified) if refusal is None else Execution(refusal)


@rpc_method
def simulate_transaction(bank: Bank, params: Params) -> Any:
    config = params.get_config(1)
    transaction = take_transaction(params, config)
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
        trial = Execution(refusal)
    described = _describe_trial(bank, transaction, trial)
    described["accounts"] = _describe_accounts(bank, config, trial)
    if config.get_flag("innerInstructions") and trial.inner is not None:
        described["innerInstructions"] = parse_inner(trial.inner, bank.list_keys(take_message(transaction)))
    if is_replaced:
        described["replacementBlockhash"] = describe_hash(bank)
    return wrap(bank, described)


def _describe_trial(bank: Bank, transaction: VersionedTransaction, trial: Execution) -> dict[str, Any]:
    return {
        "accounts": None,
        "err": trial.error,
        "innerInstructions": None,
        "loadedAccountsDataSize": bank.compute_loaded_bytes(take_message(transaction)),
        "logs": trial.logs,
        "replacementBlockhash": None,
        "returnData": trial.returned,
        "unitsConsumed": trial.units,
    }


def _describe_accounts(bank: Bank, config: Options, trial: Execution) -> list[Any] | None:
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
    return [describe_account(account, form, bank.get_account) for account in accounts]


@rpc_method
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
