"""The authorizer: who may turn an authorization on, who may name delegates, and when it may be closed."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kits.chain.anchor import build_instruction, encode_bytes, get_discriminator
from kits.svm import NOW, Bank, Refused, replace_accounts, signs
from programs.refusals import Anchor, AuthorizerError
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

MONTH_S = 30 * 24 * 3_600
MAX_DELEGATES = 256
LEAST_BYTES = 90 + len(JOIN_SCOPE)


def build_keys(count: int) -> list[Pubkey]:
    return [Pubkey(struct.pack("<I28x", i)) for i in range(1, count + 1)]


@dataclass
class Grant:
    """A grantor's authorization of a grantee; nothing is on the chain before `make`."""

    bank: Bank
    everybody: bool = False
    scope: bytes = JOIN_SCOPE
    keys: list[Keypair] = field(default_factory=list)  # who sign where they are asked to

    def __post_init__(self) -> None:
        self.grantor, self.grantee_key, self.payer = (self.bank.fund() for _ in range(3))
        self.keys += [self.grantor, self.grantee_key, self.payer]
        self.grantee = EVERYBODY if self.everybody else self.grantee_key.pubkey()

    @property
    def address(self) -> Pubkey:
        return get_authorization_address(self.grantor.pubkey(), self.grantee, self.scope)

    @property
    def data(self) -> AuthorizationData:
        return AuthorizationData.read(self.bank.get_data(self.address))

    def send(self, *instructions: Instruction) -> None:
        asked = {account.pubkey for one in instructions for account in one.accounts if account.is_signer}
        self.bank.send(*instructions, signers=[key for key in self.keys if key.pubkey() in asked])

    def refuse(self, instruction: Instruction, changes: dict[int, AccountMeta] | None = None) -> int | None:
        return self.bank.refuse(replace_accounts(instruction, changes or {}), *self.keys)

    def create(self) -> Instruction:
        return build_authorization_create(self.payer.pubkey(), self.grantor.pubkey(), self.grantee, self.scope)

    def turn(self, *, active: bool) -> Instruction:
        return build_authorization_grantor_update(self.grantor.pubkey(), self.address, active=active)

    def add(self, *keys: Pubkey, clear: bool = False) -> Instruction:
        return build_authorization_grantee_update(self.payer.pubkey(), self.grantee, self.address, keys, clear=clear)

    def close(self, spill: Pubkey | None = None) -> Instruction:
        return build_authorization_close(self.grantor.pubkey(), spill or self.grantor.pubkey(), self.address)

    def make(self) -> "Grant":
        """Make it, and turn it on."""
        self.send(self.create(), self.turn(active=True))
        return self

    def delegate(self, keys: list[Pubkey], *, clear: bool = False) -> tuple[Pubkey, ...]:
        """Name delegates, as many in one transaction as it holds; return all that are named then."""
        for start in range(0, max(len(keys), 1), 24):
            self.send(self.add(*keys[start : start + 24], clear=clear and start == 0))
        return self.data.delegates


@pytest.fixture
def new() -> Grant:
    return Grant(Bank(AUTHORIZER))


@pytest.fixture
def grant(new: Grant) -> Grant:
    return new.make()


def with_body(instruction: Instruction, name: str, body: bytes) -> Instruction:
    return build_instruction(AUTHORIZER, name, body, instruction.accounts)


Cases = Iterator[tuple[Instruction, int, AccountMeta, int]]


def list_create_cases(grant: Grant, stranger: Keypair) -> Cases:
    create = grant.create()
    yield create, 0, writes(grant.payer.pubkey()), Anchor.NOT_SIGNER
    yield create, 1, reads(grant.grantor.pubkey()), Anchor.NOT_SIGNER
    yield create, 1, signs(stranger), Anchor.BAD_SEEDS
    yield create, 2, writes(Keypair().pubkey()), Anchor.BAD_SEEDS
    yield create, 3, reads(AUTHORIZER), Anchor.WRONG_PROGRAM


