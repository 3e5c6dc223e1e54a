"""Attacks on the programs that no single instruction shows: several in one transaction, and addresses laid in wait."""

import pytest
from kits.runs import build_paused_run
from kits.svm import SYSTEM, Refused
from programs.chain_kit import ChainStage
from programs.refusals import Anchor, TreasurerError
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from treasury_kit import Treasury, put_mint

from psyche.backends.solana.interface.addresses import (
    get_earned_points_address,
    get_instance_address,
    get_participant_address,
)
from psyche.core.state.messages import Tick
from psyche.core.state.state import ZERO32

DUST = 900_000  # enough for an empty account to be kept, and not for one of any of the programs


def pay(source: Pubkey, target: Pubkey, lamports: int = DUST) -> Instruction:
    return transfer(TransferParams(from_pubkey=source, to_pubkey=target, lamports=lamports))


class TestRevival:
    """Deposits that come back in the transaction that closes an account do not bring the account back."""

    def test_a_freed_run_stays_freed(self) -> None:
        stage = ChainStage(build_paused_run().state)
        bank, payer = stage.bank, stage.bank.payer.pubkey()
        free, tick = stage.free(payer), stage.build(ZERO32, Tick(None))
        back = [pay(payer, account, stage.deposit) for account in stage.run]
        bank.send(free, *back, signers=[stage.owner])
        for account in stage.run:
            left = bank.svm.get_account(account)
            assert left is not None
            assert (left.owner, bytes(left.data)) == (SYSTEM, b"")
        assert bank.refuse(tick) in (Anchor.EMPTY, Anchor.WRONG_OWNER)

    def test_its_name_can_be_taken_again(self) -> None:
        stage = ChainStage(build_paused_run().state)
        payer = stage.bank.payer.pubkey()
        stage.bank.send(stage.free(payer), pay(payer, stage.run.instance), signers=[stage.owner])
        stage.create()
        assert stage.state.nonce == 0

    def test_a_closed_treasury_pays_nobody(self) -> None:
        treasury = Treasury.build()
        bank, member = treasury.bank, treasury.enrol(5)
        spill, claim = treasury.owner.pubkey(), treasury.build_claim(member, 0)
        back = pay(spill, treasury.address, 10**8)
        with pytest.raises(Refused) as refused:
            bank.send(treasury.build_close(spill), back, claim, signers=[treasury.owner, member])
        assert refused.value.code in (Anchor.EMPTY, Anchor.WRONG_OWNER)
        bank.send(treasury.build_close(spill), back, signers=[treasury.owner])
        assert bank.refuse(claim, member) in (Anchor.EMPTY, Anchor.WRONG_OWNER)


def test_points_are_paid_once_in_one_transaction_too() -> None:
    treasury = Treasury.build()
    member = treasury.enrol(10)
    treasury.top_up(100)
    claims = [treasury.build_claim(member, points) for points in (6, 5)]
    assert treasury.bank.refuse(claims[1], member, before=claims[:1]) == TreasurerError.NOT_CLAIMABLE
    assert (treasury.held, treasury.get_participant(member).claimed_earned_points) == (100, 0)


class TestDust:
    """Who pays a little to an address before its account is made does not keep it from being made."""

    def test_runs_are_begun(self) -> None:
        stage = ChainStage()
        stage.bank.send(pay(stage.bank.payer.pubkey(), get_instance_address("run")))
        stage.create()
        assert stage.state.nonce == 0

    def test_treasuries_points_and_records_are_made(self) -> None:
        bank = Treasury.build().bank
        treasury = Treasury(bank, bank.fund(), put_mint(bank), Keypair(), "other")
        payer = bank.payer.pubkey()
        bank.send(pay(payer, treasury.address))
        treasury.create()
        member = treasury.earn(10)
        for address in (
            get_earned_points_address(treasury.run.run_uid, member.pubkey()),
            get_participant_address(treasury.address, member.pubkey()),
        ):
            bank.send(pay(payer, address))
        treasury.collect(member)
        bank.send(treasury.build_participant_create(member))
        assert (treasury.get_points(member).points, treasury.get_participant(member).claimed_earned_points) == (10, 0)
