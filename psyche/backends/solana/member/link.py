"""What the backend needs of a chain: readings of the run's account, the chain's time, and transactions.

Implementations: `backends.solana.rpc` over RPC endpoints, and the simulator's chain.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from psyche.core.state.messages import Message
from psyche.errors import BackendError
from psyche.wire.ports import Proof


@dataclass(frozen=True, slots=True)
class Reading:
    """The run's account at commitment `confirmed`, as one endpoint shows it.

    Args:
        endpoint: its name, for people.
        slot: the slot that the endpoint's answer is of.
        raw: the account's bytes; not checked.
    """

    endpoint: str
    slot: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class ChainTime:
    """The chain's Clock: what a transaction would see that runs now. `unix` lags behind the wall clock."""

    slot: int
    unix: int


class TransactionExpired(BackendError):
    """The message was not wanted any more before a transaction with it was confirmed, and none can land any more."""


class Link(Protocol):
    """A chain, as one wallet reaches it. Everything retries by itself; BackendError means that it gave up for good."""

    def readings(self) -> AsyncGenerator[Reading, None]:
        """Receive readings of all endpoints as they arrive: not merged, repeated and out of order."""
        ...

    async def get_newest_slot(self) -> int:
        """Ask all endpoints for their slot and return the highest, once one has answered and the others had time to.

        A reading of this slot or a later one is no older than this call (M9).
        """
        ...

    async def get_time(self) -> ChainTime:
        """Return the chain's time as the most advanced endpoint knows it."""
        ...

    async def send(
        self, messages: Sequence[Message], proof: Proof = None, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Carry out messages in one transaction, in their order; return its slot once it is confirmed.

        The same transaction is sent again until it is confirmed or its block height has passed. Then `is_wanted` is
        asked, and if it says yes a new one is signed.

        Raises:
            CoordinatorError: the program refuses one of the messages; nothing has changed.
            TransactionExpired: `is_wanted` said no.
            BackendError: it cannot be sent at all, for example because the wallet is empty.
        """
        ...