def list_cases(grant: Grant, stranger: Keypair) -> Cases:
    """Of the three instructions that take an authorization that exists."""
    turn, add, close = grant.turn(active=False), grant.add(), grant.close(grant.payer.pubkey())
    data = grant.bank.get_data(grant.address)
    forged, other, missing = (Keypair().pubkey() for _ in range(3))
    grant.bank.put(forged, stranger.pubkey(), data)
    grant.bank.put(other, AUTHORIZER, get_discriminator("account", "Run") + data[8:])
    for one in (turn, add, close):
        place = next(at for at, account in enumerate(one.accounts) if account.pubkey == grant.address)
        for key, code in ((forged, Anchor.WRONG_OWNER), (other, Anchor.WRONG_KIND), (missing, Anchor.EMPTY)):
            yield one, place, writes(key), code
        yield one, place, reads(grant.address), Anchor.NOT_WRITABLE
    for one in (turn, close):
        yield one, 0, reads(grant.grantor.pubkey()), Anchor.NOT_SIGNER
        for key in (grant.grantee_key, stranger):
            yield one, 0, signs(key), AuthorizerError.NOT_GRANTOR
    yield close, 1, reads(grant.payer.pubkey()), Anchor.NOT_WRITABLE
    yield close, 1, writes(grant.address), Anchor.BAD_CLOSE
    yield add, 0, writes(grant.payer.pubkey()), Anchor.NOT_SIGNER
    yield add, 0, signs(grant.payer), Anchor.NOT_WRITABLE
    yield add, 1, reads(grant.grantee), Anchor.NOT_SIGNER
    for key in (grant.grantor, stranger):
        yield add, 1, signs(key), AuthorizerError.NOT_GRANTEE
    yield add, 3, reads(AUTHORIZER), Anchor.WRONG_PROGRAM


@pytest.mark.parametrize("exists", [False, True], ids=["create", "the others"])
def test_signers_and_accounts_of_others_are_refused(new: Grant, exists: bool) -> None:
    stranger = new.bank.fund()
    new.keys.append(stranger)
    cases = list_cases(new.make(), stranger) if exists else list_create_cases(new, stranger)
    for instruction, place, account, code in cases:
        assert new.refuse(instruction, {place: account}) == code, (bytes(instruction.data[:8]), place)


def test_bodies_that_cannot_be_read_are_refused(grant: Grant) -> None:
    create, turn, add = grant.create(), grant.turn(active=True), grant.add()
    for instruction, name, body in (
        (create, "authorization_create", bytes(32) + struct.pack("<I", 400) + JOIN_SCOPE),
        (turn, "authorization_grantor_update", b"\2"),
        *((add, "authorization_grantee_update", b"\0" + struct.pack("<I", n) + bytes(32)) for n in (2, 2**32 - 1)),
    ):
        assert grant.refuse(with_body(instruction, name, body)) == Anchor.NOT_UNDERSTOOD
    assert grant.refuse(with_body(turn, "authorization_steal", b"")) == Anchor.UNKNOWN_INSTRUCTION


class TestCreate:
    def test_a_new_authorization_is_inactive_and_has_no_delegates(self, new: Grant) -> None:
        before = new.bank.get_lamports(new.payer.pubkey())
        new.send(new.create())
        keys = new.grantor.pubkey(), new.grantee
        address, bump = Pubkey.find_program_address([b"Authorization", *map(bytes, keys), JOIN_SCOPE], AUTHORIZER)
        assert (new.data, new.address) == ((bump, *keys, JOIN_SCOPE, False, (), NOW), address)
        assert len(new.bank.get_data(address)) == LEAST_BYTES
        assert before - new.bank.get_lamports(new.payer.pubkey()) == new.bank.get_lamports(address) == 1_642_560

    def test_the_longest_scope_has_32_bytes_and_the_shortest_one(self, new: Grant) -> None:
        for new.scope in (bytes(range(32)), b"\0"):
            new.send(new.create())
            assert new.data.scope == new.scope
        for scope in (b"", bytes(33)):
            new.scope = scope[:32]
            bad = with_body(new.create(), "authorization_create", bytes(new.grantee) + encode_bytes(scope))
            assert new.refuse(bad) == AuthorizerError.SCOPE_LENGTH

    def test_it_is_created_once(self, grant: Grant) -> None:
        with pytest.raises(Refused):
            grant.send(grant.create())
        assert grant.data.active

    def test_lamports_sent_to_the_address_do_not_prevent_it(self, new: Grant) -> None:
        new.bank.svm.airdrop(new.address, 1_000_000)
        assert new.make().data.active


