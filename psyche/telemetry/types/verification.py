"""Verification: audits, doubts and challenges.

A member is named by the first 16 digits of its key (`key`; in challenges `target` and `accuser`), besides by its number
in the epoch.
"""

from psyche.core.committee.verdicts import Verdict
from psyche.core.state.enums import AuditReason
from psyche.telemetry.types.base import INFO, WARNING, Event


class ArithmeticOff(Event, level=WARNING):
    """A member's calibration row is too far from those of its numeric class: in this epoch it judges nobody (V6)."""

    member: int
    epoch: int
    key: str
    distance: float


class Audited(Event):
    """The client has recomputed a piece of a member's batch of round `height`, or a row of its `report`."""

    height: int
    target: int
    key: str
    piece: int
    report: bool = False
    distance: float
    tolerance: float
    verdict: Verdict


class NotAudited(Event):
    """The client, as a verifier or juror, cannot recompute a member's work of round `height`; `reason` says why."""

    height: int
    target: int
    reason: str


class RoundAudited(Event):
    """The client has recomputed a member's whole round `height` (V11); -1: not known. `reason` None: nothing is said.

    `agreement` is that of the payload's signs with the gradient, `link_distance` how far what the opened momentum grew
    by is from it.
    """

    height: int
    target: int
    agreement: float
    link_distance: float
    reason: AuditReason | None


class AuditsReported(Event):
    """The client reports its audits of a round, and puts on record whom it doubts, if anybody."""

    epoch: int
    height: int
    audits: int
    failed: int
    target: int | None = None
    reason: AuditReason = AuditReason.NONE


class Judged(Event):
    """As a juror the client has recomputed what a member is accused of; `guilty` None: it cannot tell."""

    height: int
    target: int
    piece: int
    reason: AuditReason
    distance: float
    guilty: bool | None


class Challenged(Event, level=INFO):
    """A verifier accuses a member of its work of round `height`: a jury will judge it."""

    epoch: int
    height: int
    target: str
    accuser: str
    piece: int
    reason: AuditReason


class ChallengeEnded(Event, level=INFO):
    """A challenge is over; `outcome` says how in words."""

    epoch: int
    height: int
    target: str
    accuser: str
    reason: AuditReason
    guilty: int
    innocent: int
    outcome: str


class EvidenceKept(Event):
    """What a member of round `height` was judged by is in a file."""

    path: str
    member: int
    height: int
