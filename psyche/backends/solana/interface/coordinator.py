"""Instructions of the coordinator program.

Each function returns instructions that stand in one transaction, in this order. Who signs the transaction follows
from the accounts: the payer or user, and where a function says so the others.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche.backends.solana.interface.addresses import get_earned_points_address, get_instance_address, get_program_id
from psyche.backends.solana.interface.borsh import Encoded
from psyche.backends.solana.interface.calls import build_call
from psyche.core.encoding.bodies import encode_body
from psyche.core.encoding.tables import CHECKPOINT, CONFIG, MODEL
from psyche.core.state import messages as msg
from psyche.core.state.limits import SIGNED_BYTES, STATE_BYTES

ED25519: Final = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")

UserMessage = (
    msg.Tick | msg.LeaveRun | msg.Withdraw | msg.WarmupWitness | msg.WitnessMessage | msg.HealthCheck
    | msg.NameCheckpoint | msg.ReclaimSlot | msg.ReportAudit | msg.JudgeChallenge
)  # fmt: skip
OwnerMessage = msg.Pause | msg.Resume | msg.SetRates | msg.Update | msg.UpdateClientVersion

_NAMES: Final[dict[type[msg.Message], str]] = {
    msg.Tick: "tick",
    msg.LeaveRun: "leave_run",
    msg.Withdraw: "withdraw",
    msg.WarmupWitness: "warmup_witness",
    msg.WitnessMessage: "witness",
    msg.HealthCheck: "health_check",
    msg.NameCheckpoint: "checkpoint",
    msg.ReclaimSlot: "reclaim_slot",
    msg.ReportAudit: "audit",
    msg.JudgeChallenge: "judge",
    msg.Pause: "set_paused",
    msg.Resume: "set_paused",
    msg.SetRates: "set_future_epoch_rates",
    msg.Update: "update",
    msg.UpdateClientVersion: "update_client_version",
}
_SPARE_BYTES: Final = 3 * CHECKPOINT.size  # the further sources of weights, which the program keeps or clears


class ChainRun(NamedTuple):
    instance: Pubkey
    account: Pubkey

    @classmethod
    def find(cls, run_id: str, account: Pubkey) -> "ChainRun":
        return cls(get_instance_address(run_id), account)


class Authorities(NamedTuple):
    main: Pubkey  # owns the run
    join: Pubkey  # grants authorizations to join


class SignedResult(NamedTuple):
    """A result's 87 signed bytes and their signature (R2)."""

    message: bytes
    signature: bytes


def build_init(
    payer: Pubkey, run_id: str, account: Pubkey, authorities: Authorities, client_version: str, deposit: int
) -> tuple[Instruction, Instruction]:
    """Create a run and its account; the new account's key signs too.

    `deposit` is in lamports: what the chain asks for an account of 165,192 bytes.
    """
    accounts = {
        "payer": payer, "coordinator_instance": get_instance_address(run_id), "coordinator_account": account,
    }  # fmt: skip
    params = {
        "main_authority": authorities.main, "join_authority": authorities.join, "run_id": run_id,
        "client_version": client_version,
    }  # fmt: skip
    return build_account(payer, account, deposit), _build("init_coordinator", accounts, params=params)


def build_account(payer: Pubkey, account: Pubkey, deposit: int) -> Instruction:
    """Create the account of a run's state, which is too large for a program to create; both keys sign."""
    params = CreateAccountParams(
        from_pubkey=payer, to_pubkey=account, lamports=deposit, space=STATE_BYTES, owner=get_program_id("coordinator")
    )
    return create_account(params)


def build_free(run: ChainRun, authority: Pubkey, spill: Pubkey) -> Instruction:
    """Close a halted run without earnings; the deposits go to `spill`."""
    return _build("free_coordinator", {"authority": authority, "spill": spill, **_name(run)})


def build_join_run(run: ChainRun, user: Pubkey, p2p: Pubkey, authorization: Pubkey, expires_unix: int) -> Instruction:
    accounts = {"user": user, "p2p": p2p, "authorization": authorization, **_name(run)}
    return _build("join_run", accounts, expires_unix=expires_unix)


