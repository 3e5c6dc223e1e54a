"""What a member learns of a chain: readings of the run's account, the chain's time, and what became of a message."""

from dataclasses import dataclass

from psyche.errors import BackendError


@dataclass(frozen=True, slots=True)
class Reading:
    """The run's account at commitment `confirmed`, as one endpoint shows it."""

    endpoint: str  # its name, for people
    slot: int  # the slot that the endpoint's answer is of
    raw: bytes  # the account's bytes; not checked


@dataclass(frozen=True, slots=True)
class ChainTime:
    """The chain's Clock: what a transaction would see that runs now. `unix` lags behind the wall clock."""

    slot: int
    unix: int


class TransactionExpired(BackendError):
    """The message was not wanted any more before a transaction with it was confirmed, and none can land any more."""
