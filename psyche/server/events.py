"""What the journal records: one event per change of the run's state, enough to make the change again.

`Event.process` is the only way in which the server changes a state, live and in replay alike, so a
replayed journal gives the same bytes (K1, K2).
"""

from dataclasses import replace
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from psyche.core import transitions
from psyche.core.layout import decode_witness, encode_witness
from psyche.core.messages import WitnessMessage
from psyche.core.state import Checkpoint, CheckpointKind, Coordinator
from psyche.errors import WireError


class EventKind(IntEnum):
    """Kinds of records; the numbers are the journal's and never change their meaning."""

    TICK = 1
    JOIN = 2
    LEAVE = 3
    WITHDRAW = 4
    WARMUP_WITNESS = 5
    WITNESS = 6
    HEALTH_CHECK = 7
    CHECKPOINT = 8
    EQUIVOCATION = 9
    PAUSE = 10
    RESUME = 11
    RECOVERED = 12
    RECLAIM_SLOT = 13
    RATES = 14


class EventBase(msgspec.Struct, frozen=True, array_like=True):
    """An event; the order of its fields is that of the record."""

    def process(self, state: Coordinator, now: int) -> None:
        """Change `state` at `now` (unix seconds) as the event says.

        Raises:
            CoordinatorError: the state machine refuses; no byte changed.
        """
        raise NotImplementedError


class Tick(EventBase, frozen=True, array_like=True):
    """The clock went on; `entropy` is 32 bytes from the operating system (E5)."""

    entropy: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.tick(state, now, now, self.entropy)  # E1: on TCP the slot is the clock


class Join(EventBase, frozen=True, array_like=True):
    """M1, M2."""

    signer: bytes
    p2p: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.join(state, now, self.signer, self.p2p)


class Leave(EventBase, frozen=True, array_like=True):
    """M4."""

    signer: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.leave(state, now, self.signer)


class Withdraw(EventBase, frozen=True, array_like=True):
    """M4; by the member itself, or by the server for a connection that is lost (H6)."""

    sender: bytes
    epoch: int
    member: int

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.withdraw(state, now, self.sender, self.epoch, self.member)


class WarmupWitness(EventBase, frozen=True, array_like=True):
    """S8."""

    sender: bytes
    epoch: int
    member: int
    digest: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.warmup_witness(state, now, self.sender, self.epoch, self.member, self.digest)


class Witness(EventBase, frozen=True, array_like=True):
    """W4; the message in canonical bytes, its metadata left out because it is never stored."""

    sender: bytes
    message: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.witness(state, now, self.sender, decode_witness(self.message))


class HealthCheck(EventBase, frozen=True, array_like=True):
    """H4."""

    sender: bytes
    epoch: int
    height: int
    member: int

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.health_check(state, now, self.sender, self.epoch, self.height, self.member)


class SetCheckpoint(EventBase, frozen=True, array_like=True):
    """S10."""

    sender: bytes
    epoch: int
    digest: bytes
    kind: int
    name: str
    revision: str | None

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        source = Checkpoint(CheckpointKind(self.kind), self.name, self.revision)
        transitions.checkpoint(state, now, self.sender, self.epoch, self.digest, source)


class Equivocation(EventBase, frozen=True, array_like=True):
    """R7; the signatures were checked before the event was made."""

    epoch: int
    height: int
    member: int

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.report_equivocation(state, now, self.epoch, self.height, self.member)


class Pause(EventBase, frozen=True, array_like=True):
    """P4; the op id makes a resend harmless (K3)."""

    op_id: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.pause(state, now)


class Resume(EventBase, frozen=True, array_like=True):
    """P4."""

    op_id: bytes

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.resume(state, now)


class Recovered(EventBase, frozen=True, array_like=True):
    """The server was away for `gap_s` (K2)."""

    gap_s: int

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.process_recovery(state, now, self.gap_s)


class ReclaimSlot(EventBase, frozen=True, array_like=True):
    """No slot was free, so an idle one is taken back (M4)."""

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        transitions.reclaim_slot(state, now)


class SetRates(EventBase, frozen=True, array_like=True):
    """M7."""

    op_id: bytes
    earning: int | None
    slashing: int | None

    def process(self, state: Coordinator, now: int) -> None:
        """Make the change; raises CoordinatorError where the state machine refuses."""
        del now
        transitions.process_rates(state, self.earning, self.slashing)


Event: TypeAlias = (
    Tick
    | Join
    | Leave
    | Withdraw
    | WarmupWitness
    | Witness
    | HealthCheck
    | SetCheckpoint
    | Equivocation
    | Pause
    | Resume
    | Recovered
    | ReclaimSlot
    | SetRates
)

_TYPES: Final[dict[EventKind, type[Event]]] = {
    EventKind.TICK: Tick,
    EventKind.JOIN: Join,
    EventKind.LEAVE: Leave,
    EventKind.WITHDRAW: Withdraw,
    EventKind.WARMUP_WITNESS: WarmupWitness,
    EventKind.WITNESS: Witness,
    EventKind.HEALTH_CHECK: HealthCheck,
    EventKind.CHECKPOINT: SetCheckpoint,
    EventKind.EQUIVOCATION: Equivocation,
    EventKind.PAUSE: Pause,
    EventKind.RESUME: Resume,
    EventKind.RECOVERED: Recovered,
    EventKind.RECLAIM_SLOT: ReclaimSlot,
    EventKind.RATES: SetRates,
}
_KINDS: Final[dict[type[Event], EventKind]] = {kind: number for number, kind in _TYPES.items()}


def get_op_id(event: Event) -> bytes | None:
    """What names an owner's command, whatever the resends (K3); None for other events."""
    return event.op_id if isinstance(event, Pause | Resume | SetRates) else None


def get_kind(event: Event) -> EventKind:
    """The number of an event's kind."""
    return _KINDS[type(event)]


def encode_event(event: Event) -> bytes:
    """The body of an event's record."""
    return msgspec.msgpack.encode(event)


def decode_event(kind: int, body: bytes) -> Event:
    """Read the body of a record.

    Raises:
        WireError: the kind is unknown to this version, or the body is not of that kind.
    """
    try:
        return msgspec.msgpack.decode(body, type=_TYPES[EventKind(kind)])
    except ValueError as error:  # msgspec's own errors are ValueErrors too
        raise WireError(f"journal: event of kind {kind} cannot be read: {error}") from error


def make_witness(sender: bytes, message: WitnessMessage) -> Witness:
    """The event of a witness message."""
    return Witness(sender, encode_witness(replace(message, metadata=b"")))
