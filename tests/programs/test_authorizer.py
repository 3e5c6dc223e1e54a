"""The authorizer: who may turn an authorization on, who may name delegates, and when it may be closed."""

import struct
from collections.abc import Sequence

import pytest
from kits.chain.anchor import build_instruction, encode_bytes, get_discriminator
from kits.svm import NOW, SYSTEM, Bank, Refused, replace_accounts, signs
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import AuthorizationData
from psyche.backends.solana.interface.addresses import AUTHORIZER, EVERYBODY, JOIN_SCOPE, get_authorization_address
from psyche.backends.solana.interface.authorizer import (
    build_authorization_close,
    build_authorization_create,
    build_authorization_grantee_update,
    build_authorization_grantor_update,
)
from psyche.backends.solana.interface.calls import reads, writes

ACTIVE, TOO_EARLY, NOT_GRANTOR, NOT_GRANTEE, SCOPE_LENGTH, TOO_MANY, ZERO_DELEGATE = range(6_000, 6_007)
NOT_UNDERSTOOD = 102
NOT_WRITABLE, BAD_SEEDS, BAD_CLOSE, DUPLICATE = 2_000, 2_006, 2_011, 2_040
WRONG_KIND, WRONG_OWNER, WRONG_PROGRAM, NOT_SIGNER, MISSING = 3_002, 3_007, 3_008, 3_010, 3_012
MONTH_S = 30 * 24 * 3_600
MAX_DELEGATES = 256


Changes = dict[int, AccountMeta]


def build_create(
    bank: Bank, grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE, changes: Changes | None = None
) -> Instruction:
    create = build_authorization_create(bank.payer.pubkey(), grantor, grantee, scope)
    return replace_accounts(create, changes or {})


def build_grantor_update(
    grantor: Pubkey, address: Pubkey, *, active: bool, changes: Changes | None = None
) -> Instruction:
    return replace_accounts(build_authorization_grantor_update(grantor, address, active=active), changes or {})


def build_grantee_update(
    bank: Bank, grantee: Pubkey, address: Pubkey, added: Sequence[Pubkey] = (), *, clear: bool = False,
    changes: Changes | None = None,
) -> Instruction:  # fmt: skip
    update = build_authorization_grantee_update(bank.payer.pubkey(), grantee, address, added, clear=clear)
    return replace_accounts(update, changes or {})


def build_close(grantor: Pubkey, spill: Pubkey, address: Pubkey, changes: Changes | None = None) -> Instruction:
    return replace_accounts(build_authorization_close(grantor, spill, address), changes or {})


def authorize(bank: Bank, grantor: Keypair, grantee: Pubkey = EVERYBODY) -> Pubkey:
    """Make an active authorization to join runs."""
    address = get_authorization_address(grantor.pubkey(), grantee)
    update = build_grantor_update(grantor.pubkey(), address, active=True)
    bank.send(build_create(bank, grantor.pubkey(), grantee), update, signers=[grantor])
    return address


@pytest.fixture
def bank() -> Bank:
    return Bank(AUTHORIZER)


@pytest.fixture
def grantor(bank: Bank) -> Keypair:
    return bank.fund()


@pytest.fixture
def grantee(bank: Bank) -> Keypair:
    return bank.fund()


def build_keys(count: int) -> list[Pubkey]:
    return [Pubkey(struct.pack("<I28x", i)) for i in range(1, count + 1)]


def delegate(bank: Bank, grantee: Keypair, address: Pubkey, keys: list[Pubkey], *, clear: bool = False) -> None:
    """Name delegates, as many in one transaction as it holds."""
    for start in range(0, max(len(keys), 1), 24):
        update = build_grantee_update(
            bank, grantee.pubkey(), address, keys[start : start + 24], clear=clear and start == 0
        )
        bank.send(update, signers=[grantee])


def get_delegates(bank: Bank, address: Pubkey) -> tuple[Pubkey, ...]:
    return AuthorizationData.read(bank.get_data(address)).delegates


