"""The header of a training result and the bytes that are signed (`docs/protocol-reference.md`, R1 to R3)."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

from psyche.core.limits import HEADER_BYTES, SIGNED_BYTES
from psyche.core.state import ZERO32
from psyche.errors import WireError

MAGIC: Final = b"PSYR"
VERSION: Final = 1
HEADERS_KEPT: Final = 1_024  # about 1 MB
_LAYOUT: Final = struct.Struct("<4sHH32sHHIIIQQ32s32s32s32s32s32s32s32s32s32sQIB3x32s8x")
_SIGNED: Final = struct.Struct("<32sHIH32s")
_PREFIX: Final = struct.Struct("<32sHIH")
RESULT_TAG: Final = b"psyche/result/1"

assert _LAYOUT.size == HEADER_BYTES, "the header's layout is fixed"
assert len(RESULT_TAG) + _SIGNED.size == SIGNED_BYTES, "R2: exactly 87 bytes are signed"


class NumericClass(IntEnum):
    """How a trainer computes, which bounds the honest noise of its gradients (V6)."""

    FP32 = 0
    BF16 = 1


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """Everything a trainer says of one result; its hash is the commitment.

    Hashes are 32 bytes. `lr_bits` are the bits of the float32 learning rate. `batch_start` and
    `batch_end` are sample indexes, both included. Roots are zero in a run without verification.
    """

    run_uid: bytes
    epoch: int
    member: int
    height: int
    step: int
    lr_bits: int
    batch_start: int
    batch_end: int
    plan_hash: bytes
    config_hash: bytes
    base_digest: bytes
    data_hash: bytes
    prev_commitment: bytes
    body_hash: bytes
    body_len: int
    train_count: int
    numeric_class: NumericClass
    trainer_key: bytes
    momentum_before: bytes = ZERO32
    momentum_after: bytes = ZERO32
    lookahead_root: bytes = ZERO32
    work_root: bytes = ZERO32
    flags: int = 0


def encode_header(header: ResultHeader) -> bytes:
    """The 448 canonical bytes of a header."""
    return _LAYOUT.pack(
        MAGIC, VERSION, header.flags, header.run_uid, header.epoch, header.member, header.height, header.step,
        header.lr_bits, header.batch_start, header.batch_end, header.plan_hash, header.config_hash,
        header.base_digest, header.data_hash, header.prev_commitment, header.momentum_before,
        header.momentum_after, header.lookahead_root, header.work_root, header.body_hash, header.body_len,
        header.train_count, header.numeric_class, header.trainer_key,
    )  # fmt: skip


@lru_cache(maxsize=HEADERS_KEPT)
def decode_header(raw: bytes) -> ResultHeader:
    """Read a header; refuses whatever does not encode back to the same bytes (R3).

    The last ones are kept: the same header is judged again whenever more is known, and comes by several ways.

    Raises:
        WireError: wrong length, magic, version, or a pad or reserve that is not zero.
    """
    if len(raw) != HEADER_BYTES:
        raise WireError(f"result header: {len(raw)} bytes, must be {HEADER_BYTES}")
    f = _LAYOUT.unpack(raw)
    if f[0] != MAGIC or f[1] != VERSION:
        raise WireError("result header: magic or version is not that of this protocol")
    if f[23] not in tuple(NumericClass):
        raise WireError(f"result header: numeric_class {f[23]} is unknown")
    header = ResultHeader(
        run_uid=f[3], epoch=f[4], member=f[5], height=f[6], step=f[7], lr_bits=f[8], batch_start=f[9],
        batch_end=f[10], plan_hash=f[11], config_hash=f[12], base_digest=f[13], data_hash=f[14],
        prev_commitment=f[15], momentum_before=f[16], momentum_after=f[17], lookahead_root=f[18],
        work_root=f[19], body_hash=f[20], body_len=f[21], train_count=f[22],
        numeric_class=NumericClass(f[23]), trainer_key=f[24], flags=f[2],
    )  # fmt: skip
    if encode_header(header) != raw:
        raise WireError("result header: pad or reserve bytes are not zero")
    return header


def signed_prefix(tag: bytes, run_uid: bytes, epoch: int, height: int, member: int) -> bytes:
    """What every signed gossip message begins with (R2)."""
    return tag + _PREFIX.pack(run_uid, epoch, height, member)


def result_signed_bytes(run_uid: bytes, epoch: int, height: int, member: int, commitment: bytes) -> bytes:
    """The 87 bytes a trainer signs for a result (R2)."""
    return signed_prefix(RESULT_TAG, run_uid, epoch, height, member) + commitment
