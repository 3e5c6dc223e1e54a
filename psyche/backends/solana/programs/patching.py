"""Other ids in a compiled program, so that one build serves every chain.

A program knows its own id and those of others as 32 bytes among its constants, or as four numbers of 64 bits that
instructions load. Replacing them leaves everything else as it is, and can be taken back: so a program on any chain
is compared with the digest of the build.
"""

import re
import struct
from collections.abc import Mapping

from psyche.backends.solana.interface.addresses import ProgramIds

_LOAD = rb"\x18[\x00-\x0f]\x00\x00"  # of a number into a register: its halves stand behind this and behind four zeros
_WORDS = 4


def replace_ids(code: bytes, old: ProgramIds, new: ProgramIds) -> bytes:
    """Put the ids `new` where a program has the ids `old`."""
    changes: dict[bytes, bytes] = {}
    for before, after in zip(old, new, strict=True):
        changes[bytes(before)] = bytes(after)
        changes |= zip(_split(bytes(before)), _split(bytes(after)), strict=True)
    return _compile(changes).sub(lambda found: _replace(found[0], changes), code)


def _split(raw: bytes) -> list[bytes]:
    return [raw[8 * word : 8 * word + 8] for word in range(_WORDS)]


def _compile(changes: Mapping[bytes, bytes]) -> re.Pattern[bytes]:
    whole = (re.escape(one) for one in changes if len(one) > 8)
    halves = (re.escape(one[:4]) + rb"\x00{4}" + re.escape(one[4:]) for one in changes if len(one) == 8)
    return re.compile(b"|".join([*whole, _LOAD + b"(?:" + b"|".join(halves) + b")"]), re.DOTALL)


def _replace(found: bytes, changes: Mapping[bytes, bytes]) -> bytes:
    if found in changes:
        return changes[found]
    number = changes[found[4:8] + found[12:]]
    return struct.pack("<4s4s4x4s", found[:4], number[:4], number[4:])
