"""The coordinator's IDL: accounts as core lays them out, errors as core numbers them, instructions as Python builds."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kits.chain.anchor import get_discriminator
from kits.svm import BUILT
from programs.chain_kit import MALFORMED, NOT_FREED
from solders.instruction import Instruction
from transaction_kit import ALONE, WITH_TICK

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.core.encoding import tables
from psyche.core.encoding.fields import Field
from psyche.core.encoding.records import FieldLayout
from psyche.core.state.errors import REFUSALS
from psyche.core.state.state import ClientState, RunState, SlotState, StopReason

IDL: Final = json.loads((BUILT / "psyche_coordinator.json").read_text())
TYPES: Final = {one["name"]: one["type"] for one in IDL["types"]}
SIZES: Final = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
PAGE: Final = (Path(__file__).resolve().parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")
RECORDS: Final[dict[str, FieldLayout]] = {
    "Metadata": tables.METADATA, "Model": tables.MODEL, "Config": tables.CONFIG, "Progress": tables.PROGRESS,
    "Mark": tables.MARK, "StartCandidate": tables.START_CANDIDATE, "WitnessRecord": tables.WITNESS,
    "Audit": tables.AUDIT, "Round": tables.ROUND, "Client": tables.CLIENT, "Challenge": tables.CHALLENGE,
    "Slot": tables.SLOT, "Registry": tables.REGISTRY,
}  # fmt: skip
Place = tuple[str, int, int]  # name, offset, size


def compute_size(kind: Any) -> int:
    match kind:
        case str():
            return SIZES[kind]
        case {"array": [entry, length]}:
            return compute_size(entry) * length
        case {"defined": {"name": name}}:
            return sum(compute_size(field["type"]) for field in TYPES[name]["fields"])
        case _:
            raise AssertionError(kind)


def iter_idl_places(name: str, start: int = 0, prefix: str = "") -> Iterator[Place]:
    """The fields of a type but pads and reserves."""
    for field in TYPES[name]["fields"]:
        size = compute_size(field["type"])
        if not field["name"].startswith("_"):
            yield prefix + field["name"], start, size
        start += size


def iter_core_places(fields: list[Field]) -> Iterator[Place]:
    """The fields of a record but pads; the number of a list's entries has a name of its own."""
    start, lists = 0, {field.name for field in fields if field.is_later}
    for field in fields:
        is_count = field.name in lists and not field.is_later
        if not field.is_pad:
            yield field.name + ("_len" if is_count else ""), start, struct.calcsize("<" + field.code)
        start += field.size


@pytest.mark.parametrize("name", list(RECORDS))
def test_a_record_is_laid_out_as_in_core(name: str) -> None:
    assert list(iter_idl_places(name)) == list(iter_core_places(list(RECORDS[name].fields)))


def test_the_account_is_laid_out_as_in_core() -> None:
    core = list(iter_core_places([field for _, _, fields in tables.PARTS for field in fields]))
    (account,) = (one for one in IDL["accounts"] if one["name"] == "CoordinatorAccount")
    assert bytes(account["discriminator"]) == tables.DISCRIMINATOR
    found: list[Place] = [("discriminator", 0, 8)]
    for name, start, size in iter_idl_places("CoordinatorAccount", 8):
        found += iter_idl_places("Epoch", start, "epoch.") if name == "epoch" else [(name, start, size)]
    assert [place for place in found if place[0] != "epoch.clients_len"] == [
        place for place in core if place[0] != "clients_len"
    ]
    ((_, clients_len, _),) = (place for place in found if place[0] == "epoch.clients_len")
    assert ("clients_len", clients_len, 2) in core


def test_errors_have_the_numbers_of_core_and_then_the_programs_own() -> None:
    numbers = {one["code"]: one["name"] for one in IDL["errors"]}
    core = {6_000 + number: kind.__name__ for number, kind in REFUSALS.items()}
    own = [number for number in numbers if number not in core]
    assert {number: numbers[number] for number in core} == core
    assert own == list(range(MALFORMED, NOT_FREED + 1))
    assert all(one["msg"] for one in IDL["errors"])


def test_the_page_has_a_row_for_each_instruction_event_and_error_of_the_program_itself() -> None:
    rows = [f"`{one['name']}`" for one in (*IDL["instructions"], *IDL["events"])]
    for one in IDL["events"]:
        _, *fields = (field["name"] for field in TYPES[one["name"]]["fields"])
        assert f"| `{one['name']}` | {', '.join(fields)} |" in PAGE
    rows += [f"{one['code']:,} `{one['name']}`" for one in IDL["errors"] if one["code"] >= MALFORMED]
    assert [row for row in rows if f"\n| {row} |" not in PAGE] == []


def test_python_builds_each_instruction_with_the_accounts_of_the_idl() -> None:
    built: dict[bytes, Instruction] = {
        bytes(one.data[:8]): one
        for instructions in (*WITH_TICK.values(), *ALONE.values())
        for one in instructions
        if one.program_id == COORDINATOR
    }
    assert set(built) == {bytes(one["discriminator"]) for one in IDL["instructions"]}
    for one in IDL["instructions"]:
        discriminator = bytes(one["discriminator"])
        assert discriminator == get_discriminator("global", one["name"])
        asked = [(meta.get("signer", False), meta.get("writable", False)) for meta in one["accounts"]]
        assert asked == [(meta.is_signer, meta.is_writable) for meta in built[discriminator].accounts], one["name"]


def test_the_program_has_the_address_that_python_knows() -> None:
    assert IDL["address"] == str(COORDINATOR)


def test_constants_name_the_values_of_the_states() -> None:
    kinds = {"RUN_STATE": RunState, "CLIENT_STATE": ClientState, "SLOT_STATE": SlotState, "STOP_REASON": StopReason}
    named = {f"{prefix}_{one.name}": str(one.value) for prefix, kind in kinds.items() for one in kind}
    assert {one["name"]: one["value"] for one in IDL["constants"]} == named
    assert {one["type"] for one in IDL["constants"]} == {"u8"}
