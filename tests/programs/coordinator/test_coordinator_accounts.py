"""Every check of the accounts that the coordinator's instructions are given, violated one at a time."""

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import pytest
from kits.runs import build_paused_run, build_run
from kits.svm import SYSTEM, Refused, signs
from programs.chain_kit import (
    BAD_ADDRESS,
    BAD_OWNER,
    BAD_SEEDS,
    BROKEN_LINK,
    MISSING_ACCOUNT,
    NOT_AUTHORIZED,
    NOT_OWNER,
    NOT_SIGNER,
    NOT_WRITABLE,
    WRONG_KIND,
    WRONG_OWNER,
    WRONG_PROGRAM,
    WRONG_SIZE,
    WRONG_VERSION,
    ChainStage,
    encode_authorization,
    encode_instance,
    with_account,
)
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import (
    AUTHORIZER,
    COORDINATOR,
    EVERYBODY,
    get_authorization_address,
    get_earned_points_address,
)
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.coordinator import (
    SignedResult,
    build_collect,
    build_equivocation_report,
    build_free,
    build_join_run,
    build_owner_message,
    build_user_message,
)
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.tables import DISCRIMINATOR
from psyche.core.state import messages as msg
from psyche.core.state.state import ZERO32, Checkpoint, WitnessFlag

JOINED: Final = 0
NOT_MUTABLE: Final = 3_006  # the same by a loader that runs before the check of the constraint
HASH: Final = bytes(range(32))
USER, P2P = Keypair(), Keypair()


class Case(NamedTuple):
    """An instruction, and the places of the accounts that most instructions have."""

    build: Callable[[ChainStage], Instruction]
    instance: int = 1
    account: int = 2
    signers: dict[int, str] = {0: "user"}  # noqa: RUF012 - never changed


def user(message: msg.Message) -> Case:
    return Case(lambda stage: build_user_message(stage.run, USER.pubkey(), message))  # type: ignore[arg-type]


def owner(message: msg.Message) -> Case:
    return Case(
        lambda stage: build_owner_message(stage.run, stage.authorities.main, message),  # type: ignore[arg-type]
        signers={0: "owner"},
    )


def build_report(stage: ChainStage) -> Instruction:
    signed = SignedResult(bytes(87), bytes(64))
    report = msg.ReportEquivocation(0, 0, 0)
    return build_equivocation_report(stage.run, USER.pubkey(), report, P2P.pubkey(), (signed, signed))[1]


WITNESS: Final = msg.WitnessMessage(0, 0, 0, WitnessFlag(0), 0, 0, 0, 0, bytes(320), ZERO32, ZERO32)
CASES: Final[dict[str, Case]] = {
    "tick": user(msg.Tick(None)),
    "witness": user(WITNESS),
    "warmup_witness": user(msg.WarmupWitness(0, 0, HASH)),
    "health_check": user(msg.HealthCheck(0, 0, 0)),
    "checkpoint": user(msg.NameCheckpoint(0, HASH, Checkpoint())),
    "withdraw": user(msg.Withdraw(0, 0)),
    "leave_run": user(msg.LeaveRun()),
    "reclaim_slot": user(msg.ReclaimSlot()),
    "update": owner(msg.Update()),
    "update_client_version": owner(msg.UpdateClientVersion("1")),
    "set_future_epoch_rates": owner(msg.SetRates(1, 1)),
    "set_paused": owner(msg.Pause()),
    "join_run": Case(
        lambda stage: build_join_run(stage.run, USER.pubkey(), P2P.pubkey(), stage.authorization, 0),
        instance=3,
        account=4,
        signers={0: "user", 1: "p2p"},
    ),
    "collect": Case(lambda stage: build_collect(stage.run, USER.pubkey(), build_run().state.run_uid, P2P.pubkey())),
    "report_equivocation": Case(build_report),
    "free_coordinator": Case(
        lambda stage: build_free(stage.run, stage.authorities.main, USER.pubkey()),
        instance=2,
        account=3,
        signers={0: "owner"},
    ),
}

PAUSED: Final = ("update", "update_client_version", "free_coordinator")
OWNERS: Final = {name: case for name, case in CASES.items() if "owner" in case.signers.values()}


@cache
def get_stage() -> ChainStage:
    """One machine for all cases; each of them lays the accounts that it needs."""
    stage = ChainStage(build_run().state)
    stage.bank.svm.airdrop(USER.pubkey(), 10**10)
    return stage


@pytest.fixture
def stage() -> ChainStage:
    stage = get_stage()
    stage.put(build_run().state)
    return stage


