"""Instructions of the authorizer: who may do what in the name of a grantor, such as join its runs."""

import struct
from collections.abc import Sequence

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM

from psyche.chain.addresses import AUTHORIZER, JOIN_SCOPE, get_authorization_address
from psyche.chain.parts import build_instruction, encode_bytes, reads, signs, writes


def build_authorization_create(
    payer: Pubkey, grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE
) -> Instruction:
    """Make an inactive authorization without delegates; payer and grantor sign.

    The grantee EVERYBODY stands for every key. A scope has 1 to 32 bytes.
    """
    address = get_authorization_address(grantor, grantee, scope)
    accounts = [signs(payer, writable=True), signs(grantor), writes(address), reads(SYSTEM)]
    return _build("authorization_create", bytes(grantee) + encode_bytes(scope), accounts)


def build_authorization_grantor_update(grantor: Pubkey, authorization: Pubkey, *, active: bool) -> Instruction:
    """Turn an authorization on or off; the grantor signs."""
    accounts = [signs(grantor), writes(authorization)]
    return _build("authorization_grantor_update", struct.pack("<?", active), accounts)


def build_authorization_grantee_update(
    payer: Pubkey, grantee: Pubkey, authorization: Pubkey, added: Sequence[Pubkey] = (), *, clear: bool = False
) -> Instruction:
    """Remove all delegates if `clear`, then add those that are none yet; payer and grantee sign.

    A transaction has room for about 24 keys, an authorization for 256.
    """
    accounts = [
        signs(payer, writable=True), signs(grantee), writes(authorization), reads(SYSTEM)
    ]  # fmt: skip
    body = struct.pack("<?I", clear, len(added)) + b"".join(map(bytes, added))
    return _build("authorization_grantee_update", body, accounts)


def build_authorization_close(grantor: Pubkey, spill: Pubkey, authorization: Pubkey) -> Instruction:
    """Close an inactive authorization; the deposit goes to `spill`, and the grantor signs."""
    return _build("authorization_close", b"", [signs(grantor), writes(spill), writes(authorization)])


def _build(name: str, body: bytes, accounts: list[AccountMeta]) -> Instruction:
    return build_instruction(AUTHORIZER, name, body, accounts)
