"""What the treasurer pays: to members alone, for points that they earned, and each once."""

import pytest
from kits.svm import SYSTEM, replace_accounts
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from treasury_kit import (
    ACCOUNT_IN_USE,
    BAD_SEEDS,
    DUPLICATE,
    FOREIGN,
    FOREIGN_MINT,
    FOREIGN_POINTS,
    MAY_NOT_CLAIM,
    NO_ACCOUNT,
    NOT_ASSOCIATED,
    NOT_CLAIMABLE,
    NOT_OWN,
    NOT_SIGNER,
    NOT_WRITABLE,
    TOO_LITTLE,
    TOO_MUCH,
    U64_MAX,
    WRONG_KIND,
    WRONG_OWNER,
    WRONG_PROGRAM,
    Treasury,
    build_sibling,
    put_mint,
    put_tokens,
)

from psyche.backends.solana.interface.addresses import TREASURER
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.treasurer import build_participant_claim

FROZEN = 17  # the token program's error


def put_shut_tokens(
    treasury: Treasury,
    member: Keypair,
    *,
    frozen: bool = False,
    given_away: bool = False,
    delegate: Pubkey | None = None,
) -> None:
    """A member's associated token account that takes no payment which is the member's alone."""
    at = treasury.get_user_collateral(member)
    owner = Keypair().pubkey() if given_away else member.pubkey()
    put_tokens(treasury.bank, treasury.mint, owner, at=at, delegate=delegate)
    if frozen:
        raw = treasury.bank.get_data(at)
        treasury.bank.put(at, TOKEN, raw[:108] + b"\2" + raw[109:])


def build_owner_claim(treasury: Treasury, member: Keypair, to: Pubkey, *, shut: Pubkey | None) -> Instruction:
    """The owner pays a member one point into another account than the associated one."""
    return build_participant_claim(treasury.run, treasury.owner.pubkey(), member.pubkey(), to, 1, shut=shut)


class TestParticipantCreate:
    def test_anybody_makes_the_record_of_any_key_and_pays_for_it(self, treasury: Treasury) -> None:
        member = Keypair()
        before = treasury.bank.get_lamports(treasury.bank.payer.pubkey())
        treasury.bank.send(treasury.build_participant_create(member))
        made = treasury.get_participant(member)
        assert (made.run, made.user, made.run_uid) == (treasury.address, member.pubkey(), treasury.run.run_uid)
        assert (made.payer, made.claimed_earned_points) == (treasury.bank.payer.pubkey(), 0)
        fee, deposit = 5_000, treasury.bank.svm.minimum_balance_for_rent_exemption(145)
        assert before - treasury.bank.get_lamports(made.payer) == deposit + fee

    def test_it_is_made_once(self, treasury: Treasury) -> None:
        member = treasury.enrol(5)
        assert treasury.bank.refuse(treasury.build_participant_create(member)) == ACCOUNT_IN_USE

    def test_accounts_that_are_not_the_right_ones_are_refused(self, treasury: Treasury) -> None:
        member, payer, sibling = Keypair(), treasury.bank.fund(), build_sibling(treasury)
        create = treasury.build_participant_create(member)
        for place, account, code in (
            (0, writes(payer.pubkey()), NOT_SIGNER),
            (1, reads(Keypair().pubkey()), BAD_SEEDS),
            (2, reads(sibling.address), BAD_SEEDS),
            (2, reads(treasury.account.pubkey()), WRONG_OWNER),
            (3, writes(Keypair().pubkey()), BAD_SEEDS),
            (4, reads(TREASURER), WRONG_PROGRAM),
        ):
            assert treasury.bank.refuse(replace_accounts(create, {place: account})) == code


