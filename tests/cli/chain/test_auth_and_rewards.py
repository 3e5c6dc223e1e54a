"""Who may join a run on a chain, and how its members are paid, by the commands, asserted on the accounts."""

import json

import pytest
from kits.chain.box import SOL, ChainBox
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from test_run_on_chain import create, put_file, read_instance, read_state

from psyche.backends.solana.interface.accounts import (
    EARNED_POINTS,
    RUN_STATE,
    TREASURER_RUN,
    AuthorizationData,
    EarnedPointsData,
)
from psyche.backends.solana.interface.addresses import (
    EVERYBODY,
    get_authorization_address,
    get_earned_points_address,
    get_instance_address,
    get_participant_address,
)
from psyche.backends.solana.interface.treasurer import TreasurerRun
from psyche.core.state.state import Slot, SlotState

FEE = 5_000
DEPOSIT = 1_900_080  # of earned points, and of a record of payments


def read_authorization(box: ChainBox, grantor: Pubkey, grantee: Pubkey) -> AuthorizationData:
    return AuthorizationData.read(box.get_data(get_authorization_address(grantor, grantee)))


def earn(box: ChainBox, run_id: str, member: Pubkey, points: int) -> None:
    """Let a member have earned this: hours of training are not played here."""
    state = read_state(box, run_id)
    state.registry.slots.append(Slot(bytes(member), bytes(member), earned=points, state=SlotState.JOINED))
    box.write_state(read_instance(box, run_id).coordinator_account, state)


class TestAuthorizations:
    def test_one_lives_from_create_to_delete_and_its_deposit_comes_back(self, box: ChainBox) -> None:
        grantor, grantee, machine = box.fund("grantor"), box.fund("grantee"), Keypair().pubkey()
        before = box.get_lamports(grantor.pubkey()), box.get_lamports(grantee.pubkey())
        create_it = ("auth", "create", "--authorizer", str(grantee.pubkey()))
        assert "deposit of 0.00164256 SOL" in box.call(*create_it, wallet="grantor")
        assert "already" in box.call(*create_it, wallet="grantor")
        found = read_authorization(box, grantor.pubkey(), grantee.pubkey())
        assert (found.active, found.delegates) == (True, ())
        add = ("auth", "delegate", "--join-authority", str(grantor.pubkey()))
        assert "deposit of 0.00022272 SOL" in box.call(*add, "--delegates-added", str(machine), wallet="grantee")
        assert "already" in box.call(*add, "--delegate-added", str(machine), wallet="grantee")
        assert read_authorization(box, grantor.pubkey(), grantee.pubkey()).delegates == (machine,)
        whose = ("--join-authority", str(grantor.pubkey()), "--authorizer", str(grantee.pubkey()))
        assert json.loads(box.call("auth", "read", *whose, "--json"))["delegates"] == [str(machine)]
        delete = ("auth", "delete", "--authorizer", str(grantee.pubkey()))
        assert "30 days later" in box.call(*delete, wallet="grantor")
        assert not read_authorization(box, grantor.pubkey(), grantee.pubkey()).active
        box.call(*add, "--delegates-clear", wallet="grantee")
        box.call(*delete, wallet="grantor")
        assert box.get_data(get_authorization_address(grantor.pubkey(), grantee.pubkey())) == b""
        assert before[0] - box.get_lamports(grantor.pubkey()) == 3 * FEE
        assert before[1] - box.get_lamports(grantee.pubkey()) == 2 * FEE
        assert "nothing to delete" in box.refuse(*delete, wallet="grantor")
        assert "has not authorized" in box.refuse("auth", "read", *whose)
        assert "it must run `psyche auth create" in box.refuse(*add, "--delegates-clear", wallet="grantee")

    def test_forty_delegates_take_more_than_one_transaction(self, box: ChainBox) -> None:
        grantor, grantee = box.fund("many-grantor"), box.fund("many")
        box.call("auth", "create", "--authorizer", str(grantee.pubkey()), wallet="many-grantor")
        keys = [Keypair().pubkey() for _ in range(40)]
        added = [word for key in keys for word in ("--delegates-added", str(key))]
        whose = ("--join-authority", str(grantor.pubkey()))
        assert "transaction 2 of 2" in box.call("auth", "delegate", *whose, *added, wallet="many")
        assert read_authorization(box, grantor.pubkey(), grantee.pubkey()).delegates == tuple(keys)

    def test_can_join_names_what_stands_against_it(self, box: ChainBox) -> None:
        owner = create(box, "guarded")
        lead, machine = box.fund("lead"), Keypair().pubkey()
        ask = ("run", "can-join", "-r", "guarded", "--address", str(machine))
        assert "has not authorized" in box.refuse(*ask)
        box.call("run", "join-authorization-create", "--authorizer", str(lead.pubkey()), wallet="guarded")
        box.call(
            "auth",
            "delegate",
            "--join-authority",
            str(owner.pubkey()),
            "--delegates-added",
            str(machine),
            wallet="lead",
        )
        assert "has not authorized" in box.refuse(*ask)
        assert "yes" in box.call(*ask, "--authorizer", str(lead.pubkey()))
        box.call("auth", "create", "--authorizer", "everybody", wallet="guarded")
        assert json.loads(box.call(*ask, "--json"))["can_join"]
        assert read_authorization(box, owner.pubkey(), EVERYBODY).active

    def test_what_is_no_wallet_is_refused_by_its_option(self, box: ChainBox) -> None:
        box.fund("typist")
        assert "--authorizer 'bob'" in box.refuse("auth", "create", "--authorizer", "bob", wallet="typist")
        assert "--address" in box.refuse("run", "can-join", "-r", "x", "--address", "0x12")