def refuse(stage: ChainStage, instruction: Instruction) -> int | None:
    """The error of an instruction, signed by all that it asks for."""
    known = {key.pubkey(): key for key in (USER, P2P, stage.owner)}
    needed = {meta.pubkey for meta in instruction.accounts if meta.is_signer} - {stage.bank.payer.pubkey()}
    return stage.bank.refuse(instruction, *(known[key] for key in needed))


def with_bytes(raw: bytes, place: int, replacement: bytes) -> bytes:
    return raw[:place] + replacement + raw[place + len(replacement) :]


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


class TestSigners:
    def test_each_key_signs(self, stage: ChainStage, case: Case) -> None:
        for place in case.signers:
            instruction = case.build(stage)
            unsigned = writes(instruction.accounts[place].pubkey)
            assert refuse(stage, with_account(instruction, place, unsigned)) == NOT_SIGNER

    @pytest.mark.parametrize("case", OWNERS.values(), ids=list(OWNERS))
    def test_only_the_owner_sends_what_is_the_owners(self, stage: ChainStage, case: Case) -> None:
        assert refuse(stage, with_account(case.build(stage), 0, signs(USER))) == NOT_OWNER


class TestInstance:
    def put(self, stage: ChainStage, raw: bytes, owner: Pubkey = COORDINATOR, at: Pubkey | None = None) -> Pubkey:
        key = at or stage.run.instance
        stage.bank.put(key, owner, raw)
        return key

    def test_the_account_of_another_program_is_refused(self, stage: ChainStage, case: Case) -> None:
        self.put(stage, encode_instance(stage.authorities, stage.run.account), owner=AUTHORIZER)
        assert refuse(stage, case.build(stage)) == WRONG_OWNER

    def test_an_account_of_another_kind_is_refused(self, stage: ChainStage, case: Case) -> None:
        raw = encode_instance(stage.authorities, stage.run.account)
        self.put(stage, with_bytes(raw, 0, DISCRIMINATOR))
        assert refuse(stage, case.build(stage)) == WRONG_KIND

    def test_an_instance_at_another_address_is_refused(self, stage: ChainStage, case: Case) -> None:
        raw = encode_instance(stage.authorities, stage.run.account)
        other = self.put(stage, raw, at=Keypair().pubkey())
        assert refuse(stage, with_account(case.build(stage), case.instance, writes(other))) == BAD_SEEDS

    def test_an_instance_of_another_run_is_refused(self, stage: ChainStage, case: Case) -> None:
        self.put(stage, encode_instance(stage.authorities, Keypair().pubkey()))
        assert refuse(stage, case.build(stage)) == BROKEN_LINK

    def test_a_missing_instance_is_refused(self, stage: ChainStage, case: Case) -> None:
        assert refuse(stage, with_account(case.build(stage), case.instance, None)) == MISSING_ACCOUNT


class TestAccount:
    def test_the_account_of_another_program_is_refused(self, stage: ChainStage, case: Case) -> None:
        stage.bank.put(stage.run.account, AUTHORIZER, encode_state(build_run().state))
        assert refuse(stage, case.build(stage)) == WRONG_OWNER

    def test_an_account_of_another_kind_is_refused(self, stage: ChainStage, case: Case) -> None:
        stage.put_raw(with_bytes(encode_state(build_run().state), 0, b"notarun!"))
        assert refuse(stage, case.build(stage)) == WRONG_KIND

    def test_an_account_that_no_run_was_begun_on_is_refused(self, stage: ChainStage, case: Case) -> None:
        stage.put_raw(bytes(165_192))
        assert refuse(stage, case.build(stage)) == WRONG_KIND

    def test_an_account_that_cannot_be_written_is_refused(self, stage: ChainStage, case: Case) -> None:
        instruction = with_account(case.build(stage), case.account, reads(stage.run.account))
        assert refuse(stage, instruction) in (NOT_WRITABLE, NOT_MUTABLE)

    @pytest.mark.parametrize("change", [-1, 1, 8])
    def test_another_size_is_refused(self, stage: ChainStage, case: Case, change: int) -> None:
        raw = encode_state(build_run().state)
        stage.put_raw((raw + bytes(8))[: len(raw) + change])
        assert refuse(stage, case.build(stage)) == WRONG_SIZE

    @pytest.mark.parametrize("version", [0, 2, 257])
    def test_another_version_of_the_layout_is_refused(self, stage: ChainStage, case: Case, version: int) -> None:
        stage.put_raw(with_bytes(encode_state(build_run().state), 8, version.to_bytes(8, "little")))
        assert refuse(stage, case.build(stage)) == WRONG_VERSION

    def test_the_account_of_another_run_is_refused(self, stage: ChainStage, case: Case) -> None:
        other = Keypair().pubkey()
        stage.bank.put(other, COORDINATOR, encode_state(build_run().state))
        instruction = with_account(case.build(stage), case.account, writes(other))
        assert refuse(stage, instruction) == BROKEN_LINK

    def test_a_missing_account_is_refused(self, stage: ChainStage, case: Case) -> None:
        assert refuse(stage, with_account(case.build(stage), case.account, None)) == MISSING_ACCOUNT


