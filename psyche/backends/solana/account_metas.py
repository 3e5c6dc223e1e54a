"""What an instruction of the chain's own programs, whose interfaces are not here, does with its accounts."""

from solders.instruction import AccountMeta
from solders.pubkey import Pubkey


def signs(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    """An account whose key signs the transaction."""
    return AccountMeta(key, is_signer=True, is_writable=writable)


def reads(key: Pubkey) -> AccountMeta:
    """An account that stays as it is."""
    return AccountMeta(key, is_signer=False, is_writable=False)


def writes(key: Pubkey) -> AccountMeta:
    """An account that the instruction may change."""
    return AccountMeta(key, is_signer=False, is_writable=True)
