"""The parts of an instruction: its data, and its accounts with what it does to them."""

import struct
from collections.abc import Sequence

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche.chain.discriminators import get_discriminator


def build_instruction(program: Pubkey, name: str, body: bytes, accounts: Sequence[AccountMeta]) -> Instruction:
    """An instruction of an Anchor program; `body` is the Borsh encoding of its arguments."""
    return Instruction(program, get_discriminator("global", name) + body, list(accounts))


def signs(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    """An account whose key signs the transaction."""
    return AccountMeta(key, is_signer=True, is_writable=writable)


def reads(key: Pubkey) -> AccountMeta:
    """An account that stays as it is."""
    return AccountMeta(key, is_signer=False, is_writable=False)


def writes(key: Pubkey) -> AccountMeta:
    """An account that the instruction may change."""
    return AccountMeta(key, is_signer=False, is_writable=True)


def encode_bytes(raw: bytes) -> bytes:
    """The Borsh encoding of bytes, or of a text's UTF-8: their number as u32, then the bytes."""
    return struct.pack("<I", len(raw)) + raw
