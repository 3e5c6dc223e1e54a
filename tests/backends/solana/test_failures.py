"""Errors of transactions: each number of the programs becomes its class, with a sentence that says what to do."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.token import ID as TOKEN

from psyche.backends.solana.interface.addresses import AUTHORIZER, COORDINATOR, TREASURER
from psyche.backends.solana.interface.failures import (
    ANCHOR,
    CHAIN,
    INSTRUCTION,
    PROGRAMS,
    ProgramRefused,
    TransactionFailed,
    WalletEmpty,
    read_failure,
)
from psyche.core.state.errors import REFUSALS, CannotUpdate, CoordinatorError, WrongRound

BUILT = Path(__file__).parents[3] / "programs" / "built"
RULES = re.compile(r" \((?:[A-Z]\d+(?:, | to )?)+\)")  # numbers of rules are not for users
KEYS = {"coordinator": COORDINATOR, "authorizer": AUTHORIZER, "treasurer": TREASURER}
ERRORS = [(name, error) for name in KEYS for error in json.loads((BUILT / f"psyche_{name}.json").read_text())["errors"]]
BUDGET = Pubkey.from_string("ComputeBudget111111111111111111111111111111")


def custom(number: int, place: int = 0) -> Any:
    return {"InstructionError": [place, {"Custom": number}]}


@pytest.mark.parametrize(("name", "error"), ERRORS, ids=[f"{name}-{error['code']}" for name, error in ERRORS])
def test_each_error_of_an_idl_is_told_as_the_idl_says_it(name: str, error: dict[str, Any]) -> None:
    found = read_failure(custom(error["code"]), programs=[KEYS[name]])
    assert RULES.sub("", error["msg"]) in str(found)
    number = error["code"] - 6_000
    if name == "coordinator" and number in REFUSALS:
        assert type(found) is REFUSALS[number]
        assert type(found).__name__ == error["name"]
    else:
        assert isinstance(found, ProgramRefused)
        assert (found.program, found.number, found.reason) == (name, error["code"], error["name"])


def test_every_refusal_of_the_core_has_a_number_on_the_chain_and_no_sentence_the_number_of_a_rule() -> None:
    assert {6_000 + number for number in REFUSALS} <= {
        error["code"] for owner, error in ERRORS if owner == "coordinator"
    }
    sentences = [str(read_failure(custom(error["code"]), programs=[KEYS[name]])) for name, error in ERRORS]
    assert [one for one in sentences if re.search(r"\([A-Z]\d", one)] == []
    assert str(read_failure(custom(6_002), programs=[COORDINATOR])) == (
        "The message names an epoch and round that are not running; read the account again"
    )


def test_budget_instructions_shift_the_place_of_a_failed_instruction() -> None:
    error = custom(6_000, place=2)
    assert isinstance(read_failure(error, programs=[BUDGET, BUDGET, COORDINATOR]), CoordinatorError)
    found = read_failure(error, programs=[BUDGET, BUDGET, AUTHORIZER])
    assert isinstance(found, ProgramRefused)
    assert found.reason == "AuthorizationActiveIsTrue"


def test_the_logs_tell_that_a_called_program_refused() -> None:
    logs = [
        f"Program {TREASURER} invoke [1]",
        f"Program {COORDINATOR} invoke [2]",
        f"Program {COORDINATOR} failed: custom program error: 0x1785",
        f"Program {TREASURER} failed: custom program error: 0x1785",
    ]
    assert isinstance(read_failure(custom(6_021), logs, [TREASURER]), CannotUpdate)
    assert isinstance(read_failure(custom(6_002), [], [TREASURER]), ProgramRefused)
    assert isinstance(read_failure(custom(6_002), [], [COORDINATOR]), WrongRound)


@pytest.mark.parametrize("number", [*ANCHOR, 2_500, 3_017, 4_200, 5_999])
def test_an_error_of_anchor_names_the_account_and_what_to_do(number: int) -> None:
    line = "Program log: AnchorError caused by account: coordinator_account. Error Code: X. Error Number: {}. Error"
    found = read_failure(custom(number), [line.format(number), line.format(1)][:1], [COORDINATOR])
    assert isinstance(found, ProgramRefused)
    assert "account coordinator_account" in str(found)
    assert found.number == number
    assert ";" in str(found)


def test_errors_of_the_chains_own_programs_say_what_to_do() -> None:
    for program, key in (("system", SYSTEM), ("token", TOKEN)):
        for number, text in PROGRAMS[program].items():
            found = read_failure(custom(number), programs=[key])
            assert text in str(found)
            assert isinstance(found, WalletEmpty) == ((program, number) == ("system", 1))


def test_a_wallet_without_lamports_has_a_class_of_its_own() -> None:
    for error in ("AccountNotFound", "InsufficientFundsForFee", {"InsufficientFundsForRent": {"account_index": 0}}):
        assert isinstance(read_failure(error), WalletEmpty)
    assert not isinstance(read_failure("AccountInUse"), WalletEmpty)


@pytest.mark.parametrize("name", [*CHAIN, *INSTRUCTION, "SomethingNew"])
def test_errors_of_a_transaction_and_of_an_instruction_keep_the_chains_name_for_them(name: str) -> None:
    assert f"({name})" in str(read_failure({"InstructionError": [0, name]}, programs=[COORDINATOR]))
    assert str(read_failure(name)).endswith(f"{CHAIN.get(name, 'report it')} ({name})")


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=9) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["InstructionError", "Custom"]), inner),
)


@given(json_values, st.lists(st.text(max_size=60), max_size=4))
def test_whatever_an_endpoint_says_becomes_one_error(error: Any, logs: list[str]) -> None:
    assert isinstance(read_failure(error, logs, [COORDINATOR]), CoordinatorError | TransactionFailed)


def test_a_number_that_no_table_has_is_told_with_its_program() -> None:
    for program, number in product(KEYS.values(), (1, 6_099, 6_200, 2**32)):
        found = read_failure(custom(number), programs=[program])
        assert isinstance(found, ProgramRefused)
        assert str(number) in str(found)
