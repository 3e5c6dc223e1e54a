"""What calls over HTTP do: one function for each method, by name."""

from functools import partial

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.accounts import get_account_info, get_balance, make_account_methods
from psyche.localchain.rpc.blocks import (
    get_block_height,
    get_current_slot,
    get_latest_blockhash,
    get_recent_prioritization_fees,
    make_block_methods,
)
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.context import ChainView
from psyche.localchain.rpc.landed import get_signature_statuses, get_transaction, make_landed_methods
from psyche.localchain.rpc.network import make_network_methods
from psyche.localchain.rpc.tokens import make_token_methods
from psyche.localchain.rpc.transactions import make_transaction_methods, simulate_transaction


def make_methods(bank: Bank) -> dict[str, Method]:
    """The methods on a chain."""
    return {
        **make_account_methods(bank),
        **make_block_methods(bank),
        **make_landed_methods(bank),
        **make_network_methods(bank),
        **make_token_methods(bank),
        **make_transaction_methods(bank),
    }


def make_member_methods(view: ChainView) -> dict[str, Method]:
    """What a member of a run asks for, of any view; what takes its transactions is not here."""
    return {
        "getAccountInfo": partial(get_account_info, view),
        "getBalance": partial(get_balance, view),
        "getBlockHeight": partial(get_block_height, view),
        "getGenesisHash": lambda _params: str(view.genesis),
        "getLatestBlockhash": partial(get_latest_blockhash, view),
        "getRecentPrioritizationFees": partial(get_recent_prioritization_fees, view),
        "getSignatureStatuses": partial(get_signature_statuses, view),
        "getSlot": partial(get_current_slot, view),
        "getTransaction": partial(get_transaction, view),
        "simulateTransaction": partial(simulate_transaction, view),
    }