class TestCreate:
    def test_a_new_authorization_is_inactive_and_has_no_delegates(self, bank: Bank, grantor: Keypair) -> None:
        grantee = Keypair().pubkey()
        bank.send(build_create(bank, grantor.pubkey(), grantee), signers=[grantor])
        address, bump = Pubkey.find_program_address(
            [b"Authorization", bytes(grantor.pubkey()), bytes(grantee), JOIN_SCOPE], AUTHORIZER
        )
        found = AuthorizationData.read(bank.get_data(address))
        assert found == (bump, grantor.pubkey(), grantee, JOIN_SCOPE, False, (), NOW)
        assert len(bank.get_data(address)) == 90 + len(JOIN_SCOPE)

    def test_the_longest_scope_has_32_bytes_and_the_shortest_one(self, bank: Bank, grantor: Keypair) -> None:
        for scope in (bytes(range(32)), b"\0"):
            bank.send(build_create(bank, grantor.pubkey(), EVERYBODY, scope), signers=[grantor])
            address = get_authorization_address(grantor.pubkey(), EVERYBODY, scope)
            assert AuthorizationData.read(bank.get_data(address)).scope == scope
        for scope in (b"", bytes(33)):
            good = build_create(bank, grantor.pubkey(), EVERYBODY, scope[:32])
            body = bytes(EVERYBODY) + encode_bytes(scope)
            bad = build_instruction(AUTHORIZER, "authorization_create", body, good.accounts)
            assert bank.refuse(bad, grantor) == SCOPE_LENGTH

    def test_nobody_creates_one_in_the_name_of_another_grantor(self, bank: Bank, grantor: Keypair) -> None:
        stranger = bank.fund()
        instruction = build_create(bank, grantor.pubkey(), EVERYBODY, changes={1: reads(grantor.pubkey())})
        assert bank.refuse(instruction) == NOT_SIGNER
        instruction = build_create(bank, grantor.pubkey(), EVERYBODY, changes={1: signs(stranger)})
        assert bank.refuse(instruction, stranger) == BAD_SEEDS

    def test_the_payer_signs_and_pays(self, bank: Bank, grantor: Keypair) -> None:
        payer = bank.fund()
        unsigned = {0: writes(payer.pubkey())}
        assert bank.refuse(build_create(bank, grantor.pubkey(), EVERYBODY, changes=unsigned), grantor) == NOT_SIGNER
        fixed = {0: signs(payer)}
        with pytest.raises(Refused):  # the system program takes lamports only from what is writable
            bank.send(build_create(bank, grantor.pubkey(), EVERYBODY, changes=fixed), signers=[grantor, payer])
        before = bank.get_lamports(payer.pubkey())
        paid = build_create(bank, grantor.pubkey(), EVERYBODY, changes={0: signs(payer, writable=True)})
        bank.send(paid, signers=[grantor, payer])
        deposit = bank.get_lamports(get_authorization_address(grantor.pubkey(), EVERYBODY))
        assert before - bank.get_lamports(payer.pubkey()) == deposit == 1_642_560

    def test_accounts_that_are_not_the_right_ones_are_refused(self, bank: Bank, grantor: Keypair) -> None:
        def change(place: int, key: Pubkey) -> int | None:
            return bank.refuse(build_create(bank, grantor.pubkey(), EVERYBODY, changes={place: writes(key)}), grantor)

        assert change(2, Keypair().pubkey()) == BAD_SEEDS
        assert change(3, AUTHORIZER) == WRONG_PROGRAM
        fixed = {2: reads(get_authorization_address(grantor.pubkey(), EVERYBODY))}
        with pytest.raises(Refused):  # the system program refuses to create what is not writable
            bank.send(build_create(bank, grantor.pubkey(), EVERYBODY, changes=fixed), signers=[grantor])

    def test_it_is_created_once(self, bank: Bank, grantor: Keypair) -> None:
        address = authorize(bank, grantor)
        with pytest.raises(Refused):
            bank.send(build_create(bank, grantor.pubkey(), EVERYBODY), signers=[grantor])
        assert AuthorizationData.read(bank.get_data(address)).active

    def test_lamports_sent_to_the_address_do_not_prevent_it(self, bank: Bank, grantor: Keypair) -> None:
        address = get_authorization_address(grantor.pubkey(), EVERYBODY)
        bank.svm.airdrop(address, 1_000_000)
        assert authorize(bank, grantor) == address

    def test_a_scope_that_is_longer_than_the_instruction_is_refused(self, bank: Bank, grantor: Keypair) -> None:
        good = build_create(bank, grantor.pubkey(), EVERYBODY)
        body = bytes(32) + struct.pack("<I", 400) + JOIN_SCOPE
        bad = build_instruction(AUTHORIZER, "authorization_create", body, good.accounts)
        assert bank.refuse(bad, grantor) == NOT_UNDERSTOOD