class TestOtherAccounts:
    def test_points_go_to_the_account_of_run_and_signer(self, stage: ChainStage) -> None:
        instruction = CASES["collect"].build(stage)
        for wrong in (
            get_earned_points_address(HASH, P2P.pubkey()),
            get_earned_points_address(build_run().state.run_uid, USER.pubkey()),
        ):
            assert refuse(stage, with_account(instruction, 3, writes(wrong))) == BAD_SEEDS
        unwritable = with_account(instruction, 3, reads(instruction.accounts[3].pubkey))
        assert refuse(stage, unwritable) in (None, NOT_WRITABLE)
        assert refuse(stage, with_account(instruction, 4, reads(AUTHORIZER))) == WRONG_PROGRAM
        assert refuse(stage, with_account(instruction, 1, reads(stage.run.instance))) == NOT_WRITABLE
        assert refuse(stage, with_account(instruction, 0, signs(USER))) is None  # the system program refuses

    def test_points_that_somebody_else_laid_are_refused(self, stage: ChainStage) -> None:
        instruction = CASES["collect"].build(stage)
        stage.bank.put(instruction.accounts[3].pubkey, AUTHORIZER, bytes(145))
        assert refuse(stage, instruction) is not None
        stage.bank.put(instruction.accounts[3].pubkey, SYSTEM, b"")

    def test_the_list_of_instructions_is_the_runtimes(self, stage: ChainStage) -> None:
        fake = Keypair().pubkey()
        instruction = CASES["report_equivocation"].build(stage)
        assert refuse(stage, with_account(instruction, 3, reads(fake))) == BAD_ADDRESS


class TestAuthorization:
    """Who may join: the wallets that an active authorization of the run's join authority names."""

    def join(self, stage: ChainStage, raw: bytes, owner: Pubkey = AUTHORIZER) -> int | None:
        authorization = get_authorization_address(stage.authorities.join, EVERYBODY)
        stage.bank.put(authorization, owner, raw)
        instruction = build_join_run(stage.run, USER.pubkey(), P2P.pubkey(), authorization, 0)
        try:
            stage.bank.send(instruction, signers=[USER, P2P])
        except Refused as refused:
            return refused.code
        assert any(slot.signer == bytes(USER.pubkey()) for slot in stage.state.registry.slots)
        return JOINED

    def test_grantee_delegates_and_everybody_may_join(self, stage: ChainStage) -> None:
        grantor = stage.authorities.join
        assert self.join(stage, encode_authorization(grantor)) == JOINED
        stage.put(build_run().state)
        assert self.join(stage, encode_authorization(grantor, USER.pubkey())) == JOINED
        stage.put(build_run().state)
        named = encode_authorization(grantor, P2P.pubkey(), delegates=[Keypair().pubkey(), USER.pubkey()])
        assert self.join(stage, named) == JOINED

    def test_nobody_joins_without_an_active_authorization(self, stage: ChainStage) -> None:
        grantor = stage.authorities.join
        for raw in (
            encode_authorization(grantor, active=False),
            encode_authorization(grantor, P2P.pubkey()),
            encode_authorization(grantor, P2P.pubkey(), delegates=[P2P.pubkey()]),
            encode_authorization(stage.authorities.main),
            encode_authorization(grantor, scope=b"CoordinatorJoinRuns"),
            encode_authorization(grantor, scope=b""),
            with_bytes(encode_authorization(grantor), 0, DISCRIMINATOR),
            b"",
        ):
            assert self.join(stage, raw) == NOT_AUTHORIZED

    def test_only_the_authorizers_accounts_count(self, stage: ChainStage) -> None:
        raw = encode_authorization(stage.authorities.join)
        assert self.join(stage, raw, owner=COORDINATOR) == BAD_OWNER
        assert self.join(stage, b"", owner=SYSTEM) == BAD_OWNER


@pytest.mark.parametrize("name", ["tick", "set_future_epoch_rates", "set_paused", "join_run", *PAUSED])
def test_instructions_with_the_right_accounts_are_carried_out(name: str) -> None:
    """The cases are refused for what they violate, and for nothing else."""
    stage = get_stage()
    stage.put(build_paused_run().state if name in PAUSED else build_run().state)
    stage.bank.put(stage.authorization, AUTHORIZER, encode_authorization(stage.authorities.join))
    case = CASES[name]
    keys = {"user": USER, "p2p": P2P, "owner": stage.owner}
    stage.bank.send(case.build(stage), signers=[keys[signer] for signer in case.signers.values()])