class Treasury:
    """A run with a treasurer, its token, and what is on the chain of it."""

    def __init__(self, box: ChainBox, run_id: str, decimals: int = 6) -> None:
        self.box, self.run_id = box, run_id
        self.mint = box.put_mint(decimals)
        self.owner = box.fund(run_id)
        self.before = box.get_lamports(self.owner.pubkey())
        self.printed = box.call(
            "run", "create", "--state", put_file(box.folder), "-r", run_id,
            "--treasurer-collateral-mint", str(self.mint), wallet=run_id,
        )  # fmt: skip
        address = read_instance(box, run_id).main_authority
        self.run = TreasurerRun.read(address, box.get_data(address))

    @property
    def held(self) -> int:
        return self.box.get_tokens(self.mint, self.run.address)


def test_a_run_with_a_treasurer_pays_to_the_last_unit_and_gives_every_lamport_back(box: ChainBox) -> None:
    treasury = Treasury(box, "paying")
    assert "transaction 2 of 2" in treasury.printed
    assert treasury.run.main_authority == treasury.owner.pubkey()
    state = read_state(box, "paying")
    assert (state.config.entropy_delay, state.config.total_steps > 0) == (4, True)
    printed = box.call(
        "run", "set-future-epoch-rates", "--earning-rate-total-shared", "12.345678", "-r", "paying", wallet="paying"
    )
    assert "pays 12.345678 for all its credits" in printed
    assert read_state(box, "paying").registry.future_earning_rate == 12_345_678
    words = ("run", "set-future-epoch-rates", "-r", "paying", "--earning-rate-total-shared")
    assert "at most 6 digits" in box.refuse(*words, "0.0000001", wallet="paying")

    member, absent = box.fund("member"), Keypair().pubkey()
    earn(box, "paying", member.pubkey(), 5_000_001)
    earn(box, "paying", absent, 2)
    claim = ("rewards", "claim", "-r", "paying")
    assert "holds no tokens" in box.refuse(*claim, wallet="member")
    box.put_tokens(treasury.mint, treasury.owner.pubkey(), 10_000_000)
    top_up = ("rewards", "top-up", "-r", "paying", "--collateral-amount")
    assert "are to be paid in" in box.refuse(*top_up, "10.000001", wallet="paying")
    box.call(*top_up, "3", wallet="paying")
    assert treasury.held == 3_000_000

    claimed = box.call(*claim, wallet="member")
    assert "2.000001 more are owed" in claimed
    assert "0.00203928 SOL for token accounts, which stay with their owners, and a deposit of 0.00380016 SOL" in claimed
    assert f"points of {member.pubkey()} were collected" in claimed
    assert (box.get_tokens(treasury.mint, member.pubkey()), treasury.held) == (3_000_000, 0)
    plain = json.loads(box.call("rewards", "show", "-r", "paying", "--json"))
    assert (plain["treasurer"]["owed"], plain["treasurer"]["missing"]) == (2_000_003, 2_000_003)
    box.call(*top_up, "2.5", wallet="paying")
    box.call("run", "treasurer-claim-rewards", "-r", "paying", wallet="member")
    assert box.get_tokens(treasury.mint, member.pubkey()) == 5_000_001
    assert "has been paid all" in box.refuse(*claim, wallet="member")
    box.fund("stranger")
    assert "has earned nothing in run 'paying'; `psyche rewards show" in box.refuse(*claim, wallet="stranger")
    assert "5.000001" in box.call("rewards", "show", "-r", "paying")
    wallet = json.loads(box.call("run", "info", "-r", "paying", "--address", str(member.pubkey())))
    assert (wallet["paid"], wallet["unpaid"], wallet["slot"]) == (5_000_001, 0, "joined")

    printed = box.call("run", "close", "-r", "paying", wallet="paying")
    assert "settles what 1 member has earned" in printed
    assert "which stay with their owners, and a deposit of 0.00380016 SOL; once the run is closed" in printed
    assert f"0.000002 tokens of {treasury.mint} were paid to {absent}\n" in printed
    assert f"0.499997 tokens of {treasury.mint} went back to {treasury.owner.pubkey()}\n" in printed
    assert box.get_tokens(treasury.mint, absent) == 2
    assert box.get_tokens(treasury.mint, treasury.owner.pubkey()) == 10_000_000 - 5_000_003
    for key in (get_instance_address("paying"), treasury.run.address, treasury.run.run_collateral):
        assert box.get_data(key) == b""
    state_uid = treasury.run.run_uid
    left = [  # deposits that the owner made for the member that was away; it gets them when it comes back
        get_earned_points_address(state_uid, absent), get_participant_address(treasury.run.address, absent),
    ]  # fmt: skip
    deposits = sum(map(box.get_lamports, left)) + 2_039_280  # and the member's token account
    assert EarnedPointsData.read(box.get_data(left[0])).points == 2
    spent = treasury.before - box.get_lamports(treasury.owner.pubkey())
    assert (spent - deposits) % FEE == 0
    assert spent - deposits <= 10 * FEE


