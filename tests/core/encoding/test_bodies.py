"""Bodies of messages: each reads back as it was written, has the bytes that programs read, and keeps its rules."""

from dataclasses import fields, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_states import CONFIGS, MODELS

from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding import bodies
from psyche.core.encoding.bodies import decode_body, encode_body, split_body
from psyche.core.rules.apply import KINDS
from psyche.core.state import messages as msg
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import Checkpoint, CheckpointKind, Config, Metadata, Model, Progress, WitnessFlag
from psyche.errors import WireError
from psyche.testing.builders import build_config
from psyche.wire.access import Allow, Disallow

KEY = bytes(range(32))
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=16)
WHOLE: dict[Any, st.SearchStrategy[Any]] = {
    Config: CONFIGS,
    Model: MODELS,
    Progress: st.builds(Progress, st.integers(0, 65_535), st.integers(0, (1 << 32) - 1), st.integers(0, U64_MAX)),
    Metadata: st.builds(Metadata, TEXTS, TEXTS, st.integers(0, U64_MAX), st.integers(0, U64_MAX)),
    Checkpoint: st.builds(Checkpoint, st.just(CheckpointKind.HUB), TEXTS, st.none() | TEXTS),
    Entropy: st.none() | st.just(EXPIRED) | st.binary(min_size=32, max_size=32),
    WitnessFlag: st.integers(0, 7).map(WitnessFlag),
    str: TEXTS,
}