def test_the_grantor_turns_it_on_and_off_and_the_time_is_kept(grant: Grant) -> None:
    for active, now in ((False, NOW + 5), (True, NOW + 9)):
        grant.bank.set_time(now)
        grant.send(grant.turn(active=active))
        assert (grant.data.active, grant.data.grantor_update_unix_timestamp) == (active, now)


class TestGranteeUpdate:
    def test_delegates_are_added_in_order_each_once_and_cleared(self, grant: Grant) -> None:
        keys = build_keys(30)
        assert grant.delegate(keys) == tuple(keys)
        assert grant.delegate(keys[5:7], clear=True) == tuple(keys[5:7])
        assert grant.delegate([keys[6], keys[5], keys[6]]) == tuple(keys[5:7])
        assert len(grant.bank.get_data(grant.address)) == LEAST_BYTES + 2 * 32
        assert grant.delegate([], clear=True) == ()
        assert len(grant.bank.get_data(grant.address)) == LEAST_BYTES

    def test_there_are_at_most_256_and_everybody_is_none(self, grant: Grant) -> None:
        keys = build_keys(MAX_DELEGATES + 1)
        assert len(grant.delegate(keys[:-1])) == MAX_DELEGATES
        assert grant.refuse(grant.add(keys[-1])) == AuthorizerError.TOO_MANY
        grant.delegate(keys[:24])  # those that are in already need no room
        assert grant.delegate(keys[-1:], clear=True) == (keys[-1],)
        assert grant.refuse(grant.add(EVERYBODY)) == AuthorizerError.ZERO_DELEGATE

    def test_the_payer_pays_for_delegates_and_gets_it_back(self, grant: Grant) -> None:
        payer, deposit = grant.payer.pubkey(), grant.bank.get_lamports(grant.address)
        before, rent = grant.bank.get_lamports(payer), grant.bank.svm.minimum_balance_for_rent_exemption
        for count, paid in ((20, rent(640) - rent(0)), (3, rent(96) - rent(0)), (0, 0)):
            grant.delegate(build_keys(count), clear=True)
            assert before - grant.bank.get_lamports(payer) == paid
        assert grant.bank.get_lamports(grant.address) == deposit

    def test_delegates_name_nobody(self, grant: Grant) -> None:
        machine = grant.bank.fund()
        grant.keys.append(machine)
        grant.delegate([machine.pubkey()])
        assert grant.refuse(grant.add(*build_keys(1)), {1: signs(machine)}) == AuthorizerError.NOT_GRANTEE

    def test_an_authorization_of_everybody_has_no_delegates(self) -> None:
        grant = Grant(Bank(AUTHORIZER), everybody=True).make()
        assert grant.refuse(grant.add(*build_keys(1)), {1: reads(EVERYBODY)}) == Anchor.NOT_SIGNER

    def test_a_payer_without_lamports_is_refused(self, grant: Grant) -> None:
        grant.payer = grant.bank.fund(1_000_000)
        grant.keys.append(grant.payer)
        with pytest.raises(Refused):
            grant.send(grant.add(*build_keys(20)))
        assert grant.data.delegates == ()


class TestClose:
    def test_the_whole_deposit_goes_to_spill(self, grant: Grant) -> None:
        bank, address, spill = grant.bank, grant.address, Keypair().pubkey()
        grant.send(grant.turn(active=False))
        bank.svm.airdrop(address, 77)
        deposit = bank.get_lamports(address)
        grant.send(grant.close(spill))
        assert (bank.get_lamports(spill), bank.get_lamports(address), bank.get_data(address)) == (deposit, 0, b"")
        grant.make()  # the address is free again

    def test_an_active_one_stays(self, grant: Grant) -> None:
        assert grant.refuse(grant.close()) == AuthorizerError.ACTIVE

    def test_one_with_delegates_stays_for_30_days(self, grant: Grant) -> None:
        grant.delegate(build_keys(1))
        grant.bank.set_time(NOW + 100)
        grant.send(grant.turn(active=False))
        for now in (NOW + 100, NOW + 99 + MONTH_S, -(2**63), 0):
            grant.bank.set_time(now)
            assert grant.refuse(grant.close()) == AuthorizerError.TOO_EARLY
        grant.bank.set_time(NOW + 100 + MONTH_S)
        grant.send(grant.close())
        assert grant.bank.get_lamports(grant.address) == 0
