"""The refusals of the state machine: one class per rule, so that callers can tell them apart.

A refused message leaves every byte of the state unchanged (T2). `REFUSALS` gives each class its number.
"""

from typing import Final

from psyche.errors import PsycheError


class CoordinatorError(PsycheError):
    """Base class of all refusals of the coordinator: a plain message, and the rules that the request breaks.

    `rule` has their names (`docs/protocol-reference.md`), empty where no single one says it: "M1", or "W4, T7".
    """

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message, rule)
        self.message = message
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.message} ({self.rule})" if self.rule else self.message

    @property
    def code(self) -> str:
        """The name of the error on the wire: the class name."""
        return type(self).__name__

    @property
    def number(self) -> int:
        """The number of the error on a chain, where it is added to 6,000."""
        return _NUMBERS[type(self)]


class Halted(CoordinatorError):
    """The run is uninitialized, finished or paused."""


class InvalidRunState(CoordinatorError):
    """The message is not allowed in the current run state."""


class WrongRound(CoordinatorError):
    """The message names an (epoch, height) other than the running one (T7)."""


class NoActiveRound(CoordinatorError):
    """The requested round does not exist yet or no longer exists."""


class UnknownMember(CoordinatorError):
    """There is no such member, or the message is not signed by one of its keys."""


class InvalidWitness(CoordinatorError):
    """The sender is not an elected witness, or its record breaks a rule of W4."""


class InvalidBloom(CoordinatorError):
    """The bloom filter has the wrong length, or more bits set than its items can set (W4)."""


class DuplicateWitness(CoordinatorError):
    """The member has already reported on this round, or is ready already (K3)."""


class WitnessesFull(CoordinatorError):
    """All witness records of the round are in."""


class DigestMismatch(CoordinatorError):
    """The digest differs from the one on record (S8, S10)."""


class TooManyCandidates(CoordinatorError):
    """A fifth digest competes for the start of the run (S8)."""


class InvalidHealthCheck(CoordinatorError):
    """The record does not support the accusation (H4)."""


class InvalidCheckpoint(CoordinatorError):
    """The checkpoint cannot be recorded as a source (S10)."""


class InvalidWithdraw(CoordinatorError):
    """The sender cannot withdraw: the member is not Healthy, or there is no join to take back (M4)."""


class InvalidCommitteeSelection(CoordinatorError):
    """The numbers of an election contradict each other."""


class CannotResume(CoordinatorError):
    """The run cannot be resumed: it is neither paused nor new."""


class InvalidJoin(CoordinatorError):
    """The join breaks a rule; the message names it."""


class ClientsFull(CoordinatorError):
    """No slot of the registry is free."""


class StakeTooLow(CoordinatorError):
    """The slot's stake is below the run's `min_stake` (M5)."""


class Banned(CoordinatorError):
    """The signer's slot is banned for the run (M6)."""


class InvalidEvidence(CoordinatorError):
    """The report of equivocation names a member that is ejected already."""


class CannotUpdate(CoordinatorError):
    """The setting cannot change while the run is going (P9)."""


class InvalidCollection(CoordinatorError):
    """The requested earnings cannot be collected (M11)."""


class ConfigRefused(CoordinatorError):
    """The run's configuration breaks a rule; the message names key and rule."""


# A new class takes the next free number, and none is ever used again: programs on a chain hold them.
REFUSALS: Final[dict[int, type[CoordinatorError]]] = {
    0: Halted,
    1: InvalidRunState,
    2: WrongRound,
    3: NoActiveRound,
    4: UnknownMember,
    5: InvalidWitness,
    6: InvalidBloom,
    7: DuplicateWitness,
    8: WitnessesFull,
    9: DigestMismatch,
    10: TooManyCandidates,
    11: InvalidHealthCheck,
    12: InvalidCheckpoint,
    13: InvalidWithdraw,
    14: InvalidCommitteeSelection,
    15: CannotResume,
    16: InvalidJoin,
    17: ClientsFull,
    18: StakeTooLow,
    19: Banned,
    20: InvalidEvidence,
    21: CannotUpdate,
    22: InvalidCollection,
    23: ConfigRefused,
}
_NUMBERS: Final = {kind: number for number, kind in REFUSALS.items()}