def build_user_message(run: ChainRun, user: Pubkey, message: UserMessage) -> Instruction:
    """Send a member's message, or one that anyone may send. The chain itself knows a tick's entropy."""
    body = None if isinstance(message, msg.Tick | msg.LeaveRun | msg.ReclaimSlot) else encode_body(message)
    arguments = {} if body is None else {"body": Encoded(body)}
    return _build(_NAMES[type(message)], {"user": user, **_name(run)}, **arguments)


def build_owner_message(run: ChainRun, authority: Pubkey, message: OwnerMessage) -> Instruction:
    """Send a message of the run's owner.

    An update's further sources of weights are not sent: those on record stay if the model's first source stays.
    """
    accounts, name = {"authority": authority, **_name(run)}, _NAMES[type(message)]
    match message:
        case msg.Pause() | msg.Resume():
            return _build(name, accounts, paused=isinstance(message, msg.Pause))
        case msg.Update():
            return _build(name, accounts, body=encode_update(message))
        case _:
            return _build(name, accounts, body=Encoded(encode_body(message)))


def encode_update(message: msg.Update) -> Encoded:
    """An update as an argument; a treasurer forwards the same bytes."""
    return Encoded(_cut_model(encode_body(message)))


def _cut_model(body: bytes) -> bytes:
    tag = 1 + (CONFIG.size if body[0] else 0)
    end = tag + 1 + MODEL.size - _SPARE_BYTES
    return body[:end] + body[end + _SPARE_BYTES :] if body[tag] else body


def build_collect(run: ChainRun, payer: Pubkey, run_uid: bytes, signer: Pubkey) -> Instruction:
    """Move the earnings of `signer` to its account of earned points, whose deposit the payer pays at the first time."""
    accounts = {"payer": payer, "earned_points": get_earned_points_address(run_uid, signer), **_name(run)}
    return _build("collect", accounts, signer=signer)


def build_close_earned_points(account: Pubkey, run_uid: bytes, signer: Pubkey, payer: Pubkey) -> Instruction:
    """Close the earned points of `signer` in a run freed from `account`; the deposit goes back to who paid it."""
    points = get_earned_points_address(run_uid, signer)
    accounts = {"signer": signer, "payer": payer, "coordinator_account": account, "earned_points": points}
    return _build("close_earned_points", accounts)


def build_equivocation_report(
    run: ChainRun,
    user: Pubkey,
    report: msg.ReportEquivocation,
    p2p: Pubkey,
    evidence: tuple[SignedResult, SignedResult],
) -> tuple[Instruction, Instruction]:
    """Report a member whose p2p key signed two results for one round (R7)."""
    call = _build("report_equivocation", {"user": user, **_name(run)}, body=Encoded(encode_body(report)))
    return build_signature_check(p2p, evidence), call


def build_signature_check(key: Pubkey, signed: tuple[SignedResult, ...]) -> Instruction:
    """Let the chain check signatures by one key.

    Data: the number of signatures u8, a pad, and for each of them seven u16: offset of the signature and the number of
    the instruction it lies in, the same for the key, offset and length of the message and its instruction. The number
    65,535 is this instruction. Then key, signatures, messages.
    """
    here = 0xFFFF
    key_at = 2 + 14 * len(signed)
    data = bytes([len(signed), 0])
    for number in range(len(signed)):
        signature_at = key_at + 32 + 64 * number
        message_at = key_at + 32 + 64 * len(signed) + SIGNED_BYTES * number
        data += struct.pack("<7H", signature_at, here, key_at, here, message_at, SIGNED_BYTES, here)
    data += bytes(key) + b"".join(one.signature for one in signed) + b"".join(one.message for one in signed)
    return Instruction(ED25519, data, [])


def _name(run: ChainRun) -> dict[str, Pubkey]:
    return {"coordinator_instance": run.instance, "coordinator_account": run.account}


def _build(name: str, accounts: Mapping[str, Pubkey], **arguments: Any) -> Instruction:
    return build_call("coordinator", name, accounts, arguments)
