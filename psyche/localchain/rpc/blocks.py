"""Calls about slots, hashes and time, and about the network: one node that nobody votes on, and a faucet's lamports."""

from collections.abc import Callable
from typing import Any, Final

from solders.hash import Hash, ParseHashError

from psyche import __version__
from psyche.localchain.bank import Bank
from psyche.localchain.rpc.context import API_VERSION, METHODS, Handler, check_context, rpc_method, wrap
from psyche.localchain.rpc.errors import InvalidParams
from psyche.localchain.rpc.landed import find_block
from psyche.localchain.rpc.params import Params, check_keys

IDENTITY: Final = "PsycheLoca1Chain111111111111111111111111111"
SLOTS_IN_EPOCH: Final = 432_000
MAX_LOCKED_ACCOUNTS: Final = 128
MAX_LEADERS: Final = 5_000
MAX_REWARDED: Final = 100
LARGEST: Final = 20
_LISTED_SLOTS: Final = 150
_SAMPLE_S: Final = 60
_MAX_SAMPLES: Final = 720
_NODE: Final = {
    **dict.fromkeys(("gossip", "tpu", "tpuQuic", "rpc", "pubsub")),
    "pubkey": IDENTITY, "version": API_VERSION, "featureSet": 0, "shredVersion": 0,
}  # fmt: skip
_NO_INFLATION: Final = {"initial": 0.0, "terminal": 0.0, "taper": 0.0, "foundation": 0.0, "foundationTerm": 0.0}
_SCHEDULE: Final = {  # the usual one, without epochs that grow
    "slotsPerEpoch": SLOTS_IN_EPOCH,
    "leaderScheduleSlotOffset": SLOTS_IN_EPOCH,
    "warmup": False,
    "firstNormalEpoch": 0,
    "firstNormalSlot": 0,
}


def describe_hash(bank: Bank) -> dict[str, Any]:
    """The newest block hash in the form of replies, and until when transactions with it can land."""
    newest = bank.newest_hash
    return {"blockhash": str(newest), "lastValidBlockHeight": bank.get_last_height(newest)}


def _describe_epoch(bank: Bank) -> dict[str, Any]:
    """Where the chain is; all of it is one epoch to programs."""
    return {
        "absoluteSlot": bank.slot,
        "blockHeight": bank.height,
        "epoch": 0,
        "slotIndex": bank.slot,
        "slotsInEpoch": SLOTS_IN_EPOCH,
        "transactionCount": bank.history.count,
    }


def _describe_production(bank: Bank) -> dict[str, Any]:
    """How many slots there were, and how many of them have a block."""
    slots, made = bank.slot - bank.first_slot, len(bank.history.blocks)
    produced = {"byIdentity": {IDENTITY: [slots, made]}, "range": {"firstSlot": bank.first_slot, "lastSlot": bank.slot}}
    return wrap(bank, produced)


# What a chain says whatever it is asked beside the method's name.
_FACTS: Final[dict[str, Callable[[Bank], Any]]] = {
    "getBlockCommitment": lambda _bank: {"commitment": None, "totalStake": 0},
    "getClusterNodes": lambda _bank: [_NODE],
    "getEpochSchedule": lambda _bank: _SCHEDULE,
    "getFirstAvailableBlock": lambda bank: bank.first_slot,
    "getGenesisHash": lambda bank: str(bank.genesis),
    "getHealth": lambda _bank: "ok",
    "getIdentity": lambda _bank: {"identity": IDENTITY},
    "getInflationGovernor": lambda _bank: _NO_INFLATION,
    "getInflationRate": lambda _bank: {"total": 0.0, "validator": 0.0, "foundation": 0.0, "epoch": 0},
    "getMaxRetransmitSlot": lambda bank: bank.slot,
    "getMaxShredInsertSlot": lambda bank: bank.slot,
    "getStakeMinimumDelegation": lambda bank: wrap(bank, 1),
    "getVersion": lambda _bank: {"solana-core": API_VERSION, "feature-set": 0, "psyche": __version__},
    "getVoteAccounts": lambda _bank: {"current": [], "delinquent": []},
    "minimumLedgerSlot": lambda bank: bank.first_slot,
}
# The same of a slot that the caller may ask for. The current slot is the one whose transactions are being carried out.
_FACTS_AT_SLOT: Final[dict[str, Callable[[Bank], Any]]] = {
    "getBlockHeight": lambda bank: bank.height,
    "getBlockProduction": _describe_production,
    "getEpochInfo": _describe_epoch,
    "getLatestBlockhash": lambda bank: wrap(bank, describe_hash(bank)),
    "getSlot": lambda bank: bank.slot,
    "getSlotLeader": lambda _bank: IDENTITY,
    "getTransactionCount": lambda bank: bank.history.count,  # since this chain was started
}