@pytest.mark.whole
def test_members_get_their_deposits_back_after_the_run_and_whoever_paid_them_too(box: ChainBox) -> None:
    treasury = Treasury(box, "leaving", decimals=0)
    member, away = box.fund("leaver"), box.fund("away")
    earn(box, "leaving", member.pubkey(), 5)
    earn(box, "leaving", away.pubkey(), 7)
    box.put_tokens(treasury.mint, treasury.owner.pubkey(), 12)
    box.call("rewards", "top-up", "-r", "leaving", "--collateral-amount", "12", wallet="leaving")
    before = box.get_lamports(member.pubkey())
    claimed = box.call("rewards", "claim", "-r", "leaving", wallet="leaver")
    assert "a deposit of 0.00380016 SOL; once the run is closed, `psyche rewards close" in claimed
    claim_for_another = ("rewards", "claim", "-r", "leaving", "--address", str(away.pubkey()))
    assert "belongs to" in box.refuse(*claim_for_another, wallet="leaver")
    assert "that of earnings only as the member runs it" in box.call(*claim_for_another, wallet="leaving")
    assert [box.get_tokens(treasury.mint, key.pubkey()) for key in (member, away)] == [5, 7]
    assert "2 accounts stay until the run is closed" in box.call("rewards", "close", wallet="leaver")
    closed = box.call("run", "close", "-r", "leaving", wallet="leaving")
    assert "0.00190008 SOL more comes back from records" in closed  # the other member's record of payments
    assert "stays: it comes back as each of them runs `psyche rewards close --rpc" in closed  # its points

    assert "0.00379516 SOL came back" in box.call("rewards", "close", wallet="leaver")
    assert before - box.get_lamports(member.pubkey()) == 2 * FEE + 2_039_280  # and the token account, which it keeps
    assert "nothing to close" in box.call("rewards", "close", wallet="leaver")
    owner = box.get_lamports(treasury.owner.pubkey())
    box.call("rewards", "close", wallet="away")
    assert box.get_lamports(treasury.owner.pubkey()) - owner == 2 * DEPOSIT
    uid, run = treasury.run.run_uid, treasury.run.address
    for key in (member.pubkey(), away.pubkey()):
        assert box.get_data(get_earned_points_address(uid, key)) == b""
        assert box.get_data(get_participant_address(run, key)) == b""


@pytest.mark.whole
def test_a_run_that_owes_more_than_it_holds_is_not_closed(box: ChainBox) -> None:
    treasury = Treasury(box, "owing", decimals=0)
    earn(box, "owing", box.fund("creditor").pubkey(), 10_000)
    box.put_tokens(treasury.mint, treasury.owner.pubkey(), 100_000)
    box.call("rewards", "top-up", "-r", "owing", "--collateral-amount", "4", wallet="owing")
    assert "--collateral-amount 9996" in box.refuse("run", "close", "-r", "owing", wallet="owing")
    box.call("run", "treasurer-top-up-rewards", "-r", "owing", "--collateral-amount", "9996", wallet="owing")
    box.call("run", "close", "-r", "owing", wallet="owing")
    assert treasury.held == 0


