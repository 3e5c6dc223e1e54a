"""The bytes by which programs tell instructions, accounts and events of different kinds apart."""

from hashlib import sha256
from typing import Final

DISCRIMINATOR_BYTES: Final = 8


def get_discriminator(namespace: str, name: str) -> bytes:
    """The 8 bytes before an instruction (namespace `global`), an account (`account`) or an event (`event`)."""
    return sha256(f"{namespace}:{name}".encode()).digest()[:DISCRIMINATOR_BYTES]
