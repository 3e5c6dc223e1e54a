"""Instructions made without an IDL, by Anchor's conventions: what ours must equal, and those that programs refuse."""

import struct
from collections.abc import Sequence
from hashlib import sha256

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey


def get_discriminator(namespace: str, name: str) -> bytes:
    """The 8 bytes before an instruction (namespace `global`), an account (`account`) or an event (`event`)."""
    return sha256(f"{namespace}:{name}".encode()).digest()[:8]


def build_instruction(program: Pubkey, name: str, body: bytes, accounts: Sequence[AccountMeta]) -> Instruction:
    """An instruction; `body` is the Borsh encoding of its arguments."""
    return Instruction(program, get_discriminator("global", name) + body, list(accounts))


def encode_bytes(raw: bytes) -> bytes:
    """The Borsh encoding of bytes, or of a text's UTF-8: their number as u32, then the bytes."""
    return struct.pack("<I", len(raw)) + raw
