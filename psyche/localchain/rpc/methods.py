"""What calls over HTTP do: each module of this folder has the methods of its subject."""

from functools import partial
from typing import Final

from psyche.localchain.bank import Bank
from psyche.localchain.rpc import accounts, blocks, landed, transactions
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.context import METHODS

SUBJECTS: Final = (accounts, blocks, landed, transactions)  # once imported, each has its methods in the table


def make_methods(bank: Bank) -> dict[str, Method]:
    return {name: partial(handler, bank) for name, handler in METHODS.items()}
