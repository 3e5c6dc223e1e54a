"""docs/programs.md: it names every instruction of authorizer and treasurer, and every deposit as it is."""

import re
from pathlib import Path

import pytest
from solders.keypair import Keypair
from treasury_kit import Treasury

from psyche.backends.solana.interface.addresses import (
    get_authorization_address,
    get_earned_points_address,
    get_participant_address,
)
from psyche.backends.solana.interface.authorizer import build_authorization_create, build_authorization_grantee_update

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("program", ["authorizer", "treasurer"])
def test_the_page_has_a_row_for_each_instruction(program: str) -> None:
    source = (ROOT / "programs" / program / "src" / "lib.rs").read_text(encoding="utf-8")
    names = re.findall(r"^    pub fn (\w+)\(", source, re.MULTILINE)
    assert len(names) >= 4
    assert [name for name in names if f"\n| `{name}` |" not in TEXT] == []


def get_deposit(name: str) -> int:
    """The lamports in the row that begins with this."""
    (row,) = re.findall(rf"^\| {re.escape(name)} \|.*$", TEXT, re.MULTILINE)
    (digits,) = re.findall(r"\| ([\d,]+)", row)
    return int(digits.replace(",", ""))


def test_the_deposits_of_a_run_are_those_of_the_page() -> None:
    treasury = Treasury.build()
    member, run = treasury.enrol(1), treasury.run
    for name, key in (
        ("coordinator account", run.coordinator_account),
        ("`CoordinatorInstance`", run.coordinator_instance),
        ("`EarnedPoints`", get_earned_points_address(run.run_uid, member.pubkey())),
        ("treasurer's `Run`", run.address),
        ("its token account", run.run_collateral),
        ("`Participant`", get_participant_address(run.address, member.pubkey())),
    ):
        assert treasury.bank.get_lamports(key) == get_deposit(name), name


def test_the_deposits_of_an_authorization_are_those_of_the_page() -> None:
    bank = Treasury.build().bank
    grantor, grantee = bank.fund(), bank.fund()
    payer, address = bank.payer.pubkey(), get_authorization_address(grantor.pubkey(), grantee.pubkey())
    bank.send(build_authorization_create(payer, grantor.pubkey(), grantee.pubkey()), signers=[grantor])
    alone = bank.get_lamports(address)
    added = [Keypair().pubkey()]
    bank.send(build_authorization_grantee_update(payer, grantee.pubkey(), address, added), signers=[grantee])
    assert alone == get_deposit("`Authorization`")
    assert bank.get_lamports(address) - alone == get_deposit("each delegate in it")
