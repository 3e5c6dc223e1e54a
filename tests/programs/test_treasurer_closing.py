"""What a run's owner gets back: what is not owed, and at the end every deposit."""

import pytest
from kits.svm import NOW, SOL, replace_accounts, signs
from programs.chain_kit import NOT_HALTED, UNCOLLECTED
from solders.keypair import Keypair
from treasury_kit import (
    DUPLICATE,
    FOREIGN,
    FOREIGN_MINT,
    FOREIGN_POINTS,
    FORMER_RUN,
    NOT_CLAIMABLE,
    NOT_CLOSED,
    NOT_OWNER,
    NOT_SIGNER,
    NOT_WRITABLE,
    OWED_TO_MEMBERS,
    POINTS_OWED,
    SETTINGS,
    TOO_LITTLE,
    U64_MAX,
    WRONG_KIND,
    WRONG_OWNER,
    WRONG_PROGRAM,
    Treasury,
    build_sibling,
    put_tokens,
)

from psyche.backends.solana.interface.addresses import COORDINATOR, TREASURER
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.treasurer import RunChange
from psyche.core.state.state import RunState


class TestRunWithdraw:
    def test_the_owner_takes_what_is_not_owed_and_no_more(self, treasury: Treasury) -> None:
        treasury.enrol(100)
        treasury.earn(30)
        treasury.top_up(1_000)
        assert treasury.owed == 130
        assert treasury.bank.refuse(treasury.build_withdraw(871), treasury.owner) == OWED_TO_MEMBERS
        assert treasury.bank.refuse(treasury.build_withdraw(1_001), treasury.owner) == TOO_LITTLE
        withdraw = treasury.build_withdraw(870)
        treasury.bank.send(withdraw, signers=[treasury.owner])
        assert (treasury.held, treasury.get_tokens(withdraw.accounts[3].pubkey)) == (130, 870)
        assert treasury.bank.refuse(treasury.build_withdraw(1), treasury.owner) == OWED_TO_MEMBERS

    def test_what_was_paid_is_owed_no_more(self, treasury: Treasury) -> None:
        member = treasury.enrol(100)
        treasury.top_up(150)
        treasury.claim(member, 60)
        assert treasury.bank.refuse(treasury.build_withdraw(51), treasury.owner) == OWED_TO_MEMBERS
        treasury.bank.send(treasury.build_withdraw(50), signers=[treasury.owner])
        treasury.claim(member, 40)
        assert treasury.held == 0

    @pytest.mark.parametrize(
        ("run_state", "pool"),
        [
            (RunState.WAITING_FOR_MEMBERS, 0), (RunState.WARMUP, 57), (RunState.ROUND_TRAIN, 57),
            (RunState.ROUND_WITNESS, 57), (RunState.COOLDOWN, 57), (RunState.FINISHED, 0), (RunState.PAUSED, 0),
        ],
    )  # fmt: skip
    def test_the_running_epochs_earnings_are_owed(self, treasury: Treasury, run_state: RunState, pool: int) -> None:
        treasury.top_up(100)
        state = treasury.state
        state.run_state = run_state
        state.registry.current_earning_rate, state.registry.carry = 50, 7
        state.registry.future_earning_rate = 1_000
        treasury.write_state(state)
        if pool:
            refused = treasury.build_withdraw(101 - pool)
            assert treasury.bank.refuse(refused, treasury.owner) == OWED_TO_MEMBERS
        treasury.bank.send(treasury.build_withdraw(100 - pool), signers=[treasury.owner])
        assert treasury.held == pool

    def test_sums_beyond_64_bits_are_owed(self, treasury: Treasury) -> None:
        for _ in range(3):
            treasury.earn(U64_MAX)
        treasury.top_up(100)
        assert treasury.bank.refuse(treasury.build_withdraw(1), treasury.owner) == OWED_TO_MEMBERS

    def test_only_the_owner_withdraws(self, treasury: Treasury) -> None:
        treasury.top_up(10)
        stranger, withdraw = treasury.bank.fund(), treasury.build_withdraw(5)
        assert treasury.bank.refuse(replace_accounts(withdraw, {0: signs(stranger)}), stranger) == NOT_OWNER
        assert treasury.bank.refuse(replace_accounts(withdraw, {0: reads(treasury.owner.pubkey())})) == NOT_SIGNER

    def test_only_accounts_of_the_run_are_accepted(self, treasury: Treasury) -> None:
        treasury.top_up(10)
        sibling, withdraw = build_sibling(treasury), treasury.build_withdraw(5)
        second = put_tokens(treasury.bank, treasury.mint, treasury.address, 10, at=Keypair().pubkey())
        foreign = put_tokens(treasury.bank, sibling.mint, treasury.owner.pubkey())
        for place, account, code in (
            (1, reads(sibling.address), NOT_OWNER),
            (1, reads(treasury.account.pubkey()), WRONG_OWNER),
            (2, writes(second), FOREIGN),
            (2, reads(treasury.run.run_collateral), NOT_WRITABLE),
            (3, writes(foreign), FOREIGN_MINT),
            (3, reads(withdraw.accounts[3].pubkey), NOT_WRITABLE),
            (4, reads(sibling.run.coordinator_instance), FOREIGN),
            (5, reads(sibling.account.pubkey()), FOREIGN),
            (6, reads(TREASURER), WRONG_PROGRAM),
        ):
            assert treasury.bank.refuse(replace_accounts(withdraw, {place: account}), treasury.owner) == code


