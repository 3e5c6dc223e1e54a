"""What calls over HTTP do: one function for each method, by name."""

from psyche.localchain.bank import Bank
from psyche.localchain.calls import Method
from psyche.localchain.methods.accounts import make_account_methods
from psyche.localchain.methods.blocks import make_block_methods
from psyche.localchain.methods.landed import make_landed_methods
from psyche.localchain.methods.network import make_network_methods
from psyche.localchain.methods.tokens import make_token_methods
from psyche.localchain.methods.transactions import make_transaction_methods


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
