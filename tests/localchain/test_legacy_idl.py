"""Interfaces in their legacy form say the same as the new ones."""

import pytest

from psyche.backends.solana.interface.idl import NAMES, load_idl
from psyche.localchain.legacy_idl import convert_to_legacy


@pytest.mark.parametrize("program", NAMES)
def test_the_legacy_form_has_every_instruction_account_and_error(program: str) -> None:
    new = load_idl(program)
    old = convert_to_legacy(new)
    assert [one["name"].lower() for one in old["instructions"]] == [
        one["name"].replace("_", "") for one in new["instructions"]
    ]
    for before, after in zip(new["instructions"], old["instructions"], strict=True):
        flags = [(one.get("writable", False), one.get("signer", False)) for one in before["accounts"]]
        assert flags == [(one["isMut"], one["isSigner"]) for one in after["accounts"]]
    assert [one["name"] for one in old["accounts"]] == [one["name"] for one in new["accounts"]]
    assert old["errors"] == new["errors"]
    assert old["constants"] == new.get("constants", [])


def test_types_are_named_as_they_were() -> None:
    fields = {one["name"]: one["type"]["fields"] for one in convert_to_legacy(load_idl("coordinator"))["accounts"]}
    assert fields["CoordinatorInstance"][1] == {"name": "mainAuthority", "type": "publicKey"}
    assert {"name": "registry", "type": {"defined": "Registry"}} in fields["CoordinatorAccount"]
    assert {"name": "_pad", "type": {"array": ["u8", 7]}} in fields["CoordinatorAccount"]