class TestRunClose:
    def test_all_deposits_and_the_rest_of_the_tokens_go_to_the_owner(self, treasury: Treasury) -> None:
        bank, run, member = treasury.bank, treasury.run, treasury.enrol(10)
        treasury.top_up(25)
        treasury.claim(member, 10)
        spill, rest = Keypair().pubkey(), put_tokens(bank, treasury.mint, treasury.owner.pubkey())
        accounts = (run.address, run.run_collateral, run.coordinator_instance, run.coordinator_account)
        deposits = sum(map(bank.get_lamports, accounts))
        bank.send(treasury.build_close(spill, rest), signers=[treasury.owner])
        assert bank.get_lamports(spill) == deposits > 1.15 * SOL
        assert [bank.get_lamports(key) for key in accounts] == [0] * 4
        assert treasury.get_tokens(rest) == 15

    def test_a_run_that_goes_on_stays(self, treasury: Treasury) -> None:
        treasury.update(RunChange(SETTINGS, paused=False))
        assert treasury.bank.refuse(treasury.build_close(Keypair().pubkey()), treasury.owner) == NOT_HALTED

    def test_a_run_stays_as_long_as_it_owes_and_can_pay(self, treasury: Treasury) -> None:
        bank, spill = treasury.bank, Keypair().pubkey()
        member, late = treasury.enrol(10), treasury.earn(3)
        treasury.top_up(12)
        assert bank.refuse(treasury.build_close(spill), treasury.owner) == POINTS_OWED
        treasury.claim(member, 10, treasury.owner)
        assert bank.refuse(treasury.build_close(spill), treasury.owner) == POINTS_OWED
        treasury.collect(late)
        bank.send(treasury.build_participant_create(late))
        put_tokens(bank, treasury.mint, late.pubkey())
        treasury.claim(late, 2, treasury.owner)
        assert (treasury.held, treasury.owed) == (0, 1)
        bank.send(treasury.build_close(spill), signers=[treasury.owner])
        assert bank.get_data(treasury.address) == b""

    def test_points_in_slots_are_collected_first(self, treasury: Treasury) -> None:
        member, spill = treasury.earn(3), Keypair().pubkey()
        assert treasury.bank.refuse(treasury.build_close(spill), treasury.owner) == UNCOLLECTED
        treasury.collect(member)
        treasury.bank.send(treasury.build_close(spill), signers=[treasury.owner])

    def test_only_the_owner_closes_a_run(self, treasury: Treasury) -> None:
        stranger, close = treasury.bank.fund(), treasury.build_close(Keypair().pubkey())
        assert treasury.bank.refuse(replace_accounts(close, {0: signs(stranger)}), stranger) == NOT_OWNER
        assert treasury.bank.refuse(replace_accounts(close, {0: reads(treasury.owner.pubkey())})) == NOT_SIGNER

    def test_only_accounts_of_the_run_are_accepted(self, treasury: Treasury) -> None:
        sibling, close = build_sibling(treasury), treasury.build_close(Keypair().pubkey())
        second = put_tokens(treasury.bank, treasury.mint, treasury.address, at=Keypair().pubkey())
        foreign = put_tokens(treasury.bank, sibling.mint, treasury.owner.pubkey())
        for place, account, code in (
            (2, writes(sibling.address), NOT_OWNER),
            (3, writes(second), FOREIGN),
            (4, writes(foreign), FOREIGN_MINT),
            (4, writes(treasury.run.run_collateral), DUPLICATE),
            (5, writes(sibling.run.coordinator_instance), FOREIGN),
            (6, writes(sibling.account.pubkey()), FOREIGN),
            (7, reads(TREASURER), WRONG_PROGRAM),
            (8, reads(COORDINATOR), WRONG_PROGRAM),
            *((place, reads(close.accounts[place].pubkey), NOT_WRITABLE) for place in range(1, 7)),
        ):
            assert treasury.bank.refuse(replace_accounts(close, {place: account}), treasury.owner) == code, place

    def test_a_closed_run_can_be_made_anew_and_owes_nothing(self, treasury: Treasury) -> None:
        bank, member = treasury.bank, treasury.enrol(10)
        treasury.top_up(10)
        treasury.claim(member, 10)
        points = treasury.build_claim(member, 0).accounts[5]
        bank.send(treasury.build_close(Keypair().pubkey()), signers=[treasury.owner])
        bank.set_time(NOW + 1)
        treasury.create()  # with the same key as its account
        assert treasury.owed == 0
        treasury.top_up(50)
        treasury.earn(7, member)
        treasury.collect(member)
        claim = treasury.build_claim(member, 1)
        assert bank.refuse(claim, member) == FORMER_RUN
        assert bank.refuse(replace_accounts(claim, {5: points}), member) == FOREIGN_POINTS
        bank.send(treasury.build_participant_close(member))
        bank.send(treasury.build_participant_create(member))
        treasury.claim(member, 7)
        assert treasury.bank.refuse(treasury.build_claim(member, 1), member) == NOT_CLAIMABLE


