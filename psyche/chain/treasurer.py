"""Instructions of the treasurer: runs that pay their members, from the owner's and from the members' side.

Each function returns instructions that stand in one transaction, in this order. Who signs follows from the accounts.
"""

import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address

from psyche.chain.addresses import (
    COORDINATOR,
    TREASURER,
    get_earned_points_address,
    get_instance_address,
    get_participant_address,
    get_run_address,
)
from psyche.chain.coordinator import ChainRun, build_account, encode_owner_body
from psyche.chain.parts import build_instruction, encode_bytes, reads, signs, writes
from psyche.chain.treasury import TreasurerRun
from psyche.core.state.limits import CLIENT_VERSION_BYTES
from psyche.core.state.messages import Update

ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
_TOKEN_TRANSFER: Final = 3


@dataclass(frozen=True, slots=True)
class NewRun:
    """What a new run is made of."""

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
    accounts = [
        signs(payer, writable=True), signs(owner), writes(run), reads(new.mint),
        writes(get_associated_token_address(run, new.mint)), writes(get_instance_address(new.run_id)),
        signs(account, writable=True), reads(COORDINATOR), reads(ASSOCIATED_TOKEN), reads(TOKEN), reads(SYSTEM),
    ]  # fmt: skip
    body = struct.pack("<Q", new.index) + encode_bytes(new.run_id.encode())
    body += encode_bytes(new.client_version.encode()) + bytes(new.join_authority)
    return build_account(payer, account, deposit), _build("run_create", body, accounts)


def build_run_update(run: TreasurerRun, change: RunChange) -> Instruction:
    """Change a run; its owner signs. The coordinator accepts all of the parts, or none is changed."""
    body = _encode_option("<Q", change.earning) + _encode_option("<Q", change.slashing)
    body += _encode_option("<?", change.paused)
    if change.client_version is None:
        body += b"\0"
    else:
        body += b"\1" + change.client_version.encode().ljust(CLIENT_VERSION_BYTES, b"\0")
    accounts = [
        signs(run.main_authority), reads(run.address), reads(run.coordinator_instance),
        writes(run.coordinator_account), reads(COORDINATOR),
    ]  # fmt: skip
    return _build("run_update", body + encode_owner_body(change.settings), accounts)


def build_run_withdraw(run: TreasurerRun, spill: Pubkey, amount: int) -> Instruction:
    """Move tokens that are not owed to members to the token account `spill`; the owner signs."""
    accounts = [
        signs(run.main_authority), reads(run.address), writes(run.run_collateral), writes(spill),
        reads(run.coordinator_instance), reads(run.coordinator_account), reads(TOKEN),
    ]  # fmt: skip
    return _build("run_withdraw", struct.pack("<Q", amount), accounts)


def build_run_close(run: TreasurerRun, spill: Pubkey, spill_collateral: Pubkey) -> Instruction:
    """Free a run: deposits go to `spill`, remaining tokens to `spill_collateral`; the owner signs."""
    accounts = [
        signs(run.main_authority), writes(spill), writes(run.address), writes(run.run_collateral),
        writes(spill_collateral), writes(run.coordinator_instance), writes(run.coordinator_account),
        reads(COORDINATOR), reads(TOKEN),
    ]  # fmt: skip
    return _build("run_close", b"", accounts)


def build_participant_create(run: TreasurerRun, payer: Pubkey, user: Pubkey) -> Instruction:
    """Make the record of what a member was paid; the payer signs and gets the deposit back when it is closed."""
    participant = get_participant_address(run.address, user)
    accounts = [signs(payer, writable=True), reads(user), reads(run.address), writes(participant), reads(SYSTEM)]
    return _build("participant_create", b"", accounts)


def build_participant_claim(
    run: TreasurerRun,
    authority: Pubkey,
    user: Pubkey,
    user_collateral: Pubkey,
    points: int,
    *,
    shut: Pubkey | None = None,
) -> Instruction:
    """Pay a member for collected points; the member or the owner signs.

    The owner can pay to the member's associated token account only. If that one is frozen, has a delegate or belongs
    to somebody else by now, name it as `shut`: then the owner can pay to another token account of the member.
    """
    accounts = [
        signs(authority), reads(user), writes(user_collateral), writes(run.address), writes(run.run_collateral),
        reads(get_earned_points_address(run.run_uid, user)), writes(get_participant_address(run.address, user)),
        reads(TOKEN), *([] if shut is None else [reads(shut)]),
    ]  # fmt: skip
    return _build("participant_claim", struct.pack("<Q", points), accounts)


def build_participant_close(run: Pubkey, user: Pubkey, payer: Pubkey) -> Instruction:
    """Close the record of a member of a closed run; nobody need sign."""
    accounts = [writes(payer), reads(run), writes(get_participant_address(run, user))]
    return _build("participant_close", b"", accounts)


def build_top_up(run: TreasurerRun, owner: Pubkey, source: Pubkey, amount: int) -> Instruction:
    """Pay tokens of the account `source` into the run: a plain transfer, signed by the owner of `source`."""
    accounts = [writes(source), writes(run.run_collateral), signs(owner)]
    return Instruction(TOKEN, struct.pack("<BQ", _TOKEN_TRANSFER, amount), accounts)


def get_chain_run(run: TreasurerRun) -> ChainRun:
    """The run's accounts at the coordinator."""
    return ChainRun(run.coordinator_instance, run.coordinator_account)


def _build(name: str, body: bytes, accounts: list[AccountMeta]) -> Instruction:
    return build_instruction(TREASURER, name, body, accounts)


def _encode_option(form: str, value: int | None) -> bytes:
    return b"\0" if value is None else b"\1" + struct.pack(form, value)
