"""Every check of the accounts that the treasurer's instructions are given, violated one at a time."""

from collections.abc import Iterator

import pytest
from kits.svm import SYSTEM, replace_accounts, signs
from programs.refusals import Anchor, TreasurerError
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from treasury_kit import TOKEN_2022, Treasury, build_sibling, put_mint, put_tokens

from psyche.backends.solana.interface.addresses import COORDINATOR, TREASURER
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.treasurer import RunChange

Cases = Iterator[tuple[int, AccountMeta, int]]  # a place, what stands there instead, and the refusal


class Scene:
    """A run with two members, and a run of another owner and token in which one of them has points too."""

    def __init__(self) -> None:
        self.treasury = treasury = Treasury.build()
        self.bank, self.sibling, self.stranger = treasury.bank, build_sibling(treasury), treasury.bank.fund()
        self.member, self.other, self.foreign = treasury.enrol(10), treasury.enrol(20), self.sibling.enrol(30)
        self.sibling.earn(40, self.member)
        self.sibling.collect(self.member)
        self.bank.send(self.sibling.build_participant_create(self.member))
        treasury.top_up(50)
        self.second = put_tokens(self.bank, treasury.mint, treasury.address, 50, at=Keypair().pubkey())
        self.of_another_mint = put_tokens(self.bank, self.sibling.mint, treasury.owner.pubkey())

    def owner_cases(self, treasury: int, writable: bool = False) -> Cases:
        """Of all instructions that the owner signs, with the place of the run."""
        meta = writes if writable else reads
        yield 0, signs(self.stranger), TreasurerError.NOT_OWNER
        yield 0, reads(self.treasury.owner.pubkey()), Anchor.NOT_SIGNER
        yield treasury, meta(self.sibling.address), TreasurerError.NOT_OWNER
        yield treasury, meta(self.treasury.account.pubkey()), Anchor.WRONG_OWNER

    def withdraw(self) -> tuple[Instruction, Cases]:
        withdraw = self.treasury.build_withdraw(5)

        def list_cases() -> Cases:
            yield from self.owner_cases(1)
            yield 2, writes(self.second), Anchor.BROKEN_LINK
            yield 3, writes(self.of_another_mint), TreasurerError.FOREIGN_MINT
            yield 4, reads(self.sibling.run.coordinator_instance), Anchor.BROKEN_LINK
            yield 5, reads(self.sibling.account.pubkey()), Anchor.BROKEN_LINK
            yield 6, reads(TREASURER), Anchor.WRONG_PROGRAM
            yield from list_unwritable(withdraw, 2, 3)

        return withdraw, list_cases()

    def close(self) -> tuple[Instruction, Cases]:
        close = self.treasury.build_close(Keypair().pubkey())

        def list_cases() -> Cases:
            yield from self.owner_cases(2, writable=True)
            yield 3, writes(self.second), Anchor.BROKEN_LINK
            yield 4, writes(self.of_another_mint), TreasurerError.FOREIGN_MINT
            yield 4, writes(self.treasury.run.run_collateral), Anchor.DUPLICATE
            yield 5, writes(self.sibling.run.coordinator_instance), Anchor.BROKEN_LINK
            yield 6, writes(self.sibling.account.pubkey()), Anchor.BROKEN_LINK
            yield 7, reads(TREASURER), Anchor.WRONG_PROGRAM
            yield 8, reads(COORDINATOR), Anchor.WRONG_PROGRAM
            yield from list_unwritable(close, *range(1, 7))

        return close, list_cases()

    def update(self) -> tuple[Instruction, Cases]:
        update = self.treasury.build_update(RunChange(earning=1))

        def list_cases() -> Cases:
            yield from self.owner_cases(1)
            yield 2, reads(self.sibling.run.coordinator_instance), Anchor.BROKEN_LINK
            yield 3, writes(self.sibling.account.pubkey()), Anchor.BROKEN_LINK
            yield 4, reads(TREASURER), Anchor.WRONG_PROGRAM
            yield from list_unwritable(update, 3)

        return update, list_cases()

    def participant_create(self) -> tuple[Instruction, Cases]:
        def list_cases() -> Cases:
            yield 0, writes(self.stranger.pubkey()), Anchor.NOT_SIGNER
            yield 1, reads(Keypair().pubkey()), Anchor.BAD_SEEDS
            yield 2, reads(self.sibling.address), Anchor.BAD_SEEDS
            yield 2, reads(self.treasury.account.pubkey()), Anchor.WRONG_OWNER
            yield 3, writes(Keypair().pubkey()), Anchor.BAD_SEEDS
            yield 4, reads(TREASURER), Anchor.WRONG_PROGRAM

        return self.treasury.build_participant_create(Keypair()), list_cases()

    def participant_claim(self) -> tuple[Instruction, Cases]:
        claim = self.treasury.build_claim(self.member, 5)
        theirs, abroad = self.treasury.build_claim(self.other, 5), self.sibling.build_claim(self.foreign, 5)
        own_abroad = self.sibling.build_claim(self.member, 5)

        def list_cases() -> Cases:
            yield 0, signs(self.stranger), TreasurerError.MAY_NOT_CLAIM
            yield 0, signs(self.sibling.owner), TreasurerError.MAY_NOT_CLAIM
            yield 0, reads(self.member.pubkey()), Anchor.NOT_SIGNER
            yield 1, reads(self.other.pubkey()), TreasurerError.MAY_NOT_CLAIM
            yield from self.payee_cases(claim.accounts[2].pubkey)
            yield 3, own_abroad.accounts[3], TreasurerError.FOREIGN_MINT
            yield 4, own_abroad.accounts[4], Anchor.BROKEN_LINK
            yield 4, writes(self.second), Anchor.BROKEN_LINK
            for one in (theirs, abroad, own_abroad):
                yield 5, one.accounts[5], TreasurerError.FOREIGN_POINTS
            yield 5, reads(copy_account(self.treasury, claim.accounts[5].pubkey, TREASURER)), Anchor.WRONG_OWNER
            yield 5, reads(self.treasury.run.coordinator_instance), Anchor.WRONG_KIND
            yield 6, theirs.accounts[6], Anchor.BROKEN_LINK
            yield 6, own_abroad.accounts[6], Anchor.BROKEN_LINK
            yield 6, writes(self.treasury.address), Anchor.WRONG_KIND
            yield 7, reads(TREASURER), Anchor.WRONG_PROGRAM
            yield from list_unwritable(claim, 2, 3, 4, 6)

        return claim, list_cases()

    def payee_cases(self, own: Pubkey) -> Cases:
        """A token account that is not the member's own, or not one at all."""
        bank, mint, thief = self.bank, self.treasury.mint, self.stranger.pubkey()
        member = self.member.pubkey()
        shared = put_tokens(bank, mint, member, 1, at=Keypair().pubkey(), delegate=thief)
        yield 2, writes(put_tokens(bank, mint, thief)), TreasurerError.NOT_OWN
        yield 2, writes(shared), TreasurerError.NOT_OWN
        yield 2, writes(put_tokens(bank, put_mint(bank), member)), TreasurerError.FOREIGN_MINT
        yield 2, writes(self.treasury.run.run_collateral), Anchor.DUPLICATE
        yield 2, writes(mint), Anchor.NO_ACCOUNT
        yield 2, writes(copy_account(self.treasury, own, TREASURER)), Anchor.WRONG_OWNER


