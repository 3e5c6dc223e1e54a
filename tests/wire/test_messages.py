"""Messages by number: those to a run and those to the server's allow list."""

import pytest

from psyche.core.encoding.bodies import encode_body
from psyche.core.rules.apply import KINDS
from psyche.core.state.messages import Withdraw
from psyche.errors import WireError
from psyche.wire.access import ACCESS_KINDS, Allow, Disallow
from psyche.wire.messages import BY_NUMBER, AnyMessage, decode_message, get_kind

KEY = bytes(range(32))


def test_numbers_and_names_of_access_messages_never_change_and_meet_no_other() -> None:
    assert [(kind.number, kind.name) for kind in ACCESS_KINDS] == [(128, "allow"), (129, "disallow")]
    assert len(BY_NUMBER) == len(KINDS) + len(ACCESS_KINDS)


@pytest.mark.parametrize("message", [Withdraw(65_535, 255), Allow(KEY), Allow(KEY, (KEY,) * 64), Disallow(KEY, KEY)])
def test_a_message_is_found_by_its_number(message: AnyMessage) -> None:
    assert decode_message(get_kind(message).number, encode_body(message)) == message


def test_a_number_without_a_message_is_refused() -> None:
    with pytest.raises(WireError, match="no message has the number 99"):
        decode_message(99, b"")
