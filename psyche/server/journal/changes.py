"""The content of journal records: one message per change of the run's state, enough to repeat the change.

The server changes a state only through `Change.process`, both live and in replay, so that a replayed
journal gives the same bytes (K1, K2).
"""

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from psyche.core.encoding.bodies import encode_body
from psyche.core.rules.apply import apply
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, Coordinator
from psyche.errors import WireError
from psyche.wire.access import Allow, Disallow
from psyche.wire.backend import OP_ID_BYTES
from psyche.wire.messages import MAX_BODY_BYTES, AnyMessage, decode_message, get_kind
from psyche.wire.msgpack import UNREADABLE


@dataclass(frozen=True, slots=True)
class Change:
    """A message that changed the run or the backend's allow list (M12).

    `sender` is the signer's key, or zeros if the backend acts by itself; `op_id` identifies an owner's command across
    resends (K3) and is empty for other messages.
    """

    message: AnyMessage
    sender: bytes = ZERO32
    op_id: bytes = b""

    @property
    def name(self) -> str:
        """The name of the message's kind."""
        return get_kind(self.message).name

    def process(self, state: Coordinator, now: int) -> None:
        """Apply the message to `state` at `now` (Unix seconds); on TCP the slot number is the clock (E1).

        Raises:
            CoordinatorError: the state machine refuses; no byte changed.
        """
        if not isinstance(self.message, Allow | Disallow):
            apply(state, now, now, self.sender, self.message)


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """A record's body after the number of the message."""

    sender: Annotated[bytes, msgspec.Meta(max_length=len(ZERO32))]  # empty for zeros
    op_id: Annotated[bytes, msgspec.Meta(max_length=OP_ID_BYTES)]
    message: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]


def get_number(change: Change) -> int:
    """Return the number of the message's kind: the byte before the body."""
    return get_kind(change.message).number


def encode_change(change: Change) -> bytes:
    """Encode a change as a record's body, without a witness's metadata, which is never stored (W5)."""
    message = change.message
    if isinstance(message, WitnessMessage):
        message = replace(message, metadata=b"")
    sender = b"" if change.sender == ZERO32 else change.sender
    return msgspec.msgpack.encode(_Body(sender, change.op_id, encode_body(message)))


def decode_change(number: int, raw: bytes) -> Change:
    """Decode the body of a record.

    Raises:
        WireError: the number is unknown to this version, or the body does not fit its kind.
    """
    try:
        body = msgspec.msgpack.decode(raw, type=_Body)
        return Change(decode_message(number, body.message), body.sender or ZERO32, body.op_id)
    except (*UNREADABLE, WireError) as error:
        raise WireError(f"journal: message {number} cannot be read: {error}") from error