def test_points_of_a_run_without_a_treasurer_are_collected_when_it_is_closed(box: ChainBox) -> None:
    create(box, "points")
    member = box.fund("points-member")
    earn(box, "points", member.pubkey(), 77)
    uid = read_state(box, "points").run_uid
    assert "has no treasurer" in box.refuse("rewards", "claim", "-r", "points", wallet="points-member")
    assert "has no treasurer" in box.call("rewards", "show", "-r", "points")
    box.call("run", "close", "-r", "points", wallet="points")
    assert EarnedPointsData.read(box.get_data(get_earned_points_address(uid, member.pubkey()))).points == 77


def test_a_treasurer_needs_a_token_that_can_pay(box: ChainBox) -> None:
    box.fund("no-token", SOL)
    words = ("run", "create", "--state", put_file(box.folder), "-r", "no-token", "--treasurer-collateral-mint")
    assert "there is no such token" in box.refuse(*words, str(Keypair().pubkey()), wallet="no-token")
    assert "is no mint" in box.refuse(*words, "PsycheCoordinator11111111111111111111111111", wallet="no-token")
    create_words = (*words[:-1], "--treasurer-index", "3")
    assert "needs --treasurer-collateral-mint" in box.refuse(*create_words, wallet="no-token")


def test_deposits_are_not_judged_by_accounts_of_another_kind_or_length(box: ChainBox) -> None:
    treasury, member = Treasury(box, "odd", decimals=0), box.fund("odd-member")
    earn(box, "odd", member.pubkey(), 5)
    box.put_tokens(treasury.mint, treasury.owner.pubkey(), 5)
    box.call("rewards", "top-up", "-r", "odd", "--collateral-amount", "5", wallet="odd")
    box.call("rewards", "claim", "-r", "odd", wallet="odd-member")
    close = ("rewards", "close")
    for key, kind in ((treasury.run.coordinator_account, RUN_STATE), (treasury.run.address, TREASURER_RUN)):
        data = box.get_data(key)
        box.put(key, kind.owner, EARNED_POINTS.discriminator + data[8:])
        assert f"account {key}: of {kind.owner} begins with" in box.refuse(*close, wallet="odd-member")
        box.put(key, kind.owner, data[:100])
        assert f"account {key}: " in box.refuse(*close, wallet="odd-member")
        box.put(key, kind.owner, data)
        assert "2 accounts stay until the run is closed" in box.call(*close, wallet="odd-member")


@pytest.mark.whole
def test_closing_a_run_says_what_goes_back_and_promises_no_lamport_that_does_not(box: ChainBox) -> None:
    treasury, payer = Treasury(box, "surplus", decimals=2), box.fund("patron")
    box.put_tokens(treasury.mint, payer.pubkey(), 1_250)
    box.call("rewards", "top-up", "-r", "surplus", "--collateral-amount", "12.5", wallet="patron")
    printed = box.call("run", "close", "-r", "surplus", wallet="surplus")
    assert f"12.5 tokens of {treasury.mint} went back to {treasury.owner.pubkey()}\n" in printed
    assert "costs 0.000005 SOL for 1 transaction, 0.00203928 SOL for token accounts, which stay" in printed
    spent = treasury.before - box.get_lamports(treasury.owner.pubkey())
    assert (spent - 2_039_280) % FEE == 0, "its own token account, where the tokens are now"


@pytest.mark.whole
def test_an_owner_that_is_paid_as_a_member_needs_one_token_account(box: ChainBox) -> None:
    treasury, payer = Treasury(box, "own", decimals=0), box.fund("friend")
    earn(box, "own", treasury.owner.pubkey(), 3)
    box.put_tokens(treasury.mint, payer.pubkey(), 5)
    box.call("rewards", "top-up", "-r", "own", "--collateral-amount", "5", wallet="friend")
    assert ", 0.00203928 SOL for token accounts" in box.call("run", "close", "-r", "own", wallet="own")
    assert box.get_tokens(treasury.mint, treasury.owner.pubkey()) == 5


def test_a_run_that_holds_nothing_says_that_it_pays_nobody_when_it_is_closed(box: ChainBox) -> None:
    treasury = Treasury(box, "broke", decimals=0)
    earn(box, "broke", box.fund("unlucky").pubkey(), 3)
    printed = box.call("run", "close", "-r", "broke", wallet="broke")
    assert "it holds no tokens, so nobody is paid what 1 member has earned" in printed
    assert f"tokens of {treasury.mint}" not in printed
