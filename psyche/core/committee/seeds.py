"""The seed of a round, and the mix of its witness messages (`docs/protocol-reference.md`, E1 to E6, W5)."""

import hashlib
import struct
from enum import Enum
from typing import Final, Literal

SEED_TAG: Final = b"psyche/seed/1"
MIX_TAG: Final = b"psyche/mix/1"


class EntropyGap(Enum):
    """Entropy value of a tick when the hash of the armed slot is no longer available (E2)."""

    EXPIRED = "expired"


EXPIRED: Final = EntropyGap.EXPIRED
Entropy = bytes | Literal[EntropyGap.EXPIRED] | None  # 32 bytes; None: not available yet (E6)


def compute_seed(run_uid: bytes, epoch: int, height: int, previous_seed: bytes, mix: bytes, entropy: bytes) -> bytes:
    """The 32-byte seed of round `height` (E3).

    `previous_seed` and `mix` are those of the round before. At height 0, `previous_seed` is the seed drawn last
    (zero in a new run) and `mix` is zero. `entropy` is the 32-byte hash of the armed slot.
    """
    named = struct.pack("<32sHI32s32s32s", run_uid, epoch, height, previous_seed, mix, entropy)
    return hashlib.sha256(SEED_TAG + named).digest()


def get_random_seed(seed: bytes) -> int:
    """The first 8 bytes of the seed as an integer: the random number for elections and slices (E3)."""
    return int.from_bytes(seed[:8], "little")


def compute_mix(mix: bytes, member: int, results_root: bytes, state_digest: bytes) -> bytes:
    """The 32-byte mix after one more accepted witness message (W5)."""
    return hashlib.sha256(MIX_TAG + struct.pack("<32sH32s32s", mix, member, results_root, state_digest)).digest()
