"""The treasurer's runs and money: who is owed, what is paid and to whom, and what the owner gets back at the end."""

from dataclasses import replace

import pytest
from kits.chain.anchor import encode_bytes
from kits.svm import NOW, SOL, SYSTEM, TRANSACTION_BYTES, replace_accounts
from programs.refusals import CoordinatorError, TreasurerError
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from treasury_kit import ACCOUNT_IN_USE, CANNOT_UPDATE, CONFIG_REFUSED, SETTINGS, Treasury, count_bytes, put_tokens

from psyche.backends.solana.interface.addresses import COORDINATOR, TREASURER
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.treasurer import RunChange, build_participant_claim
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import Update
from psyche.core.state.state import Metadata, RunState
from psyche.testing.builders import build_config


def build_new(treasury: Treasury, run_id: str = "next") -> Treasury:
    """A run of the same owner and token that is not there yet."""
    return Treasury(treasury.bank, treasury.owner, treasury.mint, Keypair(), run_id)


class TestRunCreate:
    def test_the_run_owns_the_coordinator_and_a_token_account(self, treasury: Treasury) -> None:
        run, instance = treasury.run, treasury.instance
        assert (run.main_authority, run.join_authority) == (treasury.owner.pubkey(), treasury.owner.pubkey())
        assert (run.coordinator_account, run.collateral_mint) == (treasury.account.pubkey(), treasury.mint)
        assert run.run_collateral == get_associated_token_address(run.address, treasury.mint)
        assert run.run_uid == treasury.state.run_uid != bytes(32)
        assert (instance.main_authority, instance.coordinator_account) == (run.address, treasury.account.pubkey())
        assert (instance.join_authority, instance.run_id) == (treasury.owner.pubkey(), treasury.run_id)
        assert (treasury.state.client_version, treasury.held, treasury.owed) == ("1.0", 0, 0)

    def test_an_index_belongs_to_its_owner_alone(self, treasury: Treasury) -> None:
        squatter = Treasury(treasury.bank, treasury.bank.fund(), treasury.mint, Keypair(), "squatter")
        squatter.create()
        assert squatter.run.index != treasury.run.index
        new = build_new(treasury, "squatter-2")
        new.create()
        assert new.address != squatter.address
        taken = build_new(treasury)
        make, create = taken.build_create(index=new.run.index)
        assert treasury.refuse(create, taken.account, before=[make]) == ACCOUNT_IN_USE

    def test_a_token_account_that_was_made_before_is_no_obstacle(self, treasury: Treasury) -> None:
        new = build_new(treasury)
        put_tokens(treasury.bank, treasury.mint, new.address, 5)
        new.create()
        assert new.held == 5

    def test_the_coordinator_refuses_a_run_id_without_bytes_or_with_33(self, treasury: Treasury) -> None:
        for run_id in (b"", b"x" * 33):
            new = build_new(treasury, "x" * 32)
            make, create = new.build_create()
            data = bytes(create.data).replace(encode_bytes(b"x" * 32), encode_bytes(run_id))
            instance = writes(Pubkey.find_program_address([b"coordinator", run_id[:32]], COORDINATOR)[0])
            wrong = Instruction(TREASURER, data, [*create.accounts[:5], instance, *create.accounts[6:]])
            assert treasury.refuse(wrong, new.account, before=[make]) == CoordinatorError.INVALID_TEXTS

    def test_a_used_run_id_or_account_is_refused(self, treasury: Treasury) -> None:
        bank = treasury.bank
        again = Treasury(bank, bank.fund(), treasury.mint, Keypair(), treasury.run_id)
        make, create = again.build_create()
        assert again.refuse(create, again.account, before=[make]) == ACCOUNT_IN_USE
        reused = Treasury(bank, bank.fund(), treasury.mint, treasury.account, "reused")
        _, create = reused.build_create()
        assert bank.refuse(create, reused.owner, reused.account) is not None

    def test_the_largest_creation_fits_a_transaction_with_a_payer_of_its_own(self, treasury: Treasury) -> None:
        new = build_new(treasury, "x" * 32)
        instructions = new.build_create(client_version="v" * 96)
        assert count_bytes(treasury.bank, instructions, treasury.owner, new.account) <= TRANSACTION_BYTES
        new.create()


