"""Borsh by the types of an IDL: what was written comes back, and whatever breaks a form is refused by its place."""

import json
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.borsh import BorshForm, Encoded, decode_value, encode_value
from psyche.backends.solana.interface.idl import NAMES, load_program, read_idl
from psyche.errors import ConfigError, WireError

KEY: Final = Pubkey(bytes(range(32)))
MARK: Final = {"name": "Mark", "type": {"kind": "struct", "fields": [{"name": "step", "type": "u32"}]}}


def write_idl(*types: Any, **changes: Any) -> bytes:
    parts: dict[str, Any] = {"address": str(COORDINATOR), "metadata": {"spec": "0.1.0"}, "instructions": []}
    return json.dumps({**parts, "types": [MARK, *types], **changes}).encode()


def build_form(kind: Any) -> BorshForm:
    call = {"name": "act", "discriminator": [1] * 8, "accounts": [], "args": [{"name": "value", "type": kind}]}
    return read_idl(write_idl(instructions=[call])).instructions["act"].arguments.fields["value"]


integers = {
    **{f"u{bits}": st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "i64": st.integers(-(1 << 63), (1 << 63) - 1),
}
simple: dict[str, st.SearchStrategy[Any]] = {
    **integers,
    "bool": st.booleans(),
    "pubkey": st.binary(min_size=32, max_size=32).map(Pubkey),
    "string": st.text(st.characters(codec="utf-8"), max_size=9),
    "bytes": st.binary(max_size=9),
}
Case = tuple[Any, st.SearchStrategy[Any]]  # a type, and its values


def extend(cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    listed = cases.map(lambda case: ({"vec": case[0]}, st.lists(case[1], max_size=4).map(tuple)))
    maybe = cases.filter(lambda case: not isinstance(case[0], dict) or "option" not in case[0])
    return st.one_of(
        listed,
        maybe.map(lambda case: ({"option": case[0]}, st.none() | case[1])),
        st.tuples(cases, st.integers(0, 3)).map(
            lambda pair: (
                {"array": [pair[0][0], pair[1]]},
                st.binary(min_size=pair[1], max_size=pair[1])
                if pair[0][0] == "u8"
                else st.lists(pair[0][1], min_size=pair[1], max_size=pair[1]).map(tuple),
            )
        ),
    )


marks = st.builds(lambda step: {"step": step}, integers["u32"])
bases: list[Case] = [*simple.items(), ({"defined": {"name": "Mark"}}, marks)]
cases = st.recursive(st.sampled_from(bases), extend, max_leaves=4).filter(
    lambda case: "'array'" not in str(case[0]) or ", 0]" not in str(case[0])
)
pairs = cases.flatmap(lambda case: st.tuples(st.just(case[0]), case[1]))


@given(pairs)
def test_a_value_comes_back_as_it_was_written_and_no_shorter_or_longer_bytes_are_it(pair: tuple[Any, Any]) -> None:
    form = build_form(pair[0])
    raw = encode_value(form, pair[1], "act.value")
    assert decode_value(form, raw, "act.value") == pair[1]
    assert len(raw) >= form.least_bytes
    assert encode_value(form, Encoded(raw), "act.value") == raw
    assert decode_value(form, raw + b"\0", "act.value", with_rest=True) == pair[1]
    for wrong in (raw + b"\0", raw[:-1]):
        with pytest.raises(WireError, match=r"^act\.value"):
            decode_value(form, wrong, "act.value")


@given(cases, st.binary(max_size=80))
def test_any_bytes_are_refused_or_are_the_only_bytes_of_their_value(case: Case, raw: bytes) -> None:
    form = build_form(case[0])
    with suppress(WireError):
        value = decode_value(form, raw, "act.value")
        assert encode_value(form, value, "act.value") == raw


@pytest.mark.parametrize(
    ("kind", "value", "raw"),
    [
        ("u16", 258, "0201"),
        ("i64", -2, "feffffffffffffff"),
        ("bool", True, "01"),
        ("pubkey", KEY, bytes(KEY).hex()),
        ("string", "ä", "02000000c3a4"),
        ("bytes", b"\xff", "01000000ff"),
        ({"option": "u8"}, None, "00"),
        ({"option": "u8"}, 7, "0107"),
        ({"vec": "u16"}, (1, 2), "0200000001000200"),
        ({"array": ["u8", 3]}, b"abc", "616263"),
        ({"array": ["u16", 2]}, (1, 2), "01000200"),
        ({"defined": {"name": "Mark"}}, {"step": 5}, "05000000"),
    ],
)
def test_values_have_the_bytes_of_borsh(kind: Any, value: Any, raw: str) -> None:
    assert encode_value(build_form(kind), value, "act.value").hex() == raw
    assert decode_value(build_form(kind), bytes.fromhex(raw), "act.value") == value


@pytest.mark.parametrize(
    ("kind", "value", "rule"),
    [
        ("u8", 256, r"value: 256 is not between 0 and 255"),
        ("u8", True, r"value: 'True' must be an integer"),
        ("u64", -1, r"value: -1 is not between 0 and 18446744073709551615"),
        ("i64", 1 << 63, r"is not between -9223372036854775808 and 9223372036854775807"),
        ("bool", 1, r"value: '1' must be true or false"),
        ("pubkey", bytes(32), r"must be a public key"),
        ("string", b"x", r"must be a text"),
        ("string", "\ud800", r"has no UTF-8"),
        ({"array": ["u8", 2]}, b"abc", r"value: 3 bytes, must be 2"),
        ({"array": ["u16", 2]}, (1,), r"value: 1 entries, must be 2"),
        ({"vec": "u8"}, 5, r"value: '5' must be a list"),
        ({"vec": {"option": "u8"}}, (None, 256), r"value\[1\]: 256 is not between"),
        ({"defined": {"name": "Mark"}}, {"step": -1}, r"value\.step: -1 is not between"),
        ({"defined": {"name": "Mark"}}, {"stop": 1}, r"value: step is missing"),
        ({"defined": {"name": "Mark"}}, {"step": 1, "stop": 1}, r"value: stop is unknown; there are step"),
        ({"array": ["u8", 2]}, Encoded(b"abc"), r"value: 1 bytes follow the end"),
    ],
)
def test_a_value_that_breaks_its_form_is_refused_by_its_place(kind: Any, value: Any, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode_value(build_form(kind), value, "value")


@pytest.mark.parametrize(
    ("kind", "raw", "rule"),
    [
        ("bool", "02", r"value: 2 is neither 0 nor 1"),
        ({"option": "u8"}, "0207", r"value: 2 is neither 0 nor 1"),
        ("string", "01000000ff", r"value: is no UTF-8"),
        ("bytes", "ffffffff", r"value: 4294967295 entries need 4294967295 bytes, 0 are left"),
        ({"vec": "pubkey"}, "ffffff7f", r"entries need 68719476704 bytes, 0 are left"),
        ({"vec": {"defined": {"name": "Mark"}}}, "0200000001000000", r"2 entries need 8 bytes, 4 are left"),
        ({"defined": {"name": "Mark"}}, "0100", r"value\.step: 2 bytes are left, 4 are needed"),
    ],
)
def test_bytes_that_are_no_value_are_refused_before_room_is_made_for_them(kind: Any, raw: str, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        decode_value(build_form(kind), bytes.fromhex(raw), "value")


CALL: Final = {"name": "act", "discriminator": [1] * 8, "accounts": [], "args": []}


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (write_idl(metadata={"spec": "0.2.0"}), r"Invalid enum value '0\.2\.0' - at `\$\.metadata\.spec`"),
        (
            write_idl(instructions=[{**CALL, "discriminator": [1]}]),
            r"length >= 8 - at `\$\.instructions.*discriminator",
        ),
        (write_idl(instructions=[{**CALL, "args": [{"name": "a", "type": "f32"}]}]), r"act\.a: the type 'f32' is"),
        (write_idl(accounts=[{"name": "Gone", "discriminator": [1] * 8}]), r"type Gone: is not defined"),
    ],
)
def test_an_idl_that_breaks_a_rule_is_refused_by_its_place(raw: bytes, rule: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=rule):
        read_idl(raw)


def test_a_type_that_contains_itself_is_refused() -> None:
    inner = {"option": {"defined": {"name": "Loop"}}}
    loop = {"name": "Loop", "type": {"kind": "struct", "fields": [{"name": "next", "type": inner}]}}
    with pytest.raises(ConfigError, match=r"type Loop: .* contains itself"):
        read_idl(write_idl(loop, accounts=[{"name": "Loop", "discriminator": [1] * 8}]))


@pytest.mark.parametrize("program", NAMES)
def test_the_interfaces_of_the_programs_load_once(program: str) -> None:
    found = load_program(program)
    assert found.address == str(NAMES[program])
    assert found is load_program(program)
    assert found.instructions
    assert found.errors
