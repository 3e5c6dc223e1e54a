"""Messages as bodies of instructions: what a reader of their documented form reads is what was written."""

from dataclasses import astuple, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.runs import build_run
from twins.bodies import FORMS, decode_body

from psyche.backends.solana.interface.borsh import decode_value
from psyche.backends.solana.interface.idl import load_program
from psyche.backends.solana.interface.instructions import encode_body
from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.account import decode_witness
from psyche.core.rules.apply import KINDS
from psyche.core.state import messages as msg
from psyche.core.state.state import Checkpoint, CheckpointKind, Metadata, Optimizer, Progress
from psyche.errors import WireError
from psyche.localchain import bodies
from psyche.testing.builders import build_config, build_model

KEY = bytes(range(32))


U16, U32, U63 = st.integers(0, 65_535), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 63) - 1)
MEMBERS, KEYS = st.integers(0, 255), st.binary(min_size=32, max_size=32)
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=32)
SOURCES = st.builds(Checkpoint, st.just(CheckpointKind.HUB), TEXTS, st.none() | TEXTS)
RATES = st.none() | U63
MESSAGES = st.one_of(
    st.builds(msg.Tick, st.none() | st.just(EXPIRED) | KEYS),
    st.builds(msg.Join, KEYS, U63),
    st.builds(msg.LeaveRun),
    st.builds(msg.Withdraw, U16, MEMBERS),
    st.builds(msg.WarmupWitness, U16, MEMBERS, KEYS),
    st.builds(msg.HealthCheck, U16, U32, MEMBERS),
    st.builds(msg.NameCheckpoint, U16, KEYS, SOURCES),
    st.builds(msg.ReportEquivocation, U16, U32, MEMBERS),
    st.builds(msg.Pause) | st.builds(msg.Resume) | st.builds(msg.ReclaimSlot),
    st.builds(msg.Recover, U63, U63),
    st.builds(msg.SetRates, RATES, RATES),
    st.builds(
        msg.Collect,
        st.lists(st.tuples(KEYS, st.none() | st.integers(1, (1 << 64) - 1)), min_size=1, max_size=64).map(tuple),
    ),
    st.builds(
        msg.Update,
        st.none() | st.builds(lambda seconds: build_config(warmup_time=seconds), U63),
        st.none() | st.builds(lambda source: build_model(checkpoint=source, optimizer=Optimizer()), SOURCES),
        st.none() | st.builds(Progress, U16, U32, U63),
        st.none() | st.builds(Metadata, TEXTS, TEXTS, U63, U63),
        st.none() | st.lists(TEXTS, max_size=4).map(tuple),
    ),
    st.builds(msg.UpdateClientVersion, TEXTS.filter(lambda text: len(text.encode()) <= 96)),
)


def test_every_kind_has_a_form_and_witness_messages_keep_their_own() -> None:
    assert {kind.name for kind in KINDS} == {*FORMS, "witness"}
    message = build_run(1).warm_up().build_witness(0, metadata=b"said")
    assert decode_witness(encode_body(message)) == message
    assert len(encode_body(message)) == 497 + len(b"said")


@given(MESSAGES)
def test_a_body_is_the_fields_of_its_message_in_order(message: Any) -> None:
    kind = next(kind for kind in KINDS if kind.type is type(message))
    assert decode_body(kind.number, encode_body(message)) == message
    if not isinstance(message, msg.Tick):  # a chain knows its entropy by itself
        assert bodies.decode_body(kind.type, encode_body(message)) == message


