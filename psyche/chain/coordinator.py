"""Instructions of the coordinator program.

Each function returns instructions that stand in one transaction, in this order. Who signs the transaction follows
from the accounts: the payer or user, and where a function says so the others.
"""

import struct
from typing import Final, NamedTuple

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.system_program import CreateAccountParams, create_account

from psyche.chain.addresses import COORDINATOR, get_earned_points_address, get_instance_address
from psyche.chain.instructions import encode_body
from psyche.chain.parts import build_instruction, encode_bytes, reads, signs, writes
from psyche.core.encoding.tables import CHECKPOINT, CONFIG, MODEL
from psyche.core.state import messages as msg
from psyche.core.state.limits import SIGNED_BYTES, STATE_BYTES

INSTRUCTIONS: Final = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")
ED25519: Final = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")

UserMessage = (
    msg.Tick | msg.LeaveRun | msg.Withdraw | msg.WarmupWitness | msg.WitnessMessage | msg.HealthCheck
    | msg.NameCheckpoint | msg.ReclaimSlot
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
    msg.Pause: "set_paused",
    msg.Resume: "set_paused",
    msg.SetRates: "set_future_epoch_rates",
    msg.Update: "update",
    msg.UpdateClientVersion: "update_client_version",
}
_SPARE_BYTES: Final = 3 * CHECKPOINT.size  # the further sources of weights, which the program keeps or clears


class ChainRun(NamedTuple):
    """The two accounts of a run."""

    instance: Pubkey
    account: Pubkey

    @classmethod
    def find(cls, run_id: str, account: Pubkey) -> "ChainRun":
        """The accounts of a run with this id."""
        return cls(get_instance_address(run_id), account)


class Authorities(NamedTuple):
    """Who may do what in a run."""

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
    accounts = [
        signs(payer, writable=True),
        writes(get_instance_address(run_id)),
        signs(account, writable=True),
        reads(SYSTEM),
    ]
    body = (
        bytes(authorities.main)
        + bytes(authorities.join)
        + encode_bytes(run_id.encode())
        + encode_bytes(client_version.encode())
    )
    return build_account(payer, account, deposit), _build("init_coordinator", body, accounts)


def build_account(payer: Pubkey, account: Pubkey, deposit: int) -> Instruction:
    """Create the account of a run's state, which is too large for a program to create; both keys sign."""
    params = CreateAccountParams(
        from_pubkey=payer, to_pubkey=account, lamports=deposit, space=STATE_BYTES, owner=COORDINATOR
    )
    return create_account(params)


def build_free(run: ChainRun, authority: Pubkey, spill: Pubkey) -> Instruction:
    """Close a halted run without earnings; the deposits go to `spill`."""
    return _build("free_coordinator", b"", [signs(authority), writes(spill), writes(run.instance), writes(run.account)])


def build_join_run(run: ChainRun, user: Pubkey, p2p: Pubkey, authorization: Pubkey, expires_unix: int) -> Instruction:
    """Join with a wallet and a session key; both sign."""
    accounts = [signs(user), signs(p2p), reads(authorization), reads(run.instance), writes(run.account)]
    return _build("join_run", struct.pack("<Q", expires_unix), accounts)


def build_user_message(run: ChainRun, user: Pubkey, message: UserMessage) -> Instruction:
    """Send a member's message, or one that anyone may send. The chain itself knows a tick's entropy."""
    body = b"" if isinstance(message, msg.Tick) else encode_body(message)
    return _build(_NAMES[type(message)], body, [signs(user), reads(run.instance), writes(run.account)])


def build_owner_message(run: ChainRun, authority: Pubkey, message: OwnerMessage) -> Instruction:
    """Send a message of the run's owner.

    An update's further sources of weights are not sent: those on record stay if the model's first source stays.
    """
    return _build(
        _NAMES[type(message)],
        encode_owner_body(message),
        [signs(authority), reads(run.instance), writes(run.account)],
    )


def encode_owner_body(message: OwnerMessage) -> bytes:
    """The data of an owner's instruction after the discriminator; a treasurer forwards the same bytes."""
    match message:
        case msg.Pause():
            return b"\1"
        case msg.Resume():
            return b"\0"
        case msg.Update():
            return _cut_model(encode_body(message))
        case _:
            return encode_body(message)


def _cut_model(body: bytes) -> bytes:
    tag = 1 + (CONFIG.size if body[0] else 0)
    end = tag + 1 + MODEL.size - _SPARE_BYTES
    return body[:end] + body[end + _SPARE_BYTES :] if body[tag] else body


def build_collect(run: ChainRun, payer: Pubkey, run_uid: bytes, signer: Pubkey) -> Instruction:
    """Move the earnings of `signer` to its account of earned points, whose deposit the payer pays at the first time."""
    accounts = [
        signs(payer, writable=True),
        writes(run.instance),
        writes(run.account),
        writes(get_earned_points_address(run_uid, signer)),
        reads(SYSTEM),
    ]
    return _build("collect", bytes(signer), accounts)


def build_close_earned_points(account: Pubkey, run_uid: bytes, signer: Pubkey, payer: Pubkey) -> Instruction:
    """Close the earned points of `signer` in a run freed from `account`; the deposit goes back to who paid it."""
    points = get_earned_points_address(run_uid, signer)
    return _build("close_earned_points", b"", [signs(signer), writes(payer), reads(account), writes(points)])


def build_equivocation_report(
    run: ChainRun,
    user: Pubkey,
    report: msg.ReportEquivocation,
    p2p: Pubkey,
    evidence: tuple[SignedResult, SignedResult],
) -> tuple[Instruction, Instruction]:
    """Report a member whose p2p key signed two results for one round (R7)."""
    accounts = [signs(user), reads(run.instance), writes(run.account), reads(INSTRUCTIONS)]
    return build_signature_check(p2p, evidence), _build("report_equivocation", encode_body(report), accounts)


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


def _build(name: str, body: bytes, accounts: list[AccountMeta]) -> Instruction:
    return build_instruction(COORDINATOR, name, body, accounts)
