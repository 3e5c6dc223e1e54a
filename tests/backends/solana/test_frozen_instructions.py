"""Every instruction has the bytes and accounts that it had when they were packed by hand."""

import json
from pathlib import Path
from typing import Final

import pytest
from frozen_instructions import CASES, describe_instruction

FROZEN: Final = json.loads(Path(__file__).with_suffix(".json").read_text())


@pytest.mark.parametrize("name", list(CASES))
def test_an_instruction_keeps_its_bytes_and_accounts(name: str) -> None:
    assert [describe_instruction(one) for one in CASES[name]()] == FROZEN[name]


def test_all_that_is_frozen_is_built() -> None:
    assert CASES.keys() == FROZEN.keys()
