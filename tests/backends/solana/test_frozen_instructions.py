"""Every instruction has the bytes and accounts that it had when they were packed by hand."""

import json
from collections.abc import Callable, Iterator
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


def iter_coordinator() -> Iterator[tuple[str, Callable[[], tuple[Instruction, ...]]]]:
    for name, message in MESSAGES.items():
        yield name, lambda message=message: (coordinator.build_user_message(RUN, A, message),)  # type: ignore[misc]
    witness = build_run(1).warm_up().build_witness(0, metadata=b"said")
    yield "witness", lambda: (coordinator.build_user_message(RUN, A, witness),)
    for name, message in OWNED.items():
        yield name, lambda message=message: (coordinator.build_owner_message(RUN, A, message),)  # type: ignore[misc]
    yield "init", lambda: coordinator.build_init(A, "rün", B, Authorities(C, D), "v1", 123)
    yield "free", lambda: (coordinator.build_free(RUN, A, D),)
    yield "join_run", lambda: (coordinator.build_join_run(RUN, A, D, E, 2**63 - 1),)
    yield "collect", lambda: (coordinator.build_collect(RUN, A, UID, D),)
    yield "close_earned_points", lambda: (coordinator.build_close_earned_points(C, UID, A, D),)
    signed = (SignedResult(bytes([1] * 87), bytes([2] * 64)), SignedResult(bytes([3] * 87), bytes([4] * 64)))
    report = msg.ReportEquivocation(1, 2, 3)
    yield "report", lambda: coordinator.build_equivocation_report(RUN, A, report, D, signed)


def iter_authorizer() -> Iterator[tuple[str, Callable[[], tuple[Instruction, ...]]]]:
    address = get_authorization_address(B, C)
    yield "auth_create", lambda: (authorizer.build_authorization_create(A, B, C),)
    yield "auth_create_scope", lambda: (authorizer.build_authorization_create(A, B, C, b"x"),)
    for active in (True, False):
        yield (
            f"auth_grantor_{active}",
            lambda active=active: (authorizer.build_authorization_grantor_update(B, address, active=active),),  # type: ignore[misc]
        )
    yield "auth_clear", lambda: (authorizer.build_authorization_grantee_update(A, C, address, clear=True),)
    yield "auth_add", lambda: (authorizer.build_authorization_grantee_update(A, C, address, (D, E, F)),)
    yield "auth_close", lambda: (authorizer.build_authorization_close(B, A, address),)


def iter_treasurer() -> Iterator[tuple[str, Callable[[], tuple[Instruction, ...]]]]:
    new = NewRun(2**64 - 1, "rün", "v1", C, D)
    yield "run_create", lambda: treasurer.build_run_create(A, B, E, new, 123)
    for name, change in CHANGES.items():
        yield name, lambda change=change: (treasurer.build_run_update(PAID, change),)  # type: ignore[misc]
    yield "run_withdraw", lambda: (treasurer.build_run_withdraw(PAID, H, 2**64 - 1),)
    yield "run_close", lambda: (treasurer.build_run_close(PAID, H, A),)
    yield "participant_create", lambda: (treasurer.build_participant_create(PAID, A, H),)
    yield "participant_claim", lambda: (treasurer.build_participant_claim(PAID, A, H, D, 5),)
    yield "participant_close", lambda: (treasurer.build_participant_close(A, H, B),)
    yield "top_up", lambda: (treasurer.build_top_up(PAID, A, H, 6),)


CASES: Final = dict([*iter_coordinator(), *iter_authorizer(), *iter_treasurer()])


def describe_instruction(one: Instruction) -> dict[str, object]:
    """What a frozen instruction is compared by: the program, its accounts with `s` signs and `w` writes, the data."""
    accounts = [f"{a.pubkey}{' s' * a.is_signer}{' w' * a.is_writable}" for a in one.accounts]
    return {"program": str(one.program_id), "accounts": accounts, "data": bytes(one.data).hex()}


FROZEN: Final = json.loads(Path(__file__).with_suffix(".json").read_text())


@pytest.mark.parametrize("name", list(CASES))
def test_an_instruction_keeps_its_bytes_and_accounts(name: str) -> None:
    assert [describe_instruction(one) for one in CASES[name]()] == FROZEN[name]


def test_all_that_is_frozen_is_built() -> None:
    assert CASES.keys() == FROZEN.keys()