class TestRunUpdate:
    def test_each_part_reaches_the_coordinator(self, treasury: Treasury) -> None:
        treasury.update(RunChange(SETTINGS))
        treasury.update(RunChange(Update(metadata=Metadata(name="a name"), bootstrap=("/ip4/127.0.0.1/tcp/1",))))
        treasury.update(RunChange(earning=7))
        treasury.update(RunChange(slashing=9))
        treasury.update(RunChange(client_version="2.0"))
        treasury.update(RunChange(paused=False))
        state = treasury.state
        assert (state.config, state.metadata.name) == (SETTINGS.config, "a name")
        assert state.bootstrap == ["/ip4/127.0.0.1/tcp/1"]
        assert (state.registry.future_earning_rate, state.registry.future_slashing_rate) == (7, 9)
        assert (state.client_version, state.run_state) == ("2.0", RunState.WAITING_FOR_MEMBERS)

    def test_a_resumption_comes_last_and_a_pause_first(self, treasury: Treasury) -> None:
        treasury.update(RunChange(SETTINGS, 5, 6, paused=False, client_version="3"))
        assert (treasury.state.run_state, treasury.state.client_version) == (RunState.WAITING_FOR_MEMBERS, "3")
        other = Update(config=build_config(entropy_delay=4, warmup_time=31))
        treasury.update(RunChange(other, paused=True, client_version="4"))
        state = treasury.state
        assert (state.run_state, state.config, state.client_version) == (RunState.PAUSED, other.config, "4")

    def test_nothing_changes_nothing(self, treasury: Treasury) -> None:
        before = treasury.state
        treasury.update(RunChange())
        assert treasury.state == before

    def test_one_refused_part_undoes_all(self, treasury: Treasury) -> None:
        treasury.update(RunChange(SETTINGS, paused=False))
        before = treasury.state
        change = RunChange(SETTINGS, earning=77)
        assert treasury.refuse(treasury.build_update(change)) == CANNOT_UPDATE
        bad = RunChange(Update(config=build_config(min_clients=0)), paused=True)
        assert treasury.refuse(treasury.build_update(bad)) == CONFIG_REFUSED
        assert treasury.state == before

    def test_the_largest_update_fits_a_transaction_with_a_payer_of_its_own(self, treasury: Treasury) -> None:
        progress = replace(treasury.state.progress, step=1)
        settings = replace(SETTINGS, progress=progress)
        update = treasury.build_update(RunChange(settings, 1, 1, paused=False))
        assert count_bytes(treasury.bank, (update,), treasury.owner) <= TRANSACTION_BYTES
        texts = RunChange(Update(metadata=Metadata("n" * 64, "d" * 280)), client_version="v" * 96)
        assert count_bytes(treasury.bank, (treasury.build_update(texts),), treasury.owner) <= TRANSACTION_BYTES


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
    claim = build_participant_claim(treasury.run, treasury.owner.pubkey(), member.pubkey(), to, 1)
    return claim if shut is None else Instruction(claim.program_id, claim.data, [*claim.accounts, reads(shut)])


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