class TestParticipantClaim:
    def test_a_member_is_paid_to_the_last_unit_and_no_more(self, treasury: Treasury) -> None:
        member = treasury.enrol(1_001)
        treasury.top_up(5_000)
        for points in (1, 0, 333, 667):
            treasury.claim(member, points)
        assert treasury.get_tokens(treasury.get_user_collateral(member)) == 1_001
        assert treasury.get_participant(member).claimed_earned_points == 1_001
        assert (treasury.held, treasury.owed, treasury.run.total_claimed_earned_points) == (3_999, 0, 1_001)
        assert treasury.bank.refuse(treasury.build_claim(member, 1), member) == NOT_CLAIMABLE

    def test_points_that_are_collected_later_are_paid_too(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        treasury.top_up(100)
        treasury.claim(member, 10)
        state = treasury.state
        state.registry.slots[0].earned = 32
        treasury.write_state(state)
        assert treasury.bank.refuse(treasury.build_claim(member, 32), member) == NOT_CLAIMABLE
        treasury.collect(member)
        treasury.claim(member, 32)
        assert (treasury.held, treasury.get_points(member).points) == (58, 42)

    def test_points_before_they_are_earned_or_funded_are_refused(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        assert treasury.bank.refuse(treasury.build_claim(member, 11), member) == NOT_CLAIMABLE
        assert treasury.bank.refuse(treasury.build_claim(member, 10), member) == TOO_LITTLE
        treasury.top_up(9)
        assert treasury.bank.refuse(treasury.build_claim(member, 10), member) == TOO_LITTLE
        treasury.claim(member, 9)
        assert treasury.owed == 1

    def test_numbers_beyond_64_bits_are_refused(self, treasury: Treasury) -> None:
        member = treasury.enrol(U64_MAX)
        treasury.top_up(5)
        assert treasury.bank.refuse(treasury.build_claim(member, U64_MAX), member) == TOO_LITTLE
        treasury.claim(member, 5)
        assert treasury.bank.refuse(treasury.build_claim(member, U64_MAX), member) == TOO_MUCH

    def test_only_the_member_and_the_owner_claim(self, treasury: Treasury) -> None:
        member, other = treasury.enrol(10), treasury.enrol(10)
        treasury.top_up(20)
        assert treasury.bank.refuse(treasury.build_claim(member, 5, other), other) == MAY_NOT_CLAIM
        claim = treasury.build_claim(member, 5)
        assert treasury.bank.refuse(replace_accounts(claim, {0: reads(member.pubkey())})) == NOT_SIGNER
        sibling = build_sibling(treasury)
        assert treasury.bank.refuse(treasury.build_claim(member, 5, sibling.owner), sibling.owner) == MAY_NOT_CLAIM
        treasury.claim(member, 5, treasury.owner)
        assert treasury.get_tokens(treasury.get_user_collateral(member)) == 5

    def test_the_owner_pays_only_where_the_member_looks(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        treasury.top_up(10)
        hidden = writes(put_tokens(treasury.bank, treasury.mint, member.pubkey(), at=Keypair().pubkey()))
        claim = replace_accounts(treasury.build_claim(member, 5, treasury.owner), {2: hidden})
        assert treasury.bank.refuse(claim, treasury.owner) == NOT_ASSOCIATED
        treasury.bank.send(replace_accounts(treasury.build_claim(member, 5), {2: hidden}), signers=[member])
        assert treasury.get_tokens(hidden.pubkey) == 5

    @pytest.mark.parametrize("shut", [{"frozen": True}, {"delegate": Keypair().pubkey()}, {"given_away": True}])
    def test_a_member_cannot_refuse_its_points_to_keep_the_run(
        self, treasury: Treasury, shut: dict[str, object]
    ) -> None:
        """Otherwise one point that cannot be paid would keep the deposits of the whole run."""
        bank, member = treasury.bank, treasury.enrol(1)
        treasury.top_up(10)
        associated = treasury.get_user_collateral(member)
        put_shut_tokens(treasury, member, **shut)  # type: ignore[arg-type]
        assert bank.refuse(treasury.build_claim(member, 1, treasury.owner), treasury.owner) in (NOT_OWN, FROZEN)
        other = put_tokens(bank, treasury.mint, member.pubkey(), at=Keypair().pubkey())
        bank.send(build_owner_claim(treasury, member, other, shut=associated), signers=[treasury.owner])
        assert (treasury.get_tokens(other), treasury.owed) == (1, 0)
        bank.send(treasury.build_close(Keypair().pubkey()), signers=[treasury.owner])
        assert bank.get_data(treasury.address) == b""

    def test_only_the_members_associated_account_counts_as_shut(self, treasury: Treasury) -> None:
        bank, member, thief = treasury.bank, treasury.enrol(1), treasury.enrol(1)
        treasury.top_up(10)
        hidden = put_tokens(bank, treasury.mint, member.pubkey(), at=Keypair().pubkey())

        def refuse(shut: Pubkey | None, to: Pubkey = hidden) -> int | None:
            return bank.refuse(build_owner_claim(treasury, member, to, shut=shut), treasury.owner)

        assert refuse(treasury.get_user_collateral(member)) == NOT_ASSOCIATED  # it is open
        assert refuse(treasury.get_user_collateral(thief)) == NOT_ASSOCIATED
        put_shut_tokens(treasury, member, frozen=True)
        assert refuse(None) == NOT_ASSOCIATED
        assert refuse(treasury.get_user_collateral(thief)) == NOT_ASSOCIATED
        assert refuse(treasury.get_user_collateral(member), treasury.get_user_collateral(thief)) == NOT_OWN
        bank.put(treasury.get_user_collateral(member), SYSTEM, b"")
        assert refuse(treasury.get_user_collateral(member)) == NOT_ASSOCIATED  # it can be made

    def test_a_token_account_must_be_the_members_own(self, treasury: Treasury) -> None:
        member, thief = treasury.enrol(10), treasury.bank.fund()
        treasury.top_up(10)
        bank, claim = treasury.bank, treasury.build_claim(member, 5)

        def pay_to(account: AccountMeta) -> int | None:
            return bank.refuse(replace_accounts(claim, {2: account}), member)

        assert pay_to(writes(put_tokens(bank, treasury.mint, thief.pubkey()))) == NOT_OWN
        shared = put_tokens(bank, treasury.mint, member.pubkey(), 1, at=Keypair().pubkey(), delegate=thief.pubkey())
        assert pay_to(writes(shared)) == NOT_OWN
        assert pay_to(writes(put_tokens(bank, put_mint(bank), member.pubkey()))) == FOREIGN_MINT
        assert pay_to(writes(treasury.run.run_collateral)) in (NOT_OWN, DUPLICATE)
        assert pay_to(reads(treasury.get_user_collateral(member))) == NOT_WRITABLE
        assert pay_to(writes(treasury.mint)) == NO_ACCOUNT
        forged = Keypair().pubkey()
        bank.put(forged, TREASURER, bank.get_data(treasury.get_user_collateral(member)))
        assert pay_to(writes(forged)) == WRONG_OWNER

    def test_points_and_records_of_others_are_refused(self, treasury: Treasury) -> None:
        member, other, sibling = treasury.enrol(10), treasury.enrol(20), build_sibling(treasury)
        foreign = sibling.enrol(30)
        sibling.earn(40, member)
        sibling.collect(member)
        sibling.bank.send(sibling.build_participant_create(member))
        treasury.top_up(50)
        mine, theirs = treasury.build_claim(member, 5), treasury.build_claim(other, 5)
        abroad, own_abroad = sibling.build_claim(foreign, 5), sibling.build_claim(member, 5)
        forged = Keypair().pubkey()
        treasury.bank.put(forged, TREASURER, treasury.bank.get_data(mine.accounts[5].pubkey))
        for place, account, code in (
            (1, reads(other.pubkey()), MAY_NOT_CLAIM),
            (3, own_abroad.accounts[3], FOREIGN_MINT),
            (4, own_abroad.accounts[4], FOREIGN),
            (5, theirs.accounts[5], FOREIGN_POINTS),
            (5, abroad.accounts[5], FOREIGN_POINTS),
            (5, own_abroad.accounts[5], FOREIGN_POINTS),
            (5, reads(forged), WRONG_OWNER),
            (5, reads(treasury.run.coordinator_instance), WRONG_KIND),
            (6, theirs.accounts[6], FOREIGN),
            (6, own_abroad.accounts[6], FOREIGN),
            (6, writes(treasury.address), WRONG_KIND),
            (7, reads(TREASURER), WRONG_PROGRAM),
        ):
            assert treasury.bank.refuse(replace_accounts(mine, {place: account}), member) == code, place

    def test_another_token_account_of_the_run_does_not_pay(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        second = put_tokens(treasury.bank, treasury.mint, treasury.address, 10, at=Keypair().pubkey())
        claim = replace_accounts(treasury.build_claim(member, 5), {4: writes(second)})
        assert treasury.bank.refuse(claim, member) == FOREIGN

    def test_accounts_that_change_must_be_writable(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        treasury.top_up(10)
        claim = treasury.build_claim(member, 5)
        for place in (2, 3, 4, 6):
            fixed = replace_accounts(claim, {place: reads(claim.accounts[place].pubkey)})
            assert treasury.bank.refuse(fixed, member) == NOT_WRITABLE

    def test_points_of_members_who_left_are_paid(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        state = treasury.state
        state.registry.slots.clear()
        treasury.write_state(state)
        treasury.top_up(10)
        treasury.claim(member, 10)
        assert treasury.owed == 0
