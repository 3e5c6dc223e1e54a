"""The content of journal records: one message per change of the run's state, enough to repeat the change.

The server changes a state only through `Change.process`, both live and in replay, so that a replayed
journal gives the same bytes (K1, K2).
"""

from dataclasses import dataclass, replace
from typing import Annotated

from psyche.core.encoding.bodies import decode_body, encode_body
from psyche.core.rules.apply import apply
from psyche.core.state.messages import Key, Sized, WitnessMessage
from psyche.core.state.state import ZERO32, Coordinator
from psyche.errors import WireError
from psyche.wire.access import Allow, Disallow
from psyche.wire.backend import MAX_BODY_BYTES, OP_ID_BYTES, AnyMessage, decode_message, get_kind


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
        return get_kind(self.message).name

    @property
    def number(self) -> int:
        return get_kind(self.message).number

    def process(self, state: Coordinator, now: int) -> None:
        """Apply the message to `state` at `now` (Unix seconds); on TCP the slot number is the clock (E1).

        Raises:
            CoordinatorError: the state machine refuses; no byte changed.
        """
        if not isinstance(self.message, Allow | Disallow):
            apply(state, now, now, self.sender, self.message)


@dataclass(frozen=True, slots=True)
class _Body:
    """A record's body after the number of the message."""

    sender: Key | None  # None: zeros
    op_id: Annotated[bytes, Sized(OP_ID_BYTES, OP_ID_BYTES)] | None
    message: Annotated[bytes, Sized(0, MAX_BODY_BYTES)]


def encode_change(change: Change) -> bytes:
    """Encode a change as a record's body, without a witness's metadata, which is never stored (W5)."""
    message = change.message
    if isinstance(message, WitnessMessage):
        message = replace(message, metadata=b"")
    sender = None if change.sender == ZERO32 else change.sender
    return encode_body(_Body(sender, change.op_id or None, encode_body(message)))


def decode_change(number: int, raw: bytes) -> Change:
    try:
        body = decode_body(_Body, raw)
        return Change(decode_message(number, body.message), body.sender or ZERO32, body.op_id or b"")
    except WireError as error:
        raise WireError(f"journal: message {number} cannot be read: {error}") from error
