"""What the state machine refuses, one class per rule, so that callers can tell them apart.

A message that raises leaves every byte of the state as it was (T2).
"""

from psyche.errors import PsycheError


class CoordinatorError(PsycheError):
    """Base of every refusal of the coordinator."""

    @property
    def code(self) -> str:
        """The name under which the error crosses a wire."""
        return type(self).__name__


class Halted(CoordinatorError):
    """The run is uninitialized, finished or paused."""


class InvalidRunState(CoordinatorError):
    """The message does not belong to the present run state."""


class WrongRound(CoordinatorError):
    """The message names another (epoch, height) than the running one (T7)."""


class NoActiveRound(CoordinatorError):
    """The round asked for does not exist (yet, or any more)."""


class UnknownMember(CoordinatorError):
    """No such member, or not its key."""


class InvalidWitness(CoordinatorError):
    """The sender is not an elected witness, or its record breaks a rule of W4."""


class InvalidBloom(CoordinatorError):
    """The bloom filter has more bits than its items can set (W4)."""


class DuplicateWitness(CoordinatorError):
    """The member's record of this round is already there (K3)."""


class WitnessesFull(CoordinatorError):
    """All witness records of the round are taken."""


class DigestMismatch(CoordinatorError):
    """The digest differs from the one on record (S8, S10)."""


class TooManyCandidates(CoordinatorError):
    """A fifth digest competes for the start of the run (S8)."""


class InvalidHealthCheck(CoordinatorError):
    """The accusation is not borne out by the record (H4)."""


class InvalidCheckpoint(CoordinatorError):
    """The checkpoint cannot stand as a source (S10)."""


class InvalidWithdraw(CoordinatorError):
    """The member cannot withdraw: it is not Healthy."""


class InvalidCommitteeSelection(CoordinatorError):
    """An election with impossible numbers."""


class CannotResume(CoordinatorError):
    """Resume is possible only when Paused."""


class InvalidJoin(CoordinatorError):
    """The join breaks a rule; the message names it."""


class ClientsFull(CoordinatorError):
    """No slot of the registry is free."""


class StakeTooLow(CoordinatorError):
    """The slot's stake is below the run's `min_stake` (M5)."""


class Banned(CoordinatorError):
    """The signer's slot is banned for the run (M6)."""


class InvalidEvidence(CoordinatorError):
    """The report of equivocation names nobody it could eject."""


class CannotUpdate(CoordinatorError):
    """What is to change stays as it is while the run goes on (P9)."""


class InvalidCollection(CoordinatorError):
    """The earnings asked for are not there (M11)."""


class ConfigRefused(CoordinatorError):
    """The run's configuration breaks a rule; the message names key and rule."""
