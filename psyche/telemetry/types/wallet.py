"""The wallet of a client on a chain."""

from psyche.telemetry.types.base import WARNING, Event


class WalletBalance(Event):
    """What the wallet holds as an epoch begins, and about what an epoch costs."""

    epoch: int
    lamports: int
    epoch_lamports: int


class WalletLow(Event, level=WARNING):
    """The wallet cannot pay for an epoch; once it is empty, the client falls silent."""

    reason: str
