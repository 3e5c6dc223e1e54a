"""Coordinator messages as bytes: each reads back as it was written; a bad field is refused by name and rule."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.runs import build_run

from psyche.core.rules.apply import KINDS
from psyche.core.state import messages as msg
from psyche.core.state.state import Checkpoint, CheckpointKind, Metadata, Progress
from psyche.errors import WireError
from psyche.testing.builders import build_config
from psyche.wire.access import ACCESS_KINDS, Allow, Disallow
from psyche.wire.messages import BY_NUMBER, AnyMessage, decode_fields, encode_fields, get_kind

KEY = bytes(range(32))

MESSAGES: tuple[AnyMessage, ...] = (
    msg.Tick(KEY), msg.Join(KEY), msg.Join(KEY, 9), msg.LeaveRun(), msg.Withdraw(65_535, 255),
    msg.WarmupWitness(3, 4, KEY), build_run(1).warm_up().build_witness(0, metadata=b"said"),
    msg.HealthCheck(1, 2**32 - 1, 3), msg.NameCheckpoint(1, KEY, Checkpoint(CheckpointKind.HUB, "org/model", "main")),
    msg.NameCheckpoint(1, KEY, Checkpoint(CheckpointKind.LOCAL, "x" * 128)), msg.ReportEquivocation(1, 2, 3),
    msg.Pause(), msg.Resume(), msg.Recover(2**63 - 1, 0), msg.ReclaimSlot(), msg.SetRates(None, 7),
    msg.Collect(((KEY, None), (KEY, 2**64 - 1))), msg.Update(), msg.UpdateClientVersion("v2"),
    msg.Update(build_config(), build_run(0).state.model, Progress(1, 2, 3), Metadata("x", "y", 1, 2), ("/ip4/1",)),
    Allow(KEY), Allow(KEY, (KEY,) * 64), Disallow(KEY), Disallow(KEY, KEY),
)  # fmt: skip


def test_numbers_and_names_of_access_messages_never_change_and_meet_no_other() -> None:
    assert [(kind.number, kind.name) for kind in ACCESS_KINDS] == [(128, "allow"), (129, "disallow")]
    assert len(BY_NUMBER) == len(KINDS) + len(ACCESS_KINDS)
    assert set(BY_NUMBER) == {get_kind(message).number for message in MESSAGES}, "an example of every kind"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_reads_back_as_it_was_written(message: AnyMessage) -> None:
    assert decode_fields(get_kind(message).number, encode_fields(message)) == message


def test_fields_of_a_later_version_are_ignored_and_lacking_ones_have_their_default() -> None:
    assert decode_fields(4, msgspec.msgpack.encode([1, 2, "new"])) == msg.Withdraw(1, 2)
    assert decode_fields(2, msgspec.msgpack.encode([KEY])) == msg.Join(KEY, 0)


def iterate_bad() -> Iterator[tuple[str, list[Any], str, str]]:
    """A message with one bad field: its name, its fields, the field that is named, and its rule."""
    yield "withdraw", [65_536, 0], "epoch", "<= 65535"
    yield "withdraw", [-1, 0], "epoch", ">= 0"
    yield "withdraw", [0, 256], "member", "<= 255"
    yield "withdraw", [0, "1"], "member", "Expected `int`"
    yield "warmup_witness", [0, 0, bytes(31)], "digest", ">= 32"
    yield "warmup_witness", [0, 0, bytes(33)], "digest", "<= 32"
    yield "health_check", [0, 1 << 32, 0], "height", "<= 4294967295"
    yield "checkpoint", [0, KEY, [7, "x", None]], "source[0]", "Invalid enum value 7"
    yield "checkpoint", [0, KEY, [2, "x" * 129, None]], "source[1]", "<= 128"
    yield "checkpoint", [0, KEY, [2, "x", "y" * 129]], "source[2]", "<= 128"
    yield "set_rates", [-1, None], "earning", "int"
    yield "collect", [[]], "claims", ">= 1"
    yield "collect", [[[KEY, 1]] * 65], "claims", "<= 64"
    yield "collect", [[[KEY, 0]]], "claims[0][1]", ">= 1"
    yield "collect", [[[b"short", 1]]], "claims[0][0]", ">= 32"
    yield "update", [None, None, None, None, ["/a"] * 5], "bootstrap", "<= 4"
    yield "update_client_version", ["v" * 97], "version", "<= 96"
    yield "allow", [KEY, [KEY] * 65], "delegates", "<= 64"


@pytest.mark.parametrize(("name", "values", "field", "rule"), list(iterate_bad()))
def test_a_bad_field_is_refused_by_its_name_and_its_rule(name: str, values: list[Any], field: str, rule: str) -> None:
    number = next(number for number, kind in BY_NUMBER.items() if kind.name == name)
    with pytest.raises(WireError) as refused:
        decode_fields(number, msgspec.msgpack.encode(values))
    assert str(refused.value).startswith(f"{name}.{field}: ")
    assert rule in str(refused.value)


def test_a_number_without_a_message_is_refused() -> None:
    with pytest.raises(WireError, match="no message has the number 99"):
        decode_fields(99, b"\x90")


def test_what_a_layout_cannot_hold_is_refused_by_its_field() -> None:
    with pytest.raises(WireError, match=r"metadata: 257 bytes, at most 256"):
        encode_fields(replace(build_run(1).warm_up().build_witness(0), metadata=bytes(257)))
    with pytest.raises(WireError, match="WitnessMessage: 40 bytes"):
        decode_fields(6, msgspec.msgpack.encode([bytes(40)]))
    with pytest.raises(WireError, match=r"960|bytes"):
        decode_fields(16, msgspec.msgpack.encode([None, b"short"]))


@given(st.sampled_from(sorted(BY_NUMBER)), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(number: int, raw: bytes) -> None:
    try:
        message = decode_fields(number, raw)
    except WireError:
        return
    assert get_kind(message).number == number


def test_deeply_nested_bytes_are_refused() -> None:
    for number in BY_NUMBER:
        with pytest.raises(WireError):
            decode_fields(number, b"\x91" * 7_000)
