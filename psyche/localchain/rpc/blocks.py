"""Calls about slots, hashes, time, and the chain as a whole."""

from functools import partial
from typing import Any, Final

from solders.hash import Hash, ParseHashError

from psyche import __version__
from psyche.localchain.bank import Bank
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.context import API_VERSION, ChainView, check_context, wrap
from psyche.localchain.rpc.errors import InvalidParams
from psyche.localchain.rpc.landed import find_block
from psyche.localchain.rpc.params import Params, check_keys

SLOTS_IN_EPOCH: Final = 432_000
MAX_LOCKED_ACCOUNTS: Final = 128
_LISTED_SLOTS: Final = 150
_SAMPLE_S: Final = 60
_MAX_SAMPLES: Final = 720


def make_block_methods(bank: Bank) -> dict[str, Method]:
    """The methods on a chain."""
    return {
        "getBlockHeight": partial(get_block_height, bank),
        "getBlockTime": partial(get_block_time, bank),
        "getEpochInfo": partial(get_epoch_info, bank),
        "getEpochSchedule": get_epoch_schedule,
        "getFirstAvailableBlock": lambda _params: bank.first_slot,
        "getGenesisHash": lambda _params: str(bank.genesis),
        "getHealth": lambda _params: "ok",
        "getLatestBlockhash": partial(get_latest_blockhash, bank),
        "getRecentPerformanceSamples": partial(get_recent_performance_samples, bank),
        "getRecentPrioritizationFees": partial(get_recent_prioritization_fees, bank),
        "getSlot": partial(get_current_slot, bank),
        "getTransactionCount": partial(get_transaction_count, bank),
        "getVersion": lambda _params: {"solana-core": API_VERSION, "feature-set": 0, "psyche": __version__},
        "isBlockhashValid": partial(is_blockhash_valid, bank),
    }


def get_current_slot(bank: ChainView, params: Params) -> int:
    """The slot whose transactions are being carried out; all commitments read the same state."""
    check_context(bank, params.get_config(0))
    return bank.slot


def get_block_height(bank: ChainView, params: Params) -> int:
    """The number of slots that were not skipped."""
    check_context(bank, params.get_config(0))
    return bank.height


def get_block_time(bank: Bank, params: Params) -> int:
    """When a slot was, by its Clock."""
    slot = params.take_integer(0)
    return bank.unix if slot == bank.slot else find_block(bank, slot, "confirmed").unix


def get_latest_blockhash(bank: ChainView, params: Params) -> Any:
    """The hash for new transactions, and until when they can land."""
    check_context(bank, params.get_config(0))
    return wrap(bank, describe_hash(bank))


def describe_hash(bank: ChainView) -> dict[str, Any]:
    """The newest block hash in the form of replies."""
    newest = bank.newest_hash
    return {"blockhash": str(newest), "lastValidBlockHeight": bank.get_last_height(newest)}


def is_blockhash_valid(bank: Bank, params: Params) -> Any:
    """Whether a transaction with this hash can still land."""
    text = params.take_text(0)
    check_context(bank, params.get_config(1))
    try:
        found = Hash.from_string(text)
    except ParseHashError as error:
        raise InvalidParams(f"Invalid param: {error}") from None
    return wrap(bank, bank.get_last_height(found) is not None)


def get_recent_prioritization_fees(bank: ChainView, params: Params) -> Any:
    """What others paid to be preferred: nothing, because every transaction finds room."""
    check_keys(params.get(0) or [], MAX_LOCKED_ACCOUNTS)
    return [{"slot": slot, "prioritizationFee": 0} for slot in list(bank.history.blocks)[-_LISTED_SLOTS:]]


def get_epoch_info(bank: Bank, params: Params) -> Any:
    """Where the chain is; all of it is one epoch to programs."""
    check_context(bank, params.get_config(0))
    return {
        "absoluteSlot": bank.slot,
        "blockHeight": bank.height,
        "epoch": 0,
        "slotIndex": bank.slot,
        "slotsInEpoch": SLOTS_IN_EPOCH,
        "transactionCount": bank.history.count,
    }


def get_epoch_schedule(_params: Params) -> Any:
    """The usual schedule, without epochs that grow."""
    return {
        "slotsPerEpoch": SLOTS_IN_EPOCH,
        "leaderScheduleSlotOffset": SLOTS_IN_EPOCH,
        "warmup": False,
        "firstNormalEpoch": 0,
        "firstNormalSlot": 0,
    }


def get_transaction_count(bank: Bank, params: Params) -> int:
    """How many transactions have landed since this chain was started."""
    check_context(bank, params.get_config(0))
    return bank.history.count


def get_recent_performance_samples(bank: Bank, params: Params) -> Any:
    """How many slots there were in the last minute, as far as block times tell."""
    if params.get(0) is not None:
        params.take_integer(0, _MAX_SAMPLES)
    recent = 1 + sum(1 for block in bank.history.blocks.values() if block.unix > bank.unix - _SAMPLE_S)
    return [
        {
            "slot": bank.slot,
            "numSlots": recent,
            "numTransactions": bank.history.count,
            "numNonVoteTransactions": bank.history.count,
            "samplePeriodSecs": _SAMPLE_S,
        }
    ]
