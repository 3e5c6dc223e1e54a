"""What an instruction of the chain's own programs, whose interfaces are not here, does with its accounts."""

from solders.instruction import AccountMeta
from solders.pubkey import Pubkey


def signs(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=writable)


def reads(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=False)


def writes(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=True)