def copy_account(treasury: Treasury, key: Pubkey, owner: Pubkey) -> Pubkey:
    """The same bytes in an account of another program."""
    copy = Keypair().pubkey()
    treasury.bank.put(copy, owner, treasury.bank.get_data(key))
    return copy


def list_unwritable(instruction: Instruction, *places: int) -> Cases:
    for place in places:
        yield place, reads(instruction.accounts[place].pubkey), Anchor.NOT_WRITABLE


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("name", ["withdraw", "close", "update", "participant_create", "participant_claim"])
def test_signers_and_accounts_of_others_are_refused(scene: Scene, name: str) -> None:
    instruction, cases = getattr(scene, name)()
    for place, account, code in cases:
        refused = scene.bank.refuse(
            replace_accounts(instruction, {place: account}),
            scene.treasury.owner, scene.member, scene.stranger, scene.sibling.owner,
        )  # fmt: skip
        assert refused == code, f"account {place}: {refused}, not {code!r}"


def test_a_record_of_payments_is_closed_with_its_own_accounts_only(treasury: Treasury) -> None:
    member, sibling = treasury.enrol(0), build_sibling(treasury)
    close = treasury.build_participant_close(member)
    treasury.bank.send(treasury.build_close(Keypair().pubkey()), signers=[treasury.owner])
    for place, account, code in (
        (0, writes(Keypair().pubkey()), Anchor.BROKEN_LINK),
        (1, reads(sibling.address), Anchor.BROKEN_LINK),
        (2, writes(sibling.address), Anchor.WRONG_KIND),
        *list_unwritable(close, 2),
    ):
        assert treasury.bank.refuse(replace_accounts(close, {place: account})) == code


def test_a_run_is_created_with_the_right_accounts_and_signers_only(treasury: Treasury) -> None:
    bank, owner, stranger = treasury.bank, treasury.owner, treasury.bank.fund()
    new = Treasury(bank, owner, treasury.mint, Keypair(), "next")
    make, create = new.build_create()
    mints = [Keypair().pubkey(), Keypair().pubkey(), put_tokens(bank, treasury.mint, SYSTEM)]
    bank.put(mints[0], TOKEN_2022, bank.get_data(treasury.mint))
    bank.put(mints[1], TOKEN, bytes(82))
    cases = [
        (0, writes(stranger.pubkey()), Anchor.NOT_SIGNER),
        (1, reads(owner.pubkey()), Anchor.NOT_SIGNER),
        (1, signs(stranger), Anchor.BAD_SEEDS),
        *((place, writes(Keypair().pubkey()), Anchor.BAD_SEEDS) for place in (2, 5)),
        (4, writes(Keypair().pubkey()), Anchor.BAD_ADDRESS),
        *((place, writes(Keypair().pubkey()), Anchor.WRONG_PROGRAM) for place in (7, 8, 9, 10)),
        *list_unwritable(create, 4, 5),
        (3, reads(mints[0]), Anchor.WRONG_OWNER),
        (3, reads(mints[1]), Anchor.EMPTY),
        (3, reads(mints[2]), Anchor.NO_ACCOUNT),
        (3, reads(SYSTEM), Anchor.WRONG_OWNER),
    ]
    for place, account, code in cases:
        other = replace_accounts(create, {place: account})
        assert bank.refuse(other, owner, stranger, new.account, before=[make]) == code, place
    # what another instruction of the transaction creates is writable, and signs, in all of them
    for account, code in (
        (signs(new.account), Anchor.NOT_WRITABLE),
        (writes(treasury.account.pubkey()), Anchor.NOT_SIGNER),
    ):
        assert bank.refuse(replace_accounts(create, {6: account}), owner, new.account) == code
