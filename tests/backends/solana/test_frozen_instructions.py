"""Every instruction has the bytes and accounts that it had when they were packed by hand."""

import json
from pathlib import Path
from typing import Final

import pytest
from kits.runs import build_run
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche.backends.solana.interface import authorizer, coordinator, treasurer
from psyche.backends.solana.interface.addresses import get_authorization_address
from psyche.backends.solana.interface.coordinator import Authorities, ChainRun, SignedResult
from psyche.backends.solana.interface.treasurer import NewRun, RunChange, TreasurerRun
from psyche.core.state import messages as msg
from psyche.core.state.state import Checkpoint, CheckpointKind, Metadata, Progress
from psyche.testing.builders import build_config, build_model

A, B, C, D, E, F, G, H = (Pubkey(bytes([number] * 32)) for number in range(1, 9))
UID: Final = bytes(range(32))
RUN: Final = ChainRun(B, C)
PAID: Final = TreasurerRun(A, 7, B, C, D, E, F, 0, G, UID)
SOURCE: Final = Checkpoint(CheckpointKind.HUB, "owner/name", "main")
UPDATE: Final = msg.Update(
    build_config(warmup_time=77), build_model(checkpoint=SOURCE), Progress(1, 2, 3), Metadata("n", "d", 4, 5),
    ("/ip4/1.2.3.4/tcp/5", "/dns4/a"), UID, 99,
)  # fmt: skip
MESSAGES: Final = {
    "tick": msg.Tick(None),
    "leave_run": msg.LeaveRun(),
    "withdraw": msg.Withdraw(3, 4),
    "warmup_witness": msg.WarmupWitness(1, 2, UID),
    "health_check": msg.HealthCheck(1, 70_000, 255),
    "checkpoint": msg.NameCheckpoint(9, UID, SOURCE),
    "reclaim_slot": msg.ReclaimSlot(),
    "audit": msg.ReportAudit(1, 70_000, 255, 7, 300, 2, UID),
    "judge": msg.JudgeChallenge(1, 70_000, 255, 15, 1),
}
OWNED: Final[dict[str, coordinator.OwnerMessage]] = {
    "pause": msg.Pause(),
    "resume": msg.Resume(),
    "set_rates": msg.SetRates(None, 2**63 - 1),
    "set_both_rates": msg.SetRates(1, 2),
    "update": UPDATE,
    "update_nothing": msg.Update(),
    "update_model": msg.Update(model=build_model()),
    "update_client_version": msg.UpdateClientVersion("v-ä"),
}
CHANGES: Final = {
    "run_update_nothing": RunChange(),
    "run_update_all": RunChange(UPDATE, 2**64 - 1, 0, True, "v2"),
    "run_update_resume": RunChange(paused=False, slashing=5),
}


SIGNED: Final = (SignedResult(bytes([1] * 87), bytes([2] * 64)), SignedResult(bytes([3] * 87), bytes([4] * 64)))
GRANT: Final = get_authorization_address(B, C)
NEW: Final = NewRun(2**64 - 1, "rün", "v1", C, D)
CASES: Final[dict[str, Instruction | tuple[Instruction, ...]]] = {
    **{name: coordinator.build_user_message(RUN, A, message) for name, message in MESSAGES.items()},
    "witness": coordinator.build_user_message(RUN, A, build_run(1).warm_up().build_witness(0, metadata=b"said")),
    **{name: coordinator.build_owner_message(RUN, A, message) for name, message in OWNED.items()},
    "init": coordinator.build_init(A, "rün", B, Authorities(C, D), "v1", 123),
    "free": coordinator.build_free(RUN, A, D),
    "join_run": coordinator.build_join_run(RUN, A, D, E, 2**63 - 1),
    "collect": coordinator.build_collect(RUN, A, UID, D),
    "close_earned_points": coordinator.build_close_earned_points(C, UID, A, D),
    "report": coordinator.build_equivocation_report(RUN, A, msg.ReportEquivocation(1, 2, 3), D, SIGNED),
    "auth_create": authorizer.build_authorization_create(A, B, C),
    "auth_create_scope": authorizer.build_authorization_create(A, B, C, b"x"),
    "auth_grantor_True": authorizer.build_authorization_grantor_update(B, GRANT, active=True),
    "auth_grantor_False": authorizer.build_authorization_grantor_update(B, GRANT, active=False),
    "auth_clear": authorizer.build_authorization_grantee_update(A, C, GRANT, clear=True),
    "auth_add": authorizer.build_authorization_grantee_update(A, C, GRANT, (D, E, F)),
    "auth_close": authorizer.build_authorization_close(B, A, GRANT),
    "run_create": treasurer.build_run_create(A, B, E, NEW, 123),
    **{name: treasurer.build_run_update(PAID, change) for name, change in CHANGES.items()},
    "run_withdraw": treasurer.build_run_withdraw(PAID, H, 2**64 - 1),
    "run_close": treasurer.build_run_close(PAID, H, A),
    "participant_create": treasurer.build_participant_create(PAID, A, H),
    "participant_claim": treasurer.build_participant_claim(PAID, A, H, D, 5),
    "participant_close": treasurer.build_participant_close(A, H, B),
    "top_up": treasurer.build_top_up(PAID, A, H, 6),
}


def describe_instruction(one: Instruction) -> dict[str, object]:
    """What a frozen instruction is compared by: the program, its accounts with `s` signs and `w` writes, the data."""
    accounts = [f"{a.pubkey}{' s' * a.is_signer}{' w' * a.is_writable}" for a in one.accounts]
    return {"program": str(one.program_id), "accounts": accounts, "data": bytes(one.data).hex()}


FROZEN: Final = json.loads(Path(__file__).with_suffix(".json").read_text())


@pytest.mark.parametrize("name", sorted(FROZEN.keys() | CASES.keys()))
def test_an_instruction_keeps_its_bytes_and_accounts(name: str) -> None:
    built = CASES[name]
    assert [describe_instruction(one) for one in (built if isinstance(built, tuple) else (built,))] == FROZEN[name]
