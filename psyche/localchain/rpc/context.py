"""What many methods do first and last: check the caller's wishes, and say of which slot the reply is."""

from collections.abc import Callable
from typing import Any, Final

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.errors import BEHIND, CallError
from psyche.localchain.rpc.params import Options, Params

API_VERSION: Final = "3.0.0"  # of the servers whose calls these are
Handler = Callable[[Bank, Params], Any]
METHODS: Final[dict[str, Handler]] = {}  # what calls over HTTP do, by name


def rpc_method(function: Handler) -> Handler:
    """Let a function answer the calls that are named like it: `get_slot` those of `getSlot`."""
    first, *rest = function.__name__.split("_")
    METHODS[first + "".join(map(str.title, rest))] = function
    return function


def check_context(bank: Bank, config: Options) -> None:
    """Check commitment and minContextSlot.

    Raises:
        CallError: the chain has not reached that slot.
    """
    config.get_commitment()
    least = config.get_integer("minContextSlot")
    if least is not None and least > bank.slot:
        raise CallError(BEHIND, "Minimum context slot has not been reached", {"contextSlot": bank.slot})


def wrap(bank: Bank, value: Any) -> dict[str, Any]:
    return {"context": {"apiVersion": API_VERSION, "slot": bank.slot}, "value": value}
