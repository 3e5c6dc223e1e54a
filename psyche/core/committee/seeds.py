"""The round's seed and the mix of its witnesses (`docs/protocol-reference.md`, E1 to E6, W5)."""

import hashlib
import struct
from enum import Enum
from typing import Final, Literal

SEED_TAG: Final = b"psyche/seed/1"
MIX_TAG: Final = b"psyche/mix/1"


class EntropyGap(Enum):
    """What a tick is told when the hash of the armed slot can no longer be had (E2)."""

    EXPIRED = "expired"


EXPIRED: Final = EntropyGap.EXPIRED
Entropy = bytes | Literal[EntropyGap.EXPIRED] | None  # 32 bytes; None: not there yet (E6)


def compute_seed(run_uid: bytes, epoch: int, height: int, previous_seed: bytes, mix: bytes, entropy: bytes) -> bytes:
    """The 32-byte seed of round `height` (E3).

    `previous_seed` and `mix` are those of the round before it; at height 0 the seed drawn last
    (zero at first) and zero. `entropy` is the hash of the armed slot, 32 bytes.
    """
    named = struct.pack("<32sHI32s32s32s", run_uid, epoch, height, previous_seed, mix, entropy)
    return hashlib.sha256(SEED_TAG + named).digest()


def get_random_seed(seed: bytes) -> int:
    """The number that drives elections, assignment and slices (E3)."""
    return int.from_bytes(seed[:8], "little")


def compute_mix(mix: bytes, member: int, results_root: bytes, state_digest: bytes) -> bytes:
    """The mix after an accepted witness message (W5)."""
    return hashlib.sha256(MIX_TAG + struct.pack("<32sH32s32s", mix, member, results_root, state_digest)).digest()
