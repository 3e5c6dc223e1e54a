"""The chain: endpoints that lead to it, transactions, and the wallet that pays for them."""

from psyche.telemetry.types.base import WARNING, Event


class EndpointLost(Event):
    """An RPC endpoint does not answer, or not as it should; the others are asked first for a while."""

    endpoint: str
    reason: str


class EndpointBack(Event):
    """An RPC endpoint answers again."""

    endpoint: str


class WatchBegun(Event):
    """An RPC endpoint tells of each change of the run's account from now on."""

    endpoint: str


class WatchLost(Event):
    """An RPC endpoint tells of changes no more; it is asked for the account until it does again."""

    endpoint: str
    reason: str
    again_in_s: float


class WatchRefused(Event, level=WARNING):
    """No subscription could be opened at an RPC endpoint; it is asked again and again instead."""

    message: str


class TransactionSent(Event):
    """A transaction is on its way; `attempt` counts those that expired before it."""

    signature: str
    attempt: int
    bytes: int
    units: int
    priority_lamports: int
    last_height: int


class TransactionConfirmed(Event):
    """An endpoint says that a transaction is on record; a client that sees it there first does not ask."""

    signature: str
    slot: int
    seconds: float
    fee_lamports: int


class TransactionExpired(Event):
    """A transaction did not get onto the chain in time, and cannot any more."""

    signature: str
    attempt: int
    seconds: float


class WalletBalance(Event):
    """What the wallet holds as an epoch begins, and about what an epoch costs."""

    epoch: int
    lamports: int
    epoch_lamports: int


class WalletLow(Event, level=WARNING):
    """The wallet cannot pay for an epoch; once it is empty, the client falls silent."""

    reason: str
