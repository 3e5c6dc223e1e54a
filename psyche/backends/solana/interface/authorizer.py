"""Instructions of the authorizer: who may do what in the name of a grantor, such as join its runs."""

from collections.abc import Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import JOIN_SCOPE, get_authorization_address
from psyche.backends.solana.interface.calls import build_call


def build_authorization_create(
    payer: Pubkey, grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE
) -> Instruction:
    """Make an inactive authorization without delegates; payer and grantor sign.

    The grantee EVERYBODY stands for every key. A scope has 1 to 32 bytes.
    """
    address = get_authorization_address(grantor, grantee, scope)
    accounts = {"payer": payer, "grantor": grantor, "authorization": address}
    return build_call("authorizer", "authorization_create", accounts, {"grantee": grantee, "scope": scope})


def build_authorization_grantor_update(grantor: Pubkey, authorization: Pubkey, *, active: bool) -> Instruction:
    accounts = {"grantor": grantor, "authorization": authorization}
    return build_call("authorizer", "authorization_grantor_update", accounts, {"active": active})


def build_authorization_grantee_update(
    payer: Pubkey, grantee: Pubkey, authorization: Pubkey, added: Sequence[Pubkey] = (), *, clear: bool = False
) -> Instruction:
    """Remove all delegates if `clear`, then add those that are none yet; payer and grantee sign.

    A transaction has room for about 24 keys, an authorization for 256.
    """
    accounts = {"payer": payer, "grantee": grantee, "authorization": authorization}
    arguments = {"delegates_clear": clear, "delegates_added": tuple(added)}
    return build_call("authorizer", "authorization_grantee_update", accounts, arguments)


def build_authorization_close(grantor: Pubkey, spill: Pubkey, authorization: Pubkey) -> Instruction:
    """Close an inactive authorization; the deposit goes to `spill`, and the grantor signs."""
    accounts = {"grantor": grantor, "spill": spill, "authorization": authorization}
    return build_call("authorizer", "authorization_close", accounts)