class TestParticipantClose:
    def test_the_deposit_goes_back_to_who_paid_it_once_the_run_is_closed(self, treasury: Treasury) -> None:
        bank, member = treasury.bank, treasury.enrol(0)
        close = treasury.build_participant_close(member)
        assert bank.refuse(close) == NOT_CLOSED
        bank.send(treasury.build_close(Keypair().pubkey()), signers=[treasury.owner])
        deposit, before = bank.get_lamports(close.accounts[2].pubkey), bank.get_lamports(bank.payer.pubkey())
        bank.send(close)
        assert bank.get_lamports(bank.payer.pubkey()) == before + deposit - 5_000
        assert bank.get_data(close.accounts[2].pubkey) == b""

    def test_only_its_accounts_are_accepted(self, treasury: Treasury) -> None:
        bank, member, sibling = treasury.bank, treasury.enrol(0), build_sibling(treasury)
        close = treasury.build_participant_close(member)
        bank.send(treasury.build_close(Keypair().pubkey()), signers=[treasury.owner])
        for place, account, code in (
            (0, writes(Keypair().pubkey()), FOREIGN),
            (1, reads(sibling.address), FOREIGN),
            (2, writes(sibling.address), WRONG_KIND),
            (2, reads(close.accounts[2].pubkey), NOT_WRITABLE),
        ):
            assert bank.refuse(replace_accounts(close, {place: account})) == code
