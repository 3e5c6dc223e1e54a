"""Instructions made without an IDL, by Anchor's conventions: what ours must equal, and those that programs refuse."""

import base64
import struct
from collections.abc import Sequence
from hashlib import sha256

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.events import ChainEvent, get_event_name

NUMBERS = {"nonce": "Q", "amount": "Q", "points": "Q", "step": "I", "height": "I", "epoch": "H", "member": "H"}


def get_discriminator(namespace: str, name: str) -> bytes:
    """The 8 bytes before an instruction (namespace `global`), an account (`account`) or an event (`event`)."""
    return sha256(f"{namespace}:{name}".encode()).digest()[:8]


def build_instruction(program: Pubkey, name: str, body: bytes, accounts: Sequence[AccountMeta]) -> Instruction:
    """An instruction; `body` is the Borsh encoding of its arguments."""
    return Instruction(program, get_discriminator("global", name) + body, list(accounts))


def encode_bytes(raw: bytes) -> bytes:
    """The Borsh encoding of bytes, or of a text's UTF-8: their number as u32, then the bytes."""
    return struct.pack("<I", len(raw)) + raw


def encode_event(event: ChainEvent) -> str:
    """The line of a log that says an event."""
    raw = get_discriminator("event", get_event_name(event))
    for name, value in event._asdict().items():
        raw += bytes(value) if isinstance(value, Pubkey) else struct.pack("<" + NUMBERS.get(name, "B"), value)
    return "Program data: " + base64.b64encode(raw).decode()


def log_event(event: ChainEvent) -> list[str]:
    """The log of a transaction whose only instruction says an event."""
    return [f"Program {COORDINATOR} invoke [1]", encode_event(event), f"Program {COORDINATOR} success"]
