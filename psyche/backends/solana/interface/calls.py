"""Instructions by name: their data and the use of their accounts are what the program's IDL says."""

from collections.abc import Mapping
from typing import Any, Final

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.token import ID as TOKEN

from psyche.backends.solana.interface.addresses import ASSOCIATED_TOKEN, INSTRUCTIONS, get_program_id
from psyche.backends.solana.interface.borsh import encode_value
from psyche.backends.solana.interface.idl import load_program

_KNOWN: Final[Mapping[str, Pubkey]] = {  # accounts of the chain, which callers need not name
    "system_program": SYSTEM,
    "token_program": TOKEN,
    "associated_token_program": ASSOCIATED_TOKEN,
    "instructions": INSTRUCTIONS,
}


def build_call(
    program: str, name: str, accounts: Mapping[str, Pubkey], arguments: Mapping[str, Any] | None = None
) -> Instruction:
    """Build the instruction with this name in the program's IDL; accounts of the chain's own may be left out."""
    interface = load_program(program)
    kind = interface.instructions[name]
    known = {**_KNOWN, "coordinator_program": get_program_id("coordinator")}
    keys = {**{use.name: known[use.name] for use in kind.accounts if use.name in known}, **accounts}
    wrong = keys.keys() ^ {use.name for use in kind.accounts}
    assert not wrong, f"{name} has other accounts: {wrong}"
    metas = [AccountMeta(keys[use.name], is_signer=use.signer, is_writable=use.writable) for use in kind.accounts]
    data = kind.discriminator + encode_value(kind.arguments, arguments or {}, name)
    return Instruction(get_program_id(program), data, metas)


def signs(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=writable)


def reads(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=False)


def writes(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=True)