def build_values(hint: Any, rule: Any = None) -> st.SearchStrategy[Any]:
    """Values of an annotation, so that a new message is tested by its dataclass alone."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return build_values(*inner[:2])
    if hint in WHOLE:
        return WHOLE[hint]
    if get_origin(hint) is tuple:
        if inner[-1] is not Ellipsis:
            return st.tuples(*map(build_values, inner))
        return st.lists(build_values(inner[0]), min_size=rule.low, max_size=rule.high).map(tuple)
    if inner:
        return st.none() | build_values(inner[0], rule)
    high = U64_MAX if rule.high is None else rule.high
    return st.integers(rule.low, high) if hint is int else st.binary(min_size=rule.low, max_size=high)


def build_messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: build_values(hint) for name, hint in hints.items()})


TYPES = [*(kind.type for kind in KINDS), Allow, Disallow]
MESSAGE = WitnessMessage(
    epoch=0x0201, height=0x06050403, member=0x0807, flags=WitnessFlag.COMPLETE, at_s=0x0C0B0A09, held=1, heard=2,
    missing=4, broadcast_bloom=b"\x0d" * 320, results_root=b"\x0e" * 32, state_digest=b"\x0f" * 32, metadata=b"loss",
)  # fmt: skip
WRITTEN = encode_body(MESSAGE)


def patch(raw: bytes, at: int, data: bytes) -> bytes:
    return raw[:at] + data + raw[at + len(data) :]


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=20)
@given(st.data())
def test_a_message_reads_back_as_it_was_written(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(build_messages(kind))
    assert decode_body(kind, encode_body(message)) == message
    assert [name for name, _ in split_body(message)] == [field.name for field in fields(kind)]


@given(st.sampled_from(TYPES), st.binary(max_size=600))
def test_any_bytes_are_refused_or_the_only_ones_of_their_message(kind: type[Any], raw: bytes) -> None:
    try:
        message = decode_body(kind, raw)
    except WireError:
        return
    assert encode_body(message) == raw


def test_bodies_have_the_bytes_that_programs_read() -> None:
    bitmaps = b"".join(bits.to_bytes(32, "little") for bits in (1, 2, 4))
    head = b"\x01\x02" + b"\x03\x04\x05\x06" + b"\x07\x08" + b"\x01" + b"\x09\x0a\x0b\x0c"
    assert head + bitmaps + b"\x0d" * 320 + b"\x0e" * 32 + b"\x0f" * 32 + b"\x04\0\0\0loss" == WRITTEN
    assert len(encode_body(replace(MESSAGE, metadata=bytes(256)))) == 753
    assert [encode_body(msg.Tick(one)) for one in (None, EXPIRED, KEY)] == [b"\0", b"\1", b"\2" + KEY]
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
        (msg.Withdraw(65_536, 0), r"Withdraw\.epoch: 65536 is not between 0 and 65535"),
        (msg.Withdraw(0, 256), r"Withdraw\.member: 256 is not between 0 and 255"),
        (msg.Join(KEY, -1), r"Join\.expires_unix: -1 is not between 0 and 18446744073709551615"),
        (msg.Join(b"short"), r"Join\.p2p: 5 bytes, must be 32"),
        (msg.Tick(b"short"), r"Tick\.entropy: 5 bytes, must be 32"),
        (msg.NameCheckpoint(0, KEY, Checkpoint(CheckpointKind.HUB, "x" * 65)), r"NameCheckpoint\.source: .*name"),
        (msg.Collect(()), r"Collect\.claims: 0 entries, must be 1 to 64"),
        (msg.Collect(((KEY, 0),)), r"Collect\.claims: 0 is not between 1 and"),
        (msg.Collect(((b"short", 1),)), r"Collect\.claims: 5 bytes, must be 32"),
        (msg.Update(bootstrap=("/a",) * 5), r"Update\.bootstrap: 5 entries, must be 0 to 4"),
        (msg.Update(config=build_config(evict_after=256)), r"Update\.config: .*evict_after"),
        (msg.UpdateClientVersion("v" * 97), r"UpdateClientVersion\.version: 97 bytes of UTF-8, at most 96"),
        (msg.UpdateClientVersion("a\0b"), r"UpdateClientVersion\.version: .* none of them zero"),
        (msg.UpdateClientVersion("\ud800"), r"UpdateClientVersion\.version: .*utf-8"),
        (Allow(KEY, (KEY,) * 65), r"Allow\.delegates: 65 entries, must be 0 to 64"),
        (replace(MESSAGE, metadata=bytes(257)), r"WitnessMessage\.metadata: 257 bytes, must be 0 to 256"),
        (replace(MESSAGE, broadcast_bloom=bytes(319)), r"WitnessMessage\.broadcast_bloom: 319 bytes"),
        (replace(MESSAGE, epoch=65_536), r"WitnessMessage\.epoch: 65536 is not between"),
        (replace(MESSAGE, held=1 << 256), r"WitnessMessage\.held: \d+ is not between"),
        (replace(MESSAGE, flags=WitnessFlag(256)), r"WitnessMessage\.flags: "),
    ],
)
def test_a_value_that_breaks_its_rule_is_refused_by_its_name(message: object, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode_body(message)


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        (msg.Withdraw, bytes(3), r"Withdraw\.member: 1 bytes are left, 2 are needed"),
        (msg.Withdraw, bytes(5), r"Withdraw: 1 bytes follow the end"),
        (msg.Withdraw, b"\0\0\0\1", r"Withdraw\.member: 256 is not between 0 and 255"),
        (msg.Tick, b"", r"Tick\.entropy: 0 bytes are left, 1 are needed"),
        (msg.Tick, b"\3", r"Tick\.entropy: 3 is none of 0, 1 and 2"),
        (msg.SetRates, b"\2", r"SetRates\.earning: 2 is neither 0 nor 1"),
        (msg.Collect, bytes(4), r"Collect\.claims: 0 entries, must be 1 to 64"),
        (msg.Collect, b"\x41\0\0\0", r"Collect\.claims: 65 entries, must be 1 to 64"),
        (msg.Collect, b"\1\0\0\0" + KEY + b"\1" + bytes(8), r"Collect\.claims: 0 is not between 1 and"),
        (msg.Update, b"\1" + bytes(127), r"Update\.config: 127 bytes are left, 128 are needed"),
        (msg.UpdateClientVersion, b"a\0b".ljust(96, b"\0"), r"UpdateClientVersion\.version: .* not zero"),
        (msg.UpdateClientVersion, b"\xff" * 96, r"UpdateClientVersion\.version: .*utf-8"),
        (WitnessMessage, WRITTEN[:492], r"WitnessMessage\.state_digest: 31 bytes are left, 32 are needed"),
        (WitnessMessage, WRITTEN[:-1], r"WitnessMessage\.metadata: 3 bytes are left, 4 are needed"),
        (WitnessMessage, WRITTEN + b"\0", r"WitnessMessage: 1 bytes follow the end"),
        (WitnessMessage, patch(WRITTEN, 493, b"\1\1"), r"WitnessMessage\.metadata: 257 bytes, must be 0 to 256"),
        (WitnessMessage, patch(WRITTEN, 8, b"\x08"), r"WitnessMessage\.flags: 8 is no set of WitnessFlag"),
    ],
)
def test_what_is_no_body_is_refused_by_its_field(kind: type[Any], raw: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_body(kind, raw)


def test_a_part_of_the_record_with_a_pad_that_is_not_zero_is_refused() -> None:
    raw = encode_body(msg.Update(progress=Progress(1, 2, 3)))
    with pytest.raises(WireError, match=r"Update\.progress: .*byte 2 is not zero"):
        decode_body(msg.Update, patch(raw, 5, b"\1"))


@pytest.mark.parametrize("kind", [one.type for one in KINDS])
def test_every_field_of_a_message_has_a_form(kind: type[Any]) -> None:
    found = bodies._find_forms.__wrapped__(kind)  # not what another test has left in the cache
    assert list(found) == [field.name for field in fields(kind)]
