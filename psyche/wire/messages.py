"""All messages that a TCP server takes, by number: those to a run, and those to the server's own allow list."""

from typing import Final, TypeAlias

from psyche.core.encoding.bodies import decode_body
from psyche.core.rules.apply import KINDS, Kind
from psyche.core.state.messages import Message
from psyche.errors import WireError
from psyche.wire.access import ACCESS_KINDS, AccessMessage

MAX_BODY_BYTES: Final = 4_000  # of a collection 2,628
AnyMessage: TypeAlias = Message | AccessMessage
BY_NUMBER: Final[dict[int, Kind]] = {kind.number: kind for kind in (*KINDS, *ACCESS_KINDS)}
BY_TYPE: Final[dict[type, Kind]] = {kind.type: kind for kind in BY_NUMBER.values()}


def get_kind(message: AnyMessage) -> Kind:
    return BY_TYPE[type(message)]


def decode_message(number: int, body: bytes) -> AnyMessage:
    """Decode the message with a number from its body.

    Raises:
        WireError: no message has that number, or a field breaks its rule; the text names both.
    """
    kind = BY_NUMBER.get(number)
    if kind is None:
        raise WireError(f"message: no message has the number {number}")
    return decode_body(kind.type, body)
