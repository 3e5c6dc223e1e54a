"""The treasurer's runs: who makes one, and who changes it."""

from dataclasses import replace

import pytest
from kits.chain.anchor import encode_bytes
from kits.svm import SYSTEM, replace_accounts, signs
from programs.chain_kit import INVALID_TEXTS
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from treasury_kit import (
    ACCOUNT_IN_USE,
    BAD_SEEDS,
    CANNOT_UPDATE,
    CONFIG_REFUSED,
    EMPTY,
    FOREIGN,
    NO_ACCOUNT,
    NOT_OWNER,
    NOT_SIGNER,
    NOT_WRITABLE,
    SETTINGS,
    TOKEN_2022,
    TRANSACTION_BYTES,
    WRONG_ADDRESS,
    WRONG_OWNER,
    WRONG_PROGRAM,
    Treasury,
    build_sibling,
    count_bytes,
    put_tokens,
)

from psyche.backends.solana.interface.addresses import COORDINATOR, TREASURER
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.treasurer import RunChange
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

    def test_nobody_creates_a_run_in_the_name_of_another_owner(self, treasury: Treasury) -> None:
        bank, new = treasury.bank, build_new(treasury)
        make, create = new.build_create()
        unsigned = replace_accounts(create, {1: reads(treasury.owner.pubkey())})
        assert bank.refuse(unsigned, new.account, before=[make]) == NOT_SIGNER
        stranger = bank.fund()
        other = replace_accounts(create, {1: signs(stranger)})
        assert bank.refuse(other, stranger, new.account, before=[make]) == BAD_SEEDS

    def test_an_index_belongs_to_its_owner_alone(self, treasury: Treasury) -> None:
        squatter = Treasury(treasury.bank, treasury.bank.fund(), treasury.mint, Keypair(), "squatter")
        squatter.create()
        assert squatter.run.index != treasury.run.index
        new = build_new(treasury, "squatter-2")
        new.create()
        assert new.address != squatter.address
        taken = build_new(treasury)
        make, create = taken.build_create(index=new.run.index)
        assert treasury.bank.refuse(create, treasury.owner, taken.account, before=[make]) == ACCOUNT_IN_USE

    def test_a_token_account_that_was_made_before_is_no_obstacle(self, treasury: Treasury) -> None:
        new = build_new(treasury)
        put_tokens(treasury.bank, treasury.mint, new.address, 5)
        new.create()
        assert new.held == 5

    def test_every_signer_must_sign(self, treasury: Treasury) -> None:
        bank, new = treasury.bank, build_new(treasury)
        make, create = new.build_create()
        payer = bank.fund()
        unpaid = replace_accounts(create, {0: writes(payer.pubkey())})
        assert bank.refuse(unpaid, treasury.owner, new.account, before=[make]) == NOT_SIGNER
        taken = replace_accounts(create, {6: writes(treasury.account.pubkey())})
        assert bank.refuse(taken, treasury.owner) == NOT_SIGNER

    @pytest.mark.parametrize(
        ("place", "code"),
        [(2, BAD_SEEDS), (4, WRONG_ADDRESS), (5, BAD_SEEDS), *((place, WRONG_PROGRAM) for place in (7, 8, 9, 10))],
    )
    def test_another_account_in_this_place_is_refused(self, treasury: Treasury, place: int, code: int) -> None:
        new = build_new(treasury)
        make, create = new.build_create()
        other = replace_accounts(create, {place: writes(Keypair().pubkey())})
        assert treasury.bank.refuse(other, treasury.owner, new.account, before=[make]) == code

    def test_accounts_that_change_must_be_writable(self, treasury: Treasury) -> None:
        new = build_new(treasury)
        make, create = new.build_create()
        for place in (4, 5, 6):
            old = create.accounts[place]
            fixed = replace_accounts(create, {place: AccountMeta(old.pubkey, old.is_signer, is_writable=False)})
            # the account that another instruction of the transaction creates is writable in all of them
            before = [] if place == 6 else [make]
            assert treasury.bank.refuse(fixed, treasury.owner, new.account, before=before) == NOT_WRITABLE

    def test_only_a_mint_of_the_token_program_can_pay(self, treasury: Treasury) -> None:
        bank, new = treasury.bank, build_new(treasury)
        data = bank.get_data(treasury.mint)
        other, fresh, tokens = Keypair().pubkey(), Keypair().pubkey(), put_tokens(bank, treasury.mint, SYSTEM)
        bank.put(other, TOKEN_2022, data)
        bank.put(fresh, TOKEN, bytes(82))
        for mint, code in ((other, WRONG_OWNER), (fresh, EMPTY), (tokens, NO_ACCOUNT), (SYSTEM, WRONG_OWNER)):
            make, create = new.build_create()
            wrong = replace_accounts(create, {3: reads(mint)})
            assert bank.refuse(wrong, treasury.owner, new.account, before=[make]) == code

    def test_the_coordinator_refuses_a_run_id_without_bytes_or_with_33(self, treasury: Treasury) -> None:
        for run_id in (b"", b"x" * 33):
            new = build_new(treasury, "x" * 32)
            make, create = new.build_create()
            data = bytes(create.data).replace(encode_bytes(b"x" * 32), encode_bytes(run_id))
            instance = writes(Pubkey.find_program_address([b"coordinator", run_id[:32]], COORDINATOR)[0])
            wrong = Instruction(TREASURER, data, [*create.accounts[:5], instance, *create.accounts[6:]])
            assert treasury.bank.refuse(wrong, treasury.owner, new.account, before=[make]) == INVALID_TEXTS

    def test_a_used_run_id_or_account_is_refused(self, treasury: Treasury) -> None:
        bank = treasury.bank
        again = Treasury(bank, bank.fund(), treasury.mint, Keypair(), treasury.run_id)
        assert again.refuse_create().code == ACCOUNT_IN_USE
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
        assert treasury.bank.refuse(treasury.build_update(change), treasury.owner) == CANNOT_UPDATE
        bad = RunChange(Update(config=build_config(min_clients=0)), paused=True)
        assert treasury.bank.refuse(treasury.build_update(bad), treasury.owner) == CONFIG_REFUSED
        assert treasury.state == before

    def test_only_the_owner_changes_a_run(self, treasury: Treasury) -> None:
        stranger, update = treasury.bank.fund(), treasury.build_update(RunChange(earning=1))
        assert treasury.bank.refuse(replace_accounts(update, {0: signs(stranger)}), stranger) == NOT_OWNER
        assert treasury.bank.refuse(replace_accounts(update, {0: reads(treasury.owner.pubkey())})) == NOT_SIGNER

    def test_only_accounts_of_the_run_are_accepted(self, treasury: Treasury) -> None:
        sibling, update = build_sibling(treasury), treasury.build_update(RunChange(earning=1))
        for place, account, code in (
            (1, reads(sibling.address), NOT_OWNER),
            (1, reads(treasury.account.pubkey()), WRONG_OWNER),
            (2, reads(sibling.run.coordinator_instance), FOREIGN),
            (3, writes(sibling.account.pubkey()), FOREIGN),
            (3, reads(treasury.account.pubkey()), NOT_WRITABLE),
            (4, reads(TREASURER), WRONG_PROGRAM),
        ):
            assert treasury.bank.refuse(replace_accounts(update, {place: account}), treasury.owner) == code

    def test_the_largest_update_fits_a_transaction_with_a_payer_of_its_own(self, treasury: Treasury) -> None:
        progress = replace(treasury.state.progress, step=1)
        settings = replace(SETTINGS, progress=progress)
        update = treasury.build_update(RunChange(settings, 1, 1, paused=False))
        assert count_bytes(treasury.bank, (update,), treasury.owner) <= TRANSACTION_BYTES
        texts = RunChange(Update(metadata=Metadata("n" * 64, "d" * 280)), client_version="v" * 96)
        assert count_bytes(treasury.bank, (treasury.build_update(texts),), treasury.owner) <= TRANSACTION_BYTES
