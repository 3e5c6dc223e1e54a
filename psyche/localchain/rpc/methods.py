"""What calls over HTTP do: one function for each method, by name."""

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.accounts import make_account_methods
from psyche.localchain.rpc.blocks import make_block_methods
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.landed import make_landed_methods
from psyche.localchain.rpc.network import make_network_methods
from psyche.localchain.rpc.tokens import make_token_methods
from psyche.localchain.rpc.transactions import make_transaction_methods


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