@given(MESSAGES)
def test_the_idl_describes_a_body_by_the_names_and_values_of_its_message(message: Any) -> None:
    kind = next(kind for kind in KINDS if kind.type is type(message))
    name = "set_future_epoch_rates" if kind.type is msg.SetRates else kind.name
    arguments = load_program("coordinator").instructions.get(name)
    if arguments is None or "body" not in arguments.arguments.fields or kind.type is msg.Update:
        return  # an update is sent without the model's further sources; the frozen instructions have one
    found = decode_value(arguments.arguments, encode_body(message), kind.name)["body"]
    assert list(found) == [field.name for field in fields(message)]
    for field, value in found.items():
        said = getattr(message, field)
        if isinstance(said, str):
            assert value == said.encode().ljust(len(value), b"\0")
        elif not isinstance(said, Checkpoint):  # in the layout of the account
            assert value == said


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        (msg.Withdraw, bytes(3), r"withdraw\.member: 1 bytes are left, 2 are needed"),
        (msg.Withdraw, bytes(5), r"withdraw: 1 bytes too many"),
        (msg.SetRates, b"\2", r"set_rates\.\w+: 2 is neither 0 nor 1"),
        (msg.Collect, bytes(4), r"collect\.claims: 0 entries, must be 1 to 64"),
    ],
)
def test_what_is_no_body_is_refused_by_its_field(kind: type[msg.Message], raw: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        bodies.decode_body(kind, raw)


def test_bodies_have_the_bytes_that_programs_read() -> None:
    assert encode_body(msg.Tick(EXPIRED)) == b"\1"
    assert encode_body(msg.Tick(KEY)) == b"\2" + KEY
    assert encode_body(msg.HealthCheck(1, 2, 3)).hex() == "0100020000000300"
    assert encode_body(msg.SetRates(None, 7)).hex() == "00010700000000000000"
    assert encode_body(msg.Collect(((KEY, None), (KEY, 1)))).hex() == (
        "02000000" + KEY.hex() + "00" + KEY.hex() + "010100000000000000"
    )
    assert encode_body(msg.Update(bootstrap=("/a",))) == bytes(4) + b"\1\1\0\0\0" + b"/a".ljust(128, b"\0") + bytes(2)
    named = encode_body(msg.Update(first_weights=bytes([7] * 32), nonce=258))
    assert named == bytes(5) + b"\1" + bytes([7] * 32) + b"\1" + bytes([2, 1]) + bytes(6)
    assert encode_body(msg.UpdateClientVersion("v2")) == b"v2".ljust(96, b"\0")
    assert [len(encode_body(kind())) for kind in (msg.Pause, msg.Resume, msg.LeaveRun, msg.ReclaimSlot)] == [0] * 4


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (msg.Withdraw(65_536, 0), r"withdraw\.epoch: 65536 is not between 0 and 65535"),
        (msg.Withdraw(0, 256), r"withdraw\.member: 256 is not between 0 and 255"),
        (msg.Join(KEY, -1), r"join\.expires_unix: -1 is not between 0 and 18446744073709551615"),
        (msg.Join(b"short"), r"join\.p2p: 5 bytes, must be 32"),
        (msg.Tick(b"short"), r"tick\.entropy: 5 bytes, must be 32"),
        (msg.NameCheckpoint(0, KEY, Checkpoint(CheckpointKind.HUB, "x" * 65)), r"checkpoint\.source: .*name"),
        (msg.Collect(()), r"collect\.claims: 0 entries, must be 1 to 64"),
        (msg.Collect(((KEY, 0),)), r"collect\.claims: 0 is not between 1 and"),
        (msg.Update(bootstrap=("/a",) * 5), r"update\.bootstrap: 5 entries, must be 0 to 4"),
        (msg.Update(config=build_config(evict_after=256)), r"update\.config: .*evict_after"),
        (msg.UpdateClientVersion("a\0b"), r"update_client_version\.version: 'a.x00b' must have at most 96 bytes"),
        (msg.UpdateClientVersion("\ud800"), r"update_client_version\.version: .* of UTF-8"),
    ],
)
def test_a_value_that_breaks_its_rule_is_refused_by_its_name(message: msg.Message, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode_body(message)


def test_a_witness_message_that_the_layout_cannot_hold_is_refused() -> None:
    message = build_run(1).warm_up().build_witness(0)
    with pytest.raises(WireError, match="held"):
        encode_body(replace(message, held=1 << 256))
    assert astuple(decode_witness(encode_body(message))) == astuple(message)
