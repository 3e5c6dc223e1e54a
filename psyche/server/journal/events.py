"""What the journal records: one message per change of the run's state, enough to make the change again.

`Event.process` is the only way in which the server changes a state, live and in replay alike, so a
replayed journal gives the same bytes (K1, K2).
"""

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from psyche.core.rules.apply import apply
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, Coordinator
from psyche.errors import WireError
from psyche.wire.access import Allow, Disallow
from psyche.wire.backend import OP_ID_BYTES
from psyche.wire.messages import MAX_FIELDS_BYTES, AnyMessage, decode_fields, encode_fields, get_kind
from psyche.wire.msgpack import UNREADABLE


@dataclass(frozen=True, slots=True)
class Event:
    """A message that changed something: the run, or the home's allow list (M12).

    `sender` is who signed it, zeros where the home acts of itself; `op_id` names an owner's command, whatever
    the resends (K3), and is empty for other messages.
    """

    message: AnyMessage
    sender: bytes = ZERO32
    op_id: bytes = b""

    @property
    def name(self) -> str:
        """The name of its kind."""
        return get_kind(self.message).name

    def process(self, state: Coordinator, now: int) -> None:
        """Change `state` at `now` (unix seconds) as the message says; on TCP the slot is the clock (E1).

        Raises:
            CoordinatorError: the state machine refuses; no byte changed.
        """
        if not isinstance(self.message, Allow | Disallow):
            apply(state, now, now, self.sender, self.message)


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """A record's body; the number of the message stands before it."""

    sender: Annotated[bytes, msgspec.Meta(max_length=len(ZERO32))]  # empty for zeros
    op_id: Annotated[bytes, msgspec.Meta(max_length=OP_ID_BYTES)]
    fields: Annotated[bytes, msgspec.Meta(max_length=MAX_FIELDS_BYTES)]


def get_number(event: Event) -> int:
    """The number of the message's kind: the byte before the body."""
    return get_kind(event.message).number


def encode_event(event: Event) -> bytes:
    """The body of an event's record; a witness's metadata is left out because it is never stored (W5)."""
    message = event.message
    if isinstance(message, WitnessMessage):
        message = replace(message, metadata=b"")
    sender = b"" if event.sender == ZERO32 else event.sender
    return msgspec.msgpack.encode(_Body(sender, event.op_id, encode_fields(message)))


def decode_event(number: int, raw: bytes) -> Event:
    """Read the body of a record.

    Raises:
        WireError: the number is unknown to this version, or the body is not of that kind.
    """
    try:
        body = msgspec.msgpack.decode(raw, type=_Body)
        return Event(decode_fields(number, body.fields), body.sender or ZERO32, body.op_id)
    except (*UNREADABLE, WireError) as error:
        raise WireError(f"journal: message {number} cannot be read: {error}") from error
