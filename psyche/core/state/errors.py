"""The refusals of the state machine: one class per rule, so that callers can tell them apart.

A refused message leaves every byte of the state unchanged (T2).
"""

from typing import ClassVar, Final

from psyche.errors import PsycheError


class CoordinatorError(PsycheError):
    """Base class of all refusals of the coordinator: a plain message, and the rules that the request breaks.

    `rule` has their names (`docs/protocol-reference.md`), empty where no single one says it: "M1", or "W4, T7".
    `number` is that of the error on a chain, where it is added to 6,000. A new class takes the next free one, and none
    is ever used again: programs on a chain hold them.
    """

    number: ClassVar[int]

    def __init_subclass__(cls, number: int) -> None:
        cls.number = number
        REFUSALS[number] = cls

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message, rule)
        self.message = message
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.message} ({self.rule})" if self.rule else self.message

    @property
    def code(self) -> str:
        """The name of the error on the wire."""
        return type(self).__name__


REFUSALS: Final[dict[int, type[CoordinatorError]]] = {}  # by number


class Halted(CoordinatorError, number=0):
    """The run is uninitialized, finished or paused."""


class InvalidRunState(CoordinatorError, number=1):
    """The message is not allowed in the current run state."""


class WrongRound(CoordinatorError, number=2):
    """The message names an (epoch, height) other than the running one (T7)."""


class NoActiveRound(CoordinatorError, number=3):
    """The requested round does not exist yet or no longer exists."""


class UnknownMember(CoordinatorError, number=4):
    """There is no such member, or the message is not signed by one of its keys."""


class InvalidWitness(CoordinatorError, number=5):
    """The sender is not an elected witness, or its record breaks a rule of W4."""


class InvalidBloom(CoordinatorError, number=6):
    """The bloom filter has the wrong length, or more bits set than its items can set (W4)."""


class DuplicateWitness(CoordinatorError, number=7):
    """The member has already reported on this round, or is ready already (K3)."""


class WitnessesFull(CoordinatorError, number=8):
    """All witness records of the round are in."""


class DigestMismatch(CoordinatorError, number=9):
    """The digest differs from the one on record (S8, S10)."""


class TooManyCandidates(CoordinatorError, number=10):
    """A fifth digest competes for the start of the run (S8)."""


class InvalidHealthCheck(CoordinatorError, number=11):
    """The record does not support the accusation (H4)."""


class InvalidCheckpoint(CoordinatorError, number=12):
    """The checkpoint cannot be recorded as a source (S10)."""


class InvalidWithdraw(CoordinatorError, number=13):
    """The sender cannot withdraw: the member is not Healthy, or there is no join to take back (M4)."""


class InvalidCommitteeSelection(CoordinatorError, number=14):
    """The numbers of an election contradict each other."""


class CannotResume(CoordinatorError, number=15):
    """The run cannot be resumed: it is neither paused nor new."""


class InvalidJoin(CoordinatorError, number=16):
    """The join breaks a rule; the message names it."""


class ClientsFull(CoordinatorError, number=17):
    """No slot of the registry is free."""


class StakeTooLow(CoordinatorError, number=18):
    """The slot's stake is below the run's `min_stake` (M5)."""


class Banned(CoordinatorError, number=19):
    """The signer's slot is banned for the run (M6)."""


class InvalidEvidence(CoordinatorError, number=20):
    """The report of equivocation names a member that is ejected already."""


class CannotUpdate(CoordinatorError, number=21):
    """The setting cannot change while the run is going (P9)."""


class InvalidCollection(CoordinatorError, number=22):
    """The requested earnings cannot be collected (M11)."""


class ConfigRefused(CoordinatorError, number=23):
    """The run's configuration breaks a rule; the message names key and rule."""


class InvalidAudit(CoordinatorError, number=24):
    """The sender is no verifier of this round, or what it reports breaks a rule of V9."""


class InvalidJudgement(CoordinatorError, number=25):
    """The challenge is not open for its jury now, or the sender is not in the jury (V12)."""
