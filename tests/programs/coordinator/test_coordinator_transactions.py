"""The coordinator's transactions: as its IDL and the page have them, and small enough in their largest form."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from kits.chain.anchor import get_discriminator
from kits.svm import BUILT, TRANSACTION_BYTES
from programs.refusals import CoordinatorError
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message as TransactionMessage
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.coordinator import (
    Authorities,
    ChainRun,
    SignedResult,
    build_close_earned_points,
    build_collect,
    build_equivocation_report,
    build_free,
    build_init,
    build_join_run,
    build_owner_message,
    build_user_message,
)
from psyche.core.state import messages as msg
from psyche.core.state.limits import METADATA_BYTES
from psyche.core.state.state import (
    ZERO32,
    AuditReason,
    AuditStatus,
    ChallengeState,
    Checkpoint,
    CheckpointKind,
    ClientState,
    Metadata,
    Progress,
    RunState,
    SlotState,
    StopReason,
    WitnessFlag,
)
from psyche.testing.builders import build_config, build_model

SIGNATURE_BYTES: Final = 64


def make_key() -> Pubkey:
    return Keypair().pubkey()


WALLET, P2P, ACCOUNT, UID = make_key(), make_key(), make_key(), bytes(range(32))
RUN: Final = ChainRun.find("r" * 32, ACCOUNT)
TICK: Final = build_user_message(RUN, WALLET, msg.Tick(None))
# Every client asks for its compute units and offers a price, so that a busy chain takes its transactions.
BUDGET: Final = (set_compute_unit_limit(200_000), set_compute_unit_price(1_000))


def build_witness(metadata: int) -> msg.WitnessMessage:
    return msg.WitnessMessage(0, 0, 0, WitnessFlag(0), 0, 0, 0, 0, bytes(320), ZERO32, ZERO32, metadata=bytes(metadata))


def build_user(message: msg.Message) -> tuple[Instruction, ...]:
    return (build_user_message(RUN, WALLET, message),)  # type: ignore[arg-type]


def build_owner(message: msg.Message) -> tuple[Instruction, ...]:
    return (build_owner_message(RUN, WALLET, message),)  # type: ignore[arg-type]


SIGNED: Final = SignedResult(bytes(87), bytes(64))
SOURCE: Final = Checkpoint(CheckpointKind.LOCAL, "/" * 128)
UPDATE: Final = msg.Update(build_config(), build_model(), Progress(), first_weights=ZERO32, nonce=0)
METADATA: Final = msg.Update(metadata=Metadata("n" * 64, "d" * 280))
ADDRESSES: Final = msg.Update(bootstrap=("a" * 128,) * 4)
# The transactions that a tick makes sense in; the owner's and those about accounts stand alone.
WITH_TICK: Final[dict[str, tuple[Instruction, ...]]] = {
    "witness": build_user(build_witness(0)),
    "witness, 256 bytes of metadata": build_user(build_witness(METADATA_BYTES)),
    "warmup_witness": build_user(msg.WarmupWitness(0, 0, ZERO32)),
    "health_check": build_user(msg.HealthCheck(0, 0, 0)),
    "audit": build_user(msg.ReportAudit(0, 0, 0, 0, 0, 0, ZERO32)),
    "judge": build_user(msg.JudgeChallenge(0, 0, 0, 0, 0)),
    "checkpoint": build_user(msg.NameCheckpoint(0, ZERO32, SOURCE)),
    "withdraw": build_user(msg.Withdraw(0, 0)),
    "leave_run": build_user(msg.LeaveRun()),
    "reclaim_slot and join_run": (
        *build_user(msg.ReclaimSlot()),
        build_join_run(RUN, WALLET, P2P, make_key(), 0),
    ),
    "join_run": (build_join_run(RUN, WALLET, P2P, make_key(), 0),),
    "report_equivocation": build_equivocation_report(RUN, WALLET, msg.ReportEquivocation(0, 0, 0), P2P, (SIGNED,) * 2),
    "set_paused": build_owner(msg.Resume()),
}
ALONE: Final[dict[str, tuple[Instruction, ...]]] = {
    "tick": (TICK,),
    "init_coordinator": build_init(WALLET, "r" * 32, ACCOUNT, Authorities(WALLET, P2P), "v" * 96, 1),
    "free_coordinator": (build_free(RUN, WALLET, make_key()),),
    "update: settings, first weights, nonce": build_owner(UPDATE),
    "update: metadata": build_owner(METADATA),
    "update: four addresses": build_owner(ADDRESSES),
    "update: metadata, and client version": (
        *build_owner(METADATA),
        *build_owner(msg.UpdateClientVersion("v" * 96)),
    ),
    "update_client_version": build_owner(msg.UpdateClientVersion("v" * 96)),
    "set_future_epoch_rates": build_owner(msg.SetRates(1, 1)),
    "collect": (build_collect(RUN, WALLET, UID, P2P),),
    "close_earned_points": (build_close_earned_points(RUN.account, UID, WALLET, P2P),),
}


def compute_size(instructions: Sequence[Instruction], payer: Pubkey = WALLET) -> int:
    """Bytes of a transaction with these instructions, with its signatures and their number."""
    message = TransactionMessage.new_with_blockhash([*BUDGET, *instructions], payer, Hash.default())
    return 1 + SIGNATURE_BYTES * message.header.num_required_signatures + len(bytes(message))


IDL: Final = json.loads((BUILT / "psyche_coordinator.json").read_text())
TYPES: Final = {one["name"]: one["type"] for one in IDL["types"]}
PAGE: Final = (Path(__file__).resolve().parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")


def test_the_programs_own_errors_follow_those_of_core() -> None:
    own = [one["code"] for one in IDL["errors"] if one["code"] >= min(CoordinatorError)]
    assert own == list(CoordinatorError)
    assert all(one["msg"] for one in IDL["errors"])


def test_the_page_has_a_row_for_each_instruction_event_and_error_of_the_program_itself() -> None:
    rows = [f"`{one['name']}`" for one in (*IDL["instructions"], *IDL["events"])]
    for one in IDL["events"]:
        _, *fields = (field["name"] for field in TYPES[one["name"]]["fields"])
        assert f"| `{one['name']}` | {', '.join(fields)} |" in PAGE
    rows += [f"{one['code']:,} `{one['name']}`" for one in IDL["errors"] if one["code"] >= min(CoordinatorError)]
    assert [row for row in rows if f"\n| {row} |" not in PAGE] == []


def test_python_builds_each_instruction_with_the_accounts_of_the_idl() -> None:
    built: dict[bytes, Instruction] = {
        bytes(one.data[:8]): one
        for instructions in (*WITH_TICK.values(), *ALONE.values())
        for one in instructions
        if one.program_id == COORDINATOR
    }
    assert set(built) == {bytes(one["discriminator"]) for one in IDL["instructions"]}
    for one in IDL["instructions"]:
        discriminator = bytes(one["discriminator"])
        assert discriminator == get_discriminator("global", one["name"])
        asked = [(meta.get("signer", False), meta.get("writable", False)) for meta in one["accounts"]]
        assert asked == [(meta.is_signer, meta.is_writable) for meta in built[discriminator].accounts], one["name"]


def test_constants_name_the_values_of_the_states() -> None:
    kinds = {"RUN_STATE": RunState, "CLIENT_STATE": ClientState, "SLOT_STATE": SlotState, "STOP_REASON": StopReason}
    kinds |= {"AUDIT_STATUS": AuditStatus, "AUDIT_REASON": AuditReason, "CHALLENGE_STATE": ChallengeState}
    named = {f"{prefix}_{one.name}": str(one.value) for prefix, kind in kinds.items() for one in kind}
    assert {one["name"]: one["value"] for one in IDL["constants"]} == named
    assert {one["type"] for one in IDL["constants"]} == {"u8"}


# What the tables of the documentation say: alone, with a tick, with a tick and its own fee payer.
LARGEST = {
    "witness, 256 bytes of metadata": (1_050, 1_064, 1_160),
    "report_equivocation": (737, 751, 847),
    "update: settings, first weights, nonce": (1_040, 1_040, 1_136),
}


@pytest.mark.parametrize("name", [*WITH_TICK, *ALONE])
def test_the_largest_form_fits_a_transaction(name: str) -> None:
    instructions = WITH_TICK[name] if name in WITH_TICK else ALONE[name]
    with_tick = (*instructions, TICK) if name in WITH_TICK else instructions
    sizes = compute_size(instructions), compute_size(with_tick), compute_size(with_tick, payer=make_key())
    print(name, sizes)
    assert max(sizes) <= TRANSACTION_BYTES
    assert LARGEST.get(name, sizes) == sizes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("update: settings, first weights, nonce", "update: metadata"),
        ("update: metadata", "update: four addresses"),
    ],
)
def test_these_updates_need_a_transaction_each(one: str, other: str) -> None:
    assert compute_size((*ALONE[one], *ALONE[other]), payer=make_key()) > TRANSACTION_BYTES
