"""Every check of the accounts that the coordinator's instructions are given, violated one at a time."""

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import pytest
from kits.runs import build_paused_run, build_run
from kits.svm import SYSTEM, Refused, replace_accounts, signs
from programs.chain_kit import ChainStage, encode_authorization, encode_instance
from programs.refusals import Anchor, CoordinatorError
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
    "audit": user(msg.ReportAudit(0, 0, 0, 0, 0, 0, HASH)),
    "judge": user(msg.JudgeChallenge(0, 0, 0, 0, 0)),
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
    return stage.bank.refuse(instruction, USER, P2P, stage.owner)


def with_bytes(raw: bytes, place: int, replacement: bytes) -> bytes:
    return raw[:place] + replacement + raw[place + len(replacement) :]


def cut(instruction: Instruction, place: int) -> Instruction:
    """The instruction without the accounts from this place on."""
    return Instruction(instruction.program_id, instruction.data, list(instruction.accounts)[:place])


# What is wrong with the instance, or with the run's account: its bytes, who owns them, and the refusal.
INSTANCES: Final[dict[str, tuple[Callable[[ChainStage], bytes], Pubkey, int]]] = {
    "of another program": (lambda s: encode_instance(s.authorities, s.run.account), AUTHORIZER, Anchor.WRONG_OWNER),
    "of another kind": (
        lambda s: with_bytes(encode_instance(s.authorities, s.run.account), 0, DISCRIMINATOR),
        COORDINATOR,
        Anchor.WRONG_KIND,
    ),
    "of another run": (
        lambda s: encode_instance(s.authorities, Keypair().pubkey()),
        COORDINATOR,
        Anchor.BROKEN_LINK,
    ),
}
STATE: Final = encode_state(build_run().state)
ACCOUNTS: Final[dict[str, tuple[bytes, Pubkey, int]]] = {
    "of another program": (STATE, AUTHORIZER, Anchor.WRONG_OWNER),
    "of another kind": (with_bytes(STATE, 0, b"notarun!"), COORDINATOR, Anchor.WRONG_KIND),
    "that no run was begun on": (bytes(len(STATE)), COORDINATOR, Anchor.WRONG_KIND),
    **{
        f"{change:+} bytes": ((STATE + bytes(8))[: len(STATE) + change], COORDINATOR, CoordinatorError.WRONG_SIZE)
        for change in (-1, 1, 8)
    },
    **{
        f"version {version}": (
            with_bytes(STATE, 8, version.to_bytes(8, "little")),
            COORDINATOR,
            CoordinatorError.WRONG_VERSION,
        )
        for version in (0, 2, 257)
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
class TestEachInstruction:
    def test_its_keys_sign(self, stage: ChainStage, case: Case) -> None:
        instruction = case.build(stage)
        for place in case.signers:
            unsigned = writes(instruction.accounts[place].pubkey)
            assert refuse(stage, replace_accounts(instruction, {place: unsigned})) == Anchor.NOT_SIGNER
        if "owner" in case.signers.values():
            assert refuse(stage, replace_accounts(instruction, {0: signs(USER)})) == CoordinatorError.NOT_OWNER

    def test_a_wrong_instance_is_refused(self, stage: ChainStage, case: Case) -> None:
        instruction, other = case.build(stage), Keypair().pubkey()
        stage.bank.put(other, COORDINATOR, encode_instance(stage.authorities, stage.run.account))
        elsewhere = replace_accounts(instruction, {case.instance: writes(other)})
        assert refuse(stage, elsewhere) == Anchor.BAD_SEEDS
        assert refuse(stage, cut(instruction, case.instance)) == Anchor.MISSING
        for name, (build, owner, code) in INSTANCES.items():
            stage.bank.put(stage.run.instance, owner, build(stage))
            assert refuse(stage, instruction) == code, name

    def test_a_wrong_account_is_refused(self, stage: ChainStage, case: Case) -> None:
        instruction, other = case.build(stage), Keypair().pubkey()
        stage.bank.put(other, COORDINATOR, STATE)
        elsewhere = replace_accounts(instruction, {case.account: writes(other)})
        assert refuse(stage, elsewhere) == Anchor.BROKEN_LINK
        assert refuse(stage, cut(instruction, case.account)) == Anchor.MISSING
        fixed = replace_accounts(instruction, {case.account: reads(stage.run.account)})
        assert refuse(stage, fixed) in (Anchor.NOT_WRITABLE, Anchor.NOT_MUTABLE)
        for name, (raw, owner, code) in ACCOUNTS.items():
            stage.bank.put(stage.run.account, owner, raw)
            assert refuse(stage, instruction) == code, name


class TestOtherAccounts:
    def test_points_go_to_the_account_of_run_and_signer(self, stage: ChainStage) -> None:
        instruction = CASES["collect"].build(stage)
        for wrong in (
            get_earned_points_address(HASH, P2P.pubkey()),
            get_earned_points_address(build_run().state.run_uid, USER.pubkey()),
        ):
            assert refuse(stage, replace_accounts(instruction, {3: writes(wrong)})) == Anchor.BAD_SEEDS
        unwritable = replace_accounts(instruction, {3: reads(instruction.accounts[3].pubkey)})
        assert refuse(stage, unwritable) in (None, Anchor.NOT_WRITABLE)
        assert refuse(stage, replace_accounts(instruction, {4: reads(AUTHORIZER)})) == Anchor.WRONG_PROGRAM
        assert refuse(stage, replace_accounts(instruction, {1: reads(stage.run.instance)})) == Anchor.NOT_WRITABLE
        assert refuse(stage, replace_accounts(instruction, {0: signs(USER)})) is None  # the system program refuses

    def test_points_that_somebody_else_laid_are_refused(self, stage: ChainStage) -> None:
        instruction = CASES["collect"].build(stage)
        stage.bank.put(instruction.accounts[3].pubkey, AUTHORIZER, bytes(145))
        assert refuse(stage, instruction) is not None
        stage.bank.put(instruction.accounts[3].pubkey, SYSTEM, b"")

    def test_the_list_of_instructions_is_the_runtimes(self, stage: ChainStage) -> None:
        fake = Keypair().pubkey()
        instruction = CASES["report_equivocation"].build(stage)
        assert refuse(stage, replace_accounts(instruction, {3: reads(fake)})) == Anchor.BAD_ADDRESS


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
            assert self.join(stage, raw) == CoordinatorError.NOT_AUTHORIZED

    def test_only_the_authorizers_accounts_count(self, stage: ChainStage) -> None:
        raw = encode_authorization(stage.authorities.join)
        assert self.join(stage, raw, owner=COORDINATOR) == Anchor.BAD_OWNER
        assert self.join(stage, b"", owner=SYSTEM) == Anchor.BAD_OWNER


@pytest.mark.parametrize("name", ["tick", "set_future_epoch_rates", "set_paused", "join_run", *PAUSED])
def test_instructions_with_the_right_accounts_are_carried_out(name: str) -> None:
    """The cases are refused for what they violate, and for nothing else."""
    stage = get_stage()
    stage.put(build_paused_run().state if name in PAUSED else build_run().state)
    stage.bank.put(stage.authorization, AUTHORIZER, encode_authorization(stage.authorities.join))
    case = CASES[name]
    keys = {"user": USER, "p2p": P2P, "owner": stage.owner}
    stage.bank.send(case.build(stage), signers=[keys[signer] for signer in case.signers.values()])
