"""The treasurer's accounts and instructions: runs that pay their members, from the owner's and the members' side.

Each function returns instructions that stand in one transaction, in this order. Who signs follows from the accounts.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address

from psyche.backends.solana.interface.accounts import PARTICIPANT, TREASURER_RUN, InstanceData
from psyche.backends.solana.interface.addresses import (
    get_earned_points_address,
    get_instance_address,
    get_participant_address,
    get_run_address,
)
from psyche.backends.solana.interface.calls import build_call, signs, writes
from psyche.backends.solana.interface.coordinator import build_account, encode_update
from psyche.core.state.limits import CLIENT_VERSION_BYTES
from psyche.core.state.messages import Update
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Coordinator


@dataclass(frozen=True, slots=True)
class TreasurerRun:
    address: Pubkey
    index: int
    main_authority: Pubkey  # its owner
    join_authority: Pubkey
    coordinator_account: Pubkey
    coordinator_instance: Pubkey
    collateral_mint: Pubkey
    total_claimed_earned_points: int
    run_collateral: Pubkey  # the token account that pays
    run_uid: bytes

    @classmethod
    def read(cls, address: Pubkey, raw: bytes) -> Self:
        values = TREASURER_RUN.decode(raw)
        del values["bump"]
        return cls(address, **values)


class ParticipantData(NamedTuple):
    run: Pubkey
    run_uid: bytes
    user: Pubkey
    payer: Pubkey  # gets the deposit back
    claimed_earned_points: int

    @classmethod
    def read(cls, raw: bytes) -> Self:
        values = PARTICIPANT.decode(raw)
        del values["bump"]
        return cls(**values)


def compute_owed(run: TreasurerRun, instance: InstanceData, state: Coordinator) -> int:
    """The points for which members have not been paid, with those that the running epoch pays at its end."""
    registry = state.registry
    pool = registry.current_earning_rate + registry.carry if is_in_epoch(state) else 0
    gross = instance.collected_points + pool + sum(slot.earned for slot in registry.slots)
    return max(0, gross - run.total_claimed_earned_points)


_TOKEN_TRANSFER: Final = 3


@dataclass(frozen=True, slots=True)
class NewRun:
    index: int  # tells the runs of one owner apart
    run_id: str
    client_version: str
    join_authority: Pubkey
    mint: Pubkey  # the token that pays members


@dataclass(frozen=True, slots=True)
class RunChange:
    """What an owner changes; None leaves a part as it is. A pause comes first and a resumption last."""

    settings: Update = Update()
    earning: int | None = None
    slashing: int | None = None
    paused: bool | None = None
    client_version: str | None = None


def compute_run_index(run_id: str) -> int:
    """The index of a run whose owner names none."""
    return int.from_bytes(sha256(run_id.encode()).digest()[:8], "little")


def build_run_create(
    payer: Pubkey, owner: Pubkey, account: Pubkey, new: NewRun, deposit: int
) -> tuple[Instruction, Instruction]:
    """Create a run with its accounts; payer, owner and the key of the new coordinator account sign.

    `deposit` is in lamports: what the chain asks for a coordinator account.
    """
    run = get_run_address(owner, new.index)
    accounts = {
        "payer": payer, "main_authority": owner, "run": run, "collateral_mint": new.mint,
        "run_collateral": get_associated_token_address(run, new.mint),
        "coordinator_instance": get_instance_address(new.run_id), "coordinator_account": account,
    }  # fmt: skip
    params = {
        "index": new.index, "run_id": new.run_id, "client_version": new.client_version,
        "join_authority": new.join_authority,
    }  # fmt: skip
    return build_account(payer, account, deposit), _build("run_create", accounts, params=params)


def build_run_update(run: TreasurerRun, change: RunChange) -> Instruction:
    """Change a run; its owner signs. The coordinator accepts all of the parts, or none is changed."""
    version = change.client_version
    params = {
        "epoch_earning_rate": change.earning,
        "epoch_slashing_rate": change.slashing,
        "paused": change.paused,
        "client_version": None if version is None else version.encode().ljust(CLIENT_VERSION_BYTES, b"\0"),
    }
    accounts = {"main_authority": run.main_authority, "run": run.address, **_name_run(run)}
    return _build("run_update", accounts, params=params, settings=encode_update(change.settings))


def build_run_withdraw(run: TreasurerRun, spill: Pubkey, amount: int) -> Instruction:
    """Move tokens that are not owed to members to the token account `spill`; the owner signs."""
    accounts = {
        "main_authority": run.main_authority, "run": run.address, "run_collateral": run.run_collateral,
        "spill_collateral": spill, **_name_run(run),
    }  # fmt: skip
    return _build("run_withdraw", accounts, amount=amount)


def build_run_close(run: TreasurerRun, spill: Pubkey, spill_collateral: Pubkey) -> Instruction:
    """Free a run: deposits go to `spill`, remaining tokens to `spill_collateral`; the owner signs."""
    accounts = {
        "main_authority": run.main_authority, "spill": spill, "run": run.address,
        "run_collateral": run.run_collateral, "spill_collateral": spill_collateral, **_name_run(run),
    }  # fmt: skip
    return _build("run_close", accounts)


def build_participant_create(run: TreasurerRun, payer: Pubkey, user: Pubkey) -> Instruction:
    """Make the record of what a member was paid; the payer signs and gets the deposit back when it is closed."""
    participant = get_participant_address(run.address, user)
    return _build("participant_create", {"payer": payer, "user": user, "run": run.address, "participant": participant})


def build_participant_claim(
    run: TreasurerRun, authority: Pubkey, user: Pubkey, user_collateral: Pubkey, points: int
) -> Instruction:
    """Pay a member for collected points; the member signs, or the owner.

    The owner can pay to the member's associated token account only. If that one is frozen, has a delegate or belongs
    to somebody else by now, it is named as a further account: then the owner can pay to another one of the member.
    """
    accounts = {
        "authority": authority, "user": user, "user_collateral": user_collateral, "run": run.address,
        "run_collateral": run.run_collateral, "earned_points": get_earned_points_address(run.run_uid, user),
        "participant": get_participant_address(run.address, user),
    }  # fmt: skip
    return _build("participant_claim", accounts, points=points)


def build_participant_close(run: Pubkey, user: Pubkey, payer: Pubkey) -> Instruction:
    """Close the record of a member of a closed run; nobody need sign."""
    participant = get_participant_address(run, user)
    return _build("participant_close", {"payer": payer, "run": run, "participant": participant})


def build_top_up(run: TreasurerRun, owner: Pubkey, source: Pubkey, amount: int) -> Instruction:
    """Pay tokens of the account `source` into the run: a plain transfer, signed by the owner of `source`."""
    accounts = [writes(source), writes(run.run_collateral), signs(owner)]
    return Instruction(TOKEN, struct.pack("<BQ", _TOKEN_TRANSFER, amount), accounts)


def _name_run(run: TreasurerRun) -> dict[str, Pubkey]:
    return {"coordinator_instance": run.coordinator_instance, "coordinator_account": run.coordinator_account}


def _build(name: str, accounts: Mapping[str, Pubkey], **arguments: Any) -> Instruction:
    return build_call("treasurer", name, accounts, arguments)