class TestGrantorUpdate:
    def test_the_grantor_turns_it_on_and_off_and_the_time_is_kept(self, bank: Bank, grantor: Keypair) -> None:
        address = authorize(bank, grantor)
        for active, now in ((False, NOW + 5), (True, NOW + 9)):
            bank.set_time(now)
            bank.send(build_grantor_update(grantor.pubkey(), address, active=active), signers=[grantor])
            found = AuthorizationData.read(bank.get_data(address))
            assert (found.active, found.grantor_update_unix_timestamp) == (active, now)

    def test_only_the_grantor_does(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address = authorize(bank, grantor, grantee.pubkey())
        for key in (grantee, bank.fund()):
            assert bank.refuse(build_grantor_update(key.pubkey(), address, active=False), key) == NOT_GRANTOR
        unsigned = build_grantor_update(grantor.pubkey(), address, active=False, changes={0: reads(grantor.pubkey())})
        assert bank.refuse(unsigned) == NOT_SIGNER

    def test_a_byte_that_is_no_boolean_is_refused(self, bank: Bank, grantor: Keypair) -> None:
        address = authorize(bank, grantor)
        good = build_grantor_update(grantor.pubkey(), address, active=True)
        bad = build_instruction(AUTHORIZER, "authorization_grantor_update", b"\2", good.accounts)
        assert bank.refuse(bad, grantor) == NOT_UNDERSTOOD


def build_all(bank: Bank, grantor: Pubkey, grantee: Pubkey, address: Pubkey) -> tuple[Instruction, ...]:
    """The three instructions that take an authorization that exists."""
    return (
        build_grantor_update(grantor, address, active=True),
        build_grantee_update(bank, grantee, address),
        build_close(grantor, grantor, address),
    )


class TestAuthorizationAccount:
    def test_one_of_another_program_another_kind_or_none_is_refused(
        self, bank: Bank, grantor: Keypair, grantee: Keypair
    ) -> None:
        data = bank.get_data(authorize(bank, grantor, grantee.pubkey()))
        forged, other, missing = (Keypair().pubkey() for _ in range(3))
        bank.put(forged, bank.payer.pubkey(), data)
        bank.put(other, AUTHORIZER, get_discriminator("account", "Run") + data[8:])
        for address, code in ((forged, WRONG_OWNER), (other, WRONG_KIND), (missing, MISSING)):
            for instruction in build_all(bank, grantor.pubkey(), grantee.pubkey(), address):
                keys = [k for k in (grantor, grantee) if k.pubkey() in {a.pubkey for a in instruction.accounts}]
                assert bank.refuse(instruction, *keys) == code

    def test_it_must_be_writable(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address = authorize(bank, grantor, grantee.pubkey())
        for instruction in build_all(bank, grantor.pubkey(), grantee.pubkey(), address):
            accounts = [reads(address) if a.pubkey == address else a for a in instruction.accounts]
            keys = [k for k in (grantor, grantee) if k.pubkey() in {a.pubkey for a in accounts}]
            fixed = Instruction(AUTHORIZER, bytes(instruction.data), accounts)
            assert bank.refuse(fixed, *keys) == NOT_WRITABLE


class TestGranteeUpdate:
    def test_delegates_are_added_in_order_and_cleared(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address, keys = authorize(bank, grantor, grantee.pubkey()), build_keys(30)
        delegate(bank, grantee, address, keys)
        assert get_delegates(bank, address) == tuple(keys)
        delegate(bank, grantee, address, keys[5:7], clear=True)
        assert get_delegates(bank, address) == tuple(keys[5:7])
        delegate(bank, grantee, address, [], clear=True)
        assert get_delegates(bank, address) == ()
        assert len(bank.get_data(address)) == 90 + len(JOIN_SCOPE)

    def test_a_key_is_a_delegate_once(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address, (first, second) = authorize(bank, grantor, grantee.pubkey()), build_keys(2)
        delegate(bank, grantee, address, [first, second, first])
        delegate(bank, grantee, address, [second, first])
        assert get_delegates(bank, address) == (first, second)
        assert len(bank.get_data(address)) == 90 + len(JOIN_SCOPE) + 2 * 32

    def test_there_are_at_most_256(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address, keys = authorize(bank, grantor, grantee.pubkey()), build_keys(MAX_DELEGATES + 1)
        delegate(bank, grantee, address, keys[:-1])
        assert len(get_delegates(bank, address)) == MAX_DELEGATES
        update = build_grantee_update(bank, grantee.pubkey(), address, keys[-1:])
        assert bank.refuse(update, grantee) == TOO_MANY
        delegate(bank, grantee, address, keys[:24])  # those that are in already need no room
        delegate(bank, grantee, address, keys[-1:], clear=True)
        assert get_delegates(bank, address) == (keys[-1],)

    def test_the_key_of_everybody_is_no_delegate(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address = authorize(bank, grantor, grantee.pubkey())
        assert bank.refuse(build_grantee_update(bank, grantee.pubkey(), address, [EVERYBODY]), grantee) == ZERO_DELEGATE

    def test_the_payer_pays_for_delegates_and_gets_it_back(
        self, bank: Bank, grantor: Keypair, grantee: Keypair
    ) -> None:
        address, payer = authorize(bank, grantor, grantee.pubkey()), bank.fund()
        before, deposit = bank.get_lamports(payer.pubkey()), bank.get_lamports(address)

        def update(keys: list[Pubkey]) -> int:
            changes = {0: signs(payer, writable=True)}
            instruction = build_grantee_update(bank, grantee.pubkey(), address, keys, clear=True, changes=changes)
            bank.send(instruction, signers=[payer, grantee])
            return before - bank.get_lamports(payer.pubkey())

        rent = bank.svm.minimum_balance_for_rent_exemption
        assert update(build_keys(20)) == rent(640) - rent(0)
        assert update(build_keys(3)) == rent(96) - rent(0)
        assert update([]) == 0
        assert bank.get_lamports(address) == deposit

    def test_only_the_grantee_names_delegates(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address, keys = authorize(bank, grantor, grantee.pubkey()), build_keys(1)
        delegate(bank, grantee, address, keys)
        machine = bank.fund()
        delegate(bank, grantee, address, [machine.pubkey()])
        for key in (grantor, machine, bank.fund()):
            assert bank.refuse(build_grantee_update(bank, key.pubkey(), address, keys), key) == NOT_GRANTEE
        unsigned = build_grantee_update(bank, grantee.pubkey(), address, keys, changes={1: reads(grantee.pubkey())})
        assert bank.refuse(unsigned) == NOT_SIGNER

    def test_an_authorization_of_everybody_has_no_delegates(self, bank: Bank, grantor: Keypair) -> None:
        address = authorize(bank, grantor)
        unsigned = build_grantee_update(bank, EVERYBODY, address, build_keys(1), changes={1: reads(EVERYBODY)})
        assert bank.refuse(unsigned) == NOT_SIGNER

    def test_payer_and_system_program_are_checked(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address, keys, payer = authorize(bank, grantor, grantee.pubkey()), build_keys(1), bank.fund()

        def change(place: int, account: AccountMeta, *signers: Keypair) -> int | None:
            instruction = build_grantee_update(bank, grantee.pubkey(), address, keys, changes={place: account})
            return bank.refuse(instruction, grantee, *signers)

        assert change(0, writes(payer.pubkey())) == NOT_SIGNER
        assert change(0, signs(payer), payer) == NOT_WRITABLE
        assert change(3, reads(AUTHORIZER)) == WRONG_PROGRAM

    def test_a_payer_without_lamports_is_refused(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address, poor = authorize(bank, grantor, grantee.pubkey()), bank.fund(1_000_000)
        changes = {0: signs(poor, writable=True)}
        update = build_grantee_update(bank, grantee.pubkey(), address, build_keys(20), changes=changes)
        with pytest.raises(Refused):
            bank.send(update, signers=[poor, grantee])
        assert get_delegates(bank, address) == ()

    def test_a_list_that_is_longer_than_the_instruction_is_refused(
        self, bank: Bank, grantor: Keypair, grantee: Keypair
    ) -> None:
        address = authorize(bank, grantor, grantee.pubkey())
        good = build_grantee_update(bank, grantee.pubkey(), address)
        for length in (2, 2**32 - 1):
            body = b"\0" + struct.pack("<I", length) + bytes(32)
            bad = build_instruction(AUTHORIZER, "authorization_grantee_update", body, good.accounts)
            assert bank.refuse(bad, grantee) == NOT_UNDERSTOOD


class TestClose:
    def test_the_whole_deposit_goes_to_spill(self, bank: Bank, grantor: Keypair) -> None:
        address, spill = authorize(bank, grantor), Keypair().pubkey()
        bank.send(build_grantor_update(grantor.pubkey(), address, active=False), signers=[grantor])
        bank.svm.airdrop(address, 77)
        deposit = bank.get_lamports(address)
        bank.send(build_close(grantor.pubkey(), spill, address), signers=[grantor])
        assert bank.get_lamports(spill) == deposit
        assert bank.get_lamports(address) == 0
        assert bank.get_data(address) == b""
        authorize(bank, grantor)  # the address is free again

    def test_an_active_one_stays(self, bank: Bank, grantor: Keypair) -> None:
        address = authorize(bank, grantor)
        assert bank.refuse(build_close(grantor.pubkey(), grantor.pubkey(), address), grantor) == ACTIVE

    def test_one_with_delegates_stays_for_30_days(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address = authorize(bank, grantor, grantee.pubkey())
        delegate(bank, grantee, address, build_keys(1))
        bank.set_time(NOW + 100)
        bank.send(build_grantor_update(grantor.pubkey(), address, active=False), signers=[grantor])
        close = build_close(grantor.pubkey(), grantor.pubkey(), address)
        for now in (NOW + 100, NOW + 99 + MONTH_S, -(2**63), 0):
            bank.set_time(now)
            assert bank.refuse(close, grantor) == TOO_EARLY
        bank.set_time(NOW + 100 + MONTH_S)
        bank.send(close, signers=[grantor])
        assert bank.get_lamports(address) == 0

    def test_only_the_grantor_closes_it(self, bank: Bank, grantor: Keypair, grantee: Keypair) -> None:
        address = authorize(bank, grantor, grantee.pubkey())
        bank.send(build_grantor_update(grantor.pubkey(), address, active=False), signers=[grantor])
        for key in (grantee, bank.fund()):
            assert bank.refuse(build_close(key.pubkey(), key.pubkey(), address), key) == NOT_GRANTOR
        unsigned = {0: reads(grantor.pubkey())}
        assert bank.refuse(build_close(grantor.pubkey(), bank.payer.pubkey(), address, unsigned)) == NOT_SIGNER

    def test_spill_is_writable_and_another_account(self, bank: Bank, grantor: Keypair) -> None:
        address = authorize(bank, grantor)
        bank.send(build_grantor_update(grantor.pubkey(), address, active=False), signers=[grantor])
        fixed = {1: reads(Keypair().pubkey())}
        assert bank.refuse(build_close(grantor.pubkey(), SYSTEM, address, fixed), grantor) == NOT_WRITABLE
        assert bank.refuse(build_close(grantor.pubkey(), address, address), grantor) in (BAD_CLOSE, DUPLICATE)


def test_an_unknown_instruction_is_refused(bank: Bank) -> None:
    unknown = build_instruction(AUTHORIZER, "authorization_steal", encode_bytes(b""), [])
    assert bank.refuse(unknown) == 101