class TestParticipantClaim:
    def test_a_member_is_paid_to_the_last_unit_and_no_more(self, treasury: Treasury) -> None:
        member = treasury.enrol(1_001)
        treasury.top_up(5_000)
        for points in (1, 0, 333, 667):
            treasury.claim(member, points)
        assert treasury.get_tokens(treasury.get_user_collateral(member)) == 1_001
        assert treasury.get_participant(member).claimed_earned_points == 1_001
        assert (treasury.held, treasury.owed, treasury.run.total_claimed_earned_points) == (3_999, 0, 1_001)
        assert treasury.refuse(treasury.build_claim(member, 1), member) == TreasurerError.NOT_CLAIMABLE

    def test_points_that_are_collected_later_are_paid_too(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        treasury.top_up(100)
        treasury.claim(member, 10)
        state = treasury.state
        state.registry.slots[0].earned = 32
        treasury.write_state(state)
        assert treasury.refuse(treasury.build_claim(member, 32), member) == TreasurerError.NOT_CLAIMABLE
        treasury.collect(member)
        treasury.claim(member, 32)
        assert (treasury.held, treasury.get_points(member).points) == (58, 42)

    def test_points_before_they_are_earned_or_funded_are_refused(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        assert treasury.refuse(treasury.build_claim(member, 11), member) == TreasurerError.NOT_CLAIMABLE
        assert treasury.refuse(treasury.build_claim(member, 10), member) == TreasurerError.TOO_LITTLE
        treasury.top_up(9)
        assert treasury.refuse(treasury.build_claim(member, 10), member) == TreasurerError.TOO_LITTLE
        treasury.claim(member, 9)
        assert treasury.owed == 1

    def test_numbers_beyond_64_bits_are_refused(self, treasury: Treasury) -> None:
        member = treasury.enrol(U64_MAX)
        treasury.top_up(5)
        assert treasury.refuse(treasury.build_claim(member, U64_MAX), member) == TreasurerError.TOO_LITTLE
        treasury.claim(member, 5)
        assert treasury.refuse(treasury.build_claim(member, U64_MAX), member) == TreasurerError.TOO_MUCH

    def test_the_owner_pays_only_where_the_member_looks(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        treasury.top_up(10)
        hidden = writes(put_tokens(treasury.bank, treasury.mint, member.pubkey(), at=Keypair().pubkey()))
        claim = replace_accounts(treasury.build_claim(member, 5, treasury.owner), {2: hidden})
        assert treasury.bank.refuse(claim, treasury.owner) == TreasurerError.NOT_ASSOCIATED
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
        assert treasury.refuse(treasury.build_claim(member, 1, treasury.owner)) in (TreasurerError.NOT_OWN, FROZEN)
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
            return treasury.refuse(build_owner_claim(treasury, member, to, shut=shut))

        assert refuse(treasury.get_user_collateral(member)) == TreasurerError.NOT_ASSOCIATED  # it is open
        assert refuse(treasury.get_user_collateral(thief)) == TreasurerError.NOT_ASSOCIATED
        put_shut_tokens(treasury, member, frozen=True)
        assert refuse(None) == TreasurerError.NOT_ASSOCIATED
        assert refuse(treasury.get_user_collateral(thief)) == TreasurerError.NOT_ASSOCIATED
        own, theirs = treasury.get_user_collateral(member), treasury.get_user_collateral(thief)
        assert refuse(own, theirs) == TreasurerError.NOT_OWN
        bank.put(treasury.get_user_collateral(member), SYSTEM, b"")
        assert refuse(treasury.get_user_collateral(member)) == TreasurerError.NOT_ASSOCIATED  # it can be made

    def test_points_of_members_who_left_are_paid(self, treasury: Treasury) -> None:
        member = treasury.enrol(10)
        state = treasury.state
        state.registry.slots.clear()
        treasury.write_state(state)
        treasury.top_up(10)
        treasury.claim(member, 10)
        assert treasury.owed == 0


class TestRunWithdraw:
    def test_the_owner_takes_what_is_not_owed_and_no_more(self, treasury: Treasury) -> None:
        treasury.enrol(100)
        treasury.earn(30)
        treasury.top_up(1_000)
        assert treasury.owed == 130
        assert treasury.refuse(treasury.build_withdraw(871)) == TreasurerError.OWED_TO_MEMBERS
        assert treasury.refuse(treasury.build_withdraw(1_001)) == TreasurerError.TOO_LITTLE
        withdraw = treasury.build_withdraw(870)
        treasury.bank.send(withdraw, signers=[treasury.owner])
        assert (treasury.held, treasury.get_tokens(withdraw.accounts[3].pubkey)) == (130, 870)
        assert treasury.refuse(treasury.build_withdraw(1)) == TreasurerError.OWED_TO_MEMBERS

    def test_what_was_paid_is_owed_no_more(self, treasury: Treasury) -> None:
        member = treasury.enrol(100)
        treasury.top_up(150)
        treasury.claim(member, 60)
        assert treasury.refuse(treasury.build_withdraw(51)) == TreasurerError.OWED_TO_MEMBERS
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
            assert treasury.bank.refuse(refused, treasury.owner) == TreasurerError.OWED_TO_MEMBERS
        treasury.bank.send(treasury.build_withdraw(100 - pool), signers=[treasury.owner])
        assert treasury.held == pool

    def test_sums_beyond_64_bits_are_owed(self, treasury: Treasury) -> None:
        for _ in range(3):
            treasury.earn(U64_MAX)
        treasury.top_up(100)
        assert treasury.refuse(treasury.build_withdraw(1)) == TreasurerError.OWED_TO_MEMBERS


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
        assert treasury.refuse(treasury.build_close(Keypair().pubkey())) == CoordinatorError.NOT_HALTED

    def test_a_run_stays_as_long_as_it_owes_and_can_pay(self, treasury: Treasury) -> None:
        bank, spill = treasury.bank, Keypair().pubkey()
        member, late = treasury.enrol(10), treasury.earn(3)
        treasury.top_up(12)
        assert treasury.refuse(treasury.build_close(spill)) == TreasurerError.POINTS_OWED
        treasury.claim(member, 10, treasury.owner)
        assert treasury.refuse(treasury.build_close(spill)) == TreasurerError.POINTS_OWED
        treasury.collect(late)
        bank.send(treasury.build_participant_create(late))
        put_tokens(bank, treasury.mint, late.pubkey())
        treasury.claim(late, 2, treasury.owner)
        assert (treasury.held, treasury.owed) == (0, 1)
        bank.send(treasury.build_close(spill), signers=[treasury.owner])
        assert bank.get_data(treasury.address) == b""

    def test_points_in_slots_are_collected_first(self, treasury: Treasury) -> None:
        member, spill = treasury.earn(3), Keypair().pubkey()
        assert treasury.refuse(treasury.build_close(spill)) == CoordinatorError.UNCOLLECTED
        treasury.collect(member)
        treasury.bank.send(treasury.build_close(spill), signers=[treasury.owner])

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
        assert bank.refuse(claim, member) == TreasurerError.FORMER_RUN
        assert bank.refuse(replace_accounts(claim, {5: points}), member) == TreasurerError.FOREIGN_POINTS
        bank.send(treasury.build_participant_close(member))
        bank.send(treasury.build_participant_create(member))
        treasury.claim(member, 7)
        assert treasury.refuse(treasury.build_claim(member, 1), member) == TreasurerError.NOT_CLAIMABLE


class TestParticipantClose:
    def test_the_deposit_goes_back_to_who_paid_it_once_the_run_is_closed(self, treasury: Treasury) -> None:
        bank, member = treasury.bank, treasury.enrol(0)
        close = treasury.build_participant_close(member)
        assert bank.refuse(close) == TreasurerError.NOT_CLOSED
        bank.send(treasury.build_close(Keypair().pubkey()), signers=[treasury.owner])
        deposit, before = bank.get_lamports(close.accounts[2].pubkey), bank.get_lamports(bank.payer.pubkey())
        bank.send(close)
        assert bank.get_lamports(bank.payer.pubkey()) == before + deposit - 5_000
        assert bank.get_data(close.accounts[2].pubkey) == b""
