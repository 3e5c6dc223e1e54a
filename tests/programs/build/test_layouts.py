"""A run's account has one layout: in psyche.core, in Rust, and in the interface that clients in other languages read.

Rust asserts its offsets when it is compiled, and the interface is printed from the same records.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import AUTHORIZER, COORDINATOR, TREASURER
from psyche.core.encoding.records import RecordLayout
from psyche.core.encoding.tables import ACCOUNT
from psyche.core.state.errors import REFUSALS

BUILT = Path(__file__).parents[3] / "programs" / "built"
INTERFACE = json.loads((BUILT / "psyche_coordinator.json").read_text())
RECORDS = {one["name"]: one for one in INTERFACE["types"] if one.get("serialization") == "bytemuck"}
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "pubkey": 32}
EPOCH = "epoch: 1 of"  # a record in the interface, dotted names in core
RENAMED = {"clients_len": "epoch.clients_len"}  # the number of a list of the state itself
FIRST_REFUSAL, FIRST_OF_THE_PROGRAM = 6000, 6100


class Place(NamedTuple):
    path: str  # of lists the first entry
    offset: int
    size: int


def find_in_core(layout: RecordLayout, start: int, prefix: str = "") -> Iterator[Place]:
    lists = {field.name for field in layout.fields if field.is_later}
    for field in layout.fields:
        name = f"{prefix}{field.name}"
        if field.is_pad:
            yield Place("pad", start, field.size)
        elif isinstance(field.codec, RecordLayout):
            yield Place(f"{name}: {field.size // field.codec.size} of", start, field.size)
            yield from find_in_core(field.codec, start, f"{name}.")
        else:
            is_len = field.name in lists and not field.is_later
            yield Place(f"{name}_len" if is_len else name, start, field.size)
        start += field.size


def find_in_interface(record: str, start: int, prefix: str = "") -> Iterator[Place]:
    for field in RECORDS[record]["type"]["fields"]:
        name, size = f"{prefix}{field['name']}", get_size(field["type"])
        kind, number = (field["type"]["array"] if "array" in field["type"] else (field["type"], 1))[:2]
        if field["name"].startswith("_"):
            yield Place("pad", start, size)
        elif isinstance(kind, dict) and "defined" in kind:
            yield Place(f"{name}: {number} of", start, size)
            yield from find_in_interface(kind["defined"]["name"], start, f"{name}.")
        else:
            yield Place(name, start, size)
        start += size


def get_size(kind: Any) -> int:
    if isinstance(kind, str):
        return SIZES[kind]
    if "array" in kind:
        return get_size(kind["array"][0]) * kind["array"][1]
    return sum(get_size(field["type"]) for field in RECORDS[kind["defined"]["name"]]["type"]["fields"])


def get_alignment(kind: Any) -> int:
    """C's rule: a record is aligned as its most aligned field is."""
    if isinstance(kind, str):
        return 1 if kind == "pubkey" else SIZES[kind]
    if "array" in kind:
        return get_alignment(kind["array"][0])
    return max(get_alignment(field["type"]) for field in RECORDS[kind["defined"]["name"]]["type"]["fields"])


def test_core_and_the_interface_place_every_field_at_the_same_bytes() -> None:
    in_core = [place._replace(path=RENAMED.get(place.path, place.path)) for place in find_in_core(ACCOUNT, 0)]
    discriminator = Place(in_core[0].path, 0, 8)
    in_interface = [discriminator, *find_in_interface("CoordinatorAccount", 8)]
    assert [place for place in in_interface if place.path != EPOCH] == in_core
    assert len(in_core) > 200
    assert ACCOUNT.size == 165_192


def test_records_of_the_interface_have_no_hidden_pads() -> None:
    for name, record in RECORDS.items():
        offset = 0
        for field in record["type"]["fields"]:
            assert offset % get_alignment(field["type"]) == 0, f"{name}.{field['name']}"
            offset += get_size(field["type"])
        assert offset % get_alignment({"defined": {"name": name}}) == 0, name


def test_the_interface_numbers_refusals_as_core_does() -> None:
    refusals = {one["code"]: one["name"] for one in INTERFACE["errors"] if one["code"] < FIRST_OF_THE_PROGRAM}
    assert refusals == {FIRST_REFUSAL + number: refusal.__name__ for number, refusal in REFUSALS.items()}


@pytest.mark.parametrize(
    ("name", "address"), [("coordinator", COORDINATOR), ("authorizer", AUTHORIZER), ("treasurer", TREASURER)]
)
def test_the_interfaces_have_the_addresses_of_the_client(name: str, address: Pubkey) -> None:
    interface = json.loads((BUILT / f"psyche_{name}.json").read_text())
    assert interface["address"] == str(address)
    assert interface["metadata"] == {"name": f"psyche_{name}", "version": "0.1.0", "spec": "0.1.0"}
