"""Calls about nodes, votes, leaders, supply and inflation: one node that nobody votes on, and a faucet's lamports."""

from functools import partial
from typing import Any, Final

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.context import API_VERSION, check_context, wrap
from psyche.localchain.rpc.errors import InvalidParams
from psyche.localchain.rpc.params import Params, check_keys

IDENTITY: Final = "PsycheLoca1Chain111111111111111111111111111"
MAX_LEADERS: Final = 5_000
MAX_REWARDED: Final = 100
LARGEST: Final = 20
_NODE: Final = {
    **dict.fromkeys(("gossip", "tpu", "tpuQuic", "rpc", "pubsub")),
    "pubkey": IDENTITY, "version": API_VERSION, "featureSet": 0, "shredVersion": 0,
}  # fmt: skip
_INFLATION: Final = {"initial": 0.0, "terminal": 0.0, "taper": 0.0, "foundation": 0.0, "foundationTerm": 0.0}


def make_network_methods(bank: Bank) -> dict[str, Method]:
    """The methods on a chain."""
    return {
        "getBlockCommitment": lambda _params: {"commitment": None, "totalStake": 0},
        "getBlockProduction": partial(get_block_production, bank),
        "getClusterNodes": lambda _params: [_NODE],
        "getIdentity": lambda _params: {"identity": IDENTITY},
        "getInflationGovernor": lambda _params: _INFLATION,
        "getInflationRate": lambda _params: {"total": 0.0, "validator": 0.0, "foundation": 0.0, "epoch": 0},
        "getInflationReward": lambda params: [None for _ in check_keys(params.take(0), MAX_REWARDED)],
        "getLargestAccounts": partial(get_largest_accounts, bank),
        "getMaxRetransmitSlot": lambda _params: bank.slot,
        "getMaxShredInsertSlot": lambda _params: bank.slot,
        "getSlotLeader": partial(get_slot_leader, bank),
        "getSlotLeaders": get_slot_leaders,
        "getStakeMinimumDelegation": lambda _params: wrap(bank, 1),
        "getSupply": partial(get_supply, bank),
        "getVoteAccounts": lambda _params: {"current": [], "delinquent": []},
        "minimumLedgerSlot": lambda _params: bank.first_slot,
    }


def get_slot_leader(bank: Bank, params: Params) -> str:
    """Who makes blocks: always this chain."""
    check_context(bank, params.get_config(0))
    return IDENTITY


def get_slot_leaders(params: Params) -> list[str]:
    """Who makes the blocks of so many slots."""
    params.take_integer(0)
    count = params.take_integer(1)
    if not 1 <= count <= MAX_LEADERS:
        raise InvalidParams(f"Invalid limit; max {MAX_LEADERS}")
    return [IDENTITY] * count


def get_block_production(bank: Bank, params: Params) -> Any:
    """How many slots there were, and how many of them have a block."""
    check_context(bank, params.get_config(0))
    slots, made = bank.slot - bank.first_slot, len(bank.history.blocks)
    produced = {"byIdentity": {IDENTITY: [slots, made]}, "range": {"firstSlot": bank.first_slot, "lastSlot": bank.slot}}
    return wrap(bank, produced)


def get_supply(bank: Bank, params: Params) -> Any:
    """All lamports; those of the faucet do not circulate."""
    config = params.get_config(0)
    check_context(bank, config)
    circulating, kept = sum(bank.get_lamports(key) for key in bank.accounts), bank.get_lamports(bank.faucet)
    listed = [] if config.get_flag("excludeNonCirculatingAccountsList") else [str(bank.faucet)]
    sums = {"total": circulating + kept, "circulating": circulating, "nonCirculating": kept}
    return wrap(bank, {**sums, "nonCirculatingAccounts": listed})


def get_largest_accounts(bank: Bank, params: Params) -> Any:
    """The accounts with most lamports; of the faucet too, unless only circulating ones are wanted."""
    config = params.get_config(0)
    check_context(bank, config)
    kind = config.get_choice("filter", ("circulating", "nonCirculating"), "")
    keys = [key for key in bank.accounts if kind != "nonCirculating"] + [bank.faucet] * (kind != "circulating")
    held = sorted(((bank.get_lamports(key), str(key)) for key in keys), reverse=True)[:LARGEST]
    return wrap(bank, [{"address": key, "lamports": lamports} for lamports, key in held if lamports])
