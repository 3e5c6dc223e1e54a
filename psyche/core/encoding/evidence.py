"""The file with all that anybody needs to judge a piece again, without the run (`docs/protocol-reference.md`, V13).

A SHA-256 hash of everything before it ends the file, so that damage is told apart from a lie.
"""

import hashlib
import struct
from dataclasses import dataclass, fields
from typing import Final

from psyche.core.encoding.header import decode_header
from psyche.core.encoding.reader import Reader
from psyche.core.encoding.work import MAX_MAGNITUDE, SKETCH_VALUES, Values
from psyche.core.state.limits import HASH_BYTES, HEADER_BYTES, STATE_BYTES
from psyche.errors import WireError

EVIDENCE_MAGIC: Final = b"PSYCHEEV"
EVIDENCE_VERSION: Final = 1
SIGNATURE_BYTES: Final = 64
MAX_PART_BYTES: Final = 1 << 30
_HEAD: Final = struct.Struct("<8sHH")
_VALUES: Final = struct.Struct(f"<{SKETCH_VALUES}f")
_SIZES: Final = {
    "header": HEADER_BYTES, "signature": SIGNATURE_BYTES, "record": STATE_BYTES, "values": _VALUES.size,
}  # fmt: skip  # parts of one length; the others have any up to MAX_PART_BYTES


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an accuser or juror had of the accused member's work.

    `record` is the account's bytes with the rounds that the header and the accusation name; `tokens` are the whole
    batch as `data_hash` covers it. `last_result` is the header that `prev_commitment` names and, if it is of the round
    before, its payload; empty where no look-ahead is due.
    """

    piece: int
    header: bytes
    signature: bytes
    table: bytes
    last_result: bytes
    tokens: bytes
    record: bytes
    values: Values  # the accuser's own


_PARTS: Final = tuple(field.name for field in fields(Evidence))[1:]


def encode_evidence(evidence: Evidence) -> bytes:
    """Encode the file.

    Raises:
        WireError: a part breaks its rule; the message names it.
    """
    parts = {name: getattr(evidence, name) for name in _PARTS[:-1]}
    try:
        head = _HEAD.pack(EVIDENCE_MAGIC, EVIDENCE_VERSION, evidence.piece)
        parts["values"] = _VALUES.pack(*evidence.values)
    except (struct.error, OverflowError) as error:
        raise WireError(f"evidence: piece or values: {error}") from error
    content = head + b"".join(len(raw).to_bytes(4, "little") + raw for raw in parts.values())
    whole = content + hashlib.sha256(content).digest()
    decode_evidence(whole)  # nobody writes what nobody reads
    return whole


def decode_evidence(raw: bytes) -> Evidence:
    """Read the file.

    Raises:
        WireError: it is damaged, of another kind or version, or a part breaks its rule; the message names it.
    """
    content, digest = raw[:-HASH_BYTES], raw[-HASH_BYTES:]
    if len(content) < _HEAD.size or hashlib.sha256(content).digest() != digest:
        raise WireError("evidence: the file is cut or damaged, or is no evidence")
    magic, version, piece = _HEAD.unpack_from(content)
    if (magic, version) != (EVIDENCE_MAGIC, EVIDENCE_VERSION):
        raise WireError(f"evidence: kind or version {version} is not known here; version {EVIDENCE_VERSION} is")
    reader = Reader(content[_HEAD.size :], "evidence")
    parts = {name: _take_part(reader, name) for name in _PARTS}
    reader.finish("last part")
    decode_header(parts["header"])
    if len(parts["tokens"]) % 4 or not parts["tokens"]:
        raise WireError("evidence: tokens: must be ids of four bytes, at least one")
    values = _VALUES.unpack(parts.pop("values"))
    if not all(abs(value) <= MAX_MAGNITUDE for value in values):
        raise WireError("evidence: values: a number is not finite or above 2^60")
    return Evidence(piece, **parts, values=values)


def _take_part(reader: Reader, name: str) -> bytes:
    size = reader.take_number(4, name)
    if size != _SIZES.get(name, size) or size > MAX_PART_BYTES:
        raise WireError(f"evidence: {name}: {size} bytes, must be {_SIZES.get(name, f'up to {MAX_PART_BYTES}')}")
    return reader.take(size, name)
