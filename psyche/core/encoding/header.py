"""The header of a training result (`docs/protocol-reference.md`, R1 and R3)."""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

from psyche.core.encoding.fields import constant, enum, pad, raw, u16, u32, u64
from psyche.core.encoding.records import RecordLayout
from psyche.core.state.limits import HEADER_BYTES
from psyche.core.state.state import ZERO32

MAGIC: Final = b"PSYR"
VERSION: Final = 1
HEADERS_KEPT: Final = 1_024  # about 1 MB


class NumericClass(IntEnum):
    """The arithmetic of a trainer, which limits the noise that honest gradients may show (V10)."""

    FP32 = 0
    BF16 = 1


class ResultKind(IntEnum):
    """What a member did in the round: it trained a batch, or audited others (V9)."""

    TRAINED = 0
    AUDIT = 1


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """A trainer's statement about one result; the hash of its bytes is the commitment.

    Hashes have 32 bytes. `lr_bits` is the bit pattern of the float32 learning rate. `batch_start` and
    `batch_end` are sample indexes, both included. Roots and `piece_samples` (V1) are zero in a run without
    verification. With local steps `lookahead_root` is a bitmap, and `inner_steps` are those that were done (LS7); else
    both are zero.
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
    result_kind: ResultKind = ResultKind.TRAINED
    piece_samples: int = 0
    flags: int = 0
    inner_steps: int = 0


HEADER: Final = RecordLayout(ResultHeader, [
    constant("magic", "4s", MAGIC), constant("version", "H", VERSION), u16("flags"), raw("run_uid"), u16("epoch"),
    u16("member"), u32("height"), u32("step"), u32("lr_bits"), u64("batch_start"), u64("batch_end"), raw("plan_hash"),
    raw("config_hash"), raw("base_digest"), raw("data_hash"), raw("prev_commitment"), raw("momentum_before"),
    raw("momentum_after"), raw("lookahead_root"), raw("work_root"), raw("body_hash"), u64("body_len"),
    u32("train_count"), enum("numeric_class", NumericClass), enum("result_kind", ResultKind),
    u16("piece_samples"), raw("trainer_key"), u16("inner_steps"), pad(6),
])  # fmt: skip

assert HEADER.size == HEADER_BYTES, "the header's layout is fixed"


def encode_header(header: ResultHeader) -> bytes:
    """The 448 canonical bytes of a header.

    Raises:
        WireError: a field cannot hold its value; the message names it.
    """
    return HEADER.write(header)


@lru_cache(maxsize=HEADERS_KEPT)
def decode_header(header: bytes) -> ResultHeader:
    """Read a header of 448 bytes; an accepted header encodes back to the same bytes (R3).

    Recent headers are cached: the same header arrives over several paths and is judged again as more is known.

    Raises:
        WireError: the length, magic, version or numeric class is wrong, or a pad or reserve is not zero; the message
            names the field.
    """
    return HEADER.decode(header)