def _make_method(find: Callable[[Bank], Any], *, is_at_slot: bool) -> Handler:
    def tell(bank: Bank, params: Params) -> Any:
        if is_at_slot:
            check_context(bank, params.get_config(0))
        return find(bank)

    return tell


METHODS.update({name: _make_method(find, is_at_slot=False) for name, find in _FACTS.items()})
METHODS.update({name: _make_method(find, is_at_slot=True) for name, find in _FACTS_AT_SLOT.items()})


@rpc_method
def get_block_time(bank: Bank, params: Params) -> int:
    slot = params.take_integer(0)
    return bank.unix if slot == bank.slot else find_block(bank, slot, "confirmed").unix


@rpc_method
def is_blockhash_valid(bank: Bank, params: Params) -> Any:
    text = params.take_text(0)
    check_context(bank, params.get_config(1))
    try:
        found = Hash.from_string(text)
    except ParseHashError as error:
        raise InvalidParams(f"Invalid param: {error}") from None
    return wrap(bank, bank.get_last_height(found) is not None)


@rpc_method
def get_recent_prioritization_fees(bank: Bank, params: Params) -> Any:
    """What others paid to be preferred: nothing, because every transaction finds room."""
    check_keys(params.get(0) or [], MAX_LOCKED_ACCOUNTS)
    return [{"slot": slot, "prioritizationFee": 0} for slot in list(bank.history.blocks)[-_LISTED_SLOTS:]]


@rpc_method
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


@rpc_method
def get_slot_leaders(_bank: Bank, params: Params) -> list[str]:
    params.take_integer(0)
    count = params.take_integer(1)
    if not 1 <= count <= MAX_LEADERS:
        raise InvalidParams(f"Invalid limit; max {MAX_LEADERS}")
    return [IDENTITY] * count


@rpc_method
def get_inflation_reward(_bank: Bank, params: Params) -> list[None]:
    return [None for _ in check_keys(params.take(0), MAX_REWARDED)]


@rpc_method
def get_supply(bank: Bank, params: Params) -> Any:
    """All lamports; those of the faucet do not circulate."""
    config = params.get_config(0)
    check_context(bank, config)
    circulating, kept = sum(bank.get_lamports(key) for key in bank.accounts), bank.get_lamports(bank.faucet)
    listed = [] if config.get_flag("excludeNonCirculatingAccountsList") else [str(bank.faucet)]
    sums = {"total": circulating + kept, "circulating": circulating, "nonCirculating": kept}
    return wrap(bank, {**sums, "nonCirculatingAccounts": listed})


@rpc_method
def get_largest_accounts(bank: Bank, params: Params) -> Any:
    """The accounts with most lamports; of the faucet too, unless only circulating ones are wanted."""
    config = params.get_config(0)
    check_context(bank, config)
    kind = config.get_choice("filter", ("circulating", "nonCirculating"), "")
    keys = [key for key in bank.accounts if kind != "nonCirculating"] + [bank.faucet] * (kind != "circulating")
    held = sorted(((bank.get_lamports(key), str(key)) for key in keys), reverse=True)[:LARGEST]
    return wrap(bank, [{"address": key, "lamports": lamports} for lamports, key in held if lamports])
