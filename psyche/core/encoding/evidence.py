"""The file by which anybody can judge an accusation again, without the run (`docs/protocol-reference.md`, V13).

A SHA-256 hash of everything before it ends the file, so that damage is told apart from a lie.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from psyche.core.committee.verdicts import MAX_TOLERANCE
from psyche.core.encoding.header import ResultKind, decode_header
from psyche.core.encoding.reader import Reader
from psyche.core.encoding.work import MAX_MAGNITUDE, SKETCH_VALUES, Values
from psyche.core.state.enums import AuditReason
from psyche.core.state.limits import HASH_BYTES, HEADER_BYTES, SIGNATURE_BYTES, STATE_BYTES, STORED_ROUNDS
from psyche.errors import WireError

EVIDENCE_MAGIC: Final = b"PSYCHEEV"
EVIDENCE_VERSION: Final = 2
MAX_PART_BYTES: Final = 1 << 30
_HEAD: Final = struct.Struct("<8sHHHdd")
_VALUES: Final = struct.Struct(f"<{SKETCH_VALUES}f")
_PARTS: Final = ("record", "results", "table", "values", "last_result", "tokens", "payload", "opening")
_SIZES: Final = {"record": STATE_BYTES, "values": _VALUES.size}  # where there is one
_OF_PIECE: Final = frozenset(("table", "values", "tokens"))
_OF_ROUND: Final = frozenset(("tokens", "payload"))
NEEDED: Final = {
    AuditReason.UNCLEAR: _OF_PIECE, AuditReason.GRADIENT: _OF_PIECE, AuditReason.REPEATED: _OF_PIECE,
    AuditReason.SIGNS: _OF_ROUND, AuditReason.SELECTION: _OF_ROUND | {"opening"},
    AuditReason.LINK: _OF_ROUND | {"opening"}, AuditReason.MOMENTUM: frozenset[str](),
    AuditReason.WITHHELD: frozenset[str](), AuditReason.PATHS: frozenset[str](),
}  # fmt: skip  # the parts that an accusation is judged by; those of the others are empty
_CHOSEN: Final = _OF_PIECE | _OF_ROUND | {"opening"}


@dataclass(frozen=True, slots=True)
class SignedResult:
    """A header of a result, its member's signature, and the body if that is a report of audits."""

    header: bytes
    signature: bytes
    report: bytes = b""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an accuser or juror had of the accused member's work.

    `results` begins with the accused one. If that is a report, the result that its row `piece` is about follows, and so
    on to trained work. `record` is the account's bytes as the round after the accused one began. `last_result` is the
    header that `prev_commitment` of the trained work names and, if it is of the round before, its payload; or another
    one of the round before with its signature, if nobody knows what it names.
    """

    reason: AuditReason
    piece: int
    tolerance: float  # of the arithmetic's class in the epoch (V10)
    calibration: float  # how far the accused member's own arithmetic is off in it; 0: not (V6)
    record: bytes
    results: tuple[SignedResult, ...]
    last_result: bytes = b""
    table: bytes = b""  # of the accused result
    values: Values = ()  # of the piece, as the accuser has computed them
    tokens: bytes = b""  # of the whole batch, as `data_hash` covers them
    payload: bytes = b""
    opening: bytes = b""  # of both momenta (V11)


def encode_evidence(evidence: Evidence) -> bytes:
    """Encode the file.

    Raises:
        WireError: a part breaks its rule; the message names it.
    """
    parts = {name: getattr(evidence, name) for name in _PARTS}
    parts["results"] = b"".join(one.header + one.signature + one.report for one in evidence.results)
    numbers = (evidence.reason, evidence.piece, evidence.tolerance, evidence.calibration)
    try:
        head = _HEAD.pack(EVIDENCE_MAGIC, EVIDENCE_VERSION, *numbers)
        parts["values"] = _VALUES.pack(*evidence.values) if evidence.values else b""
    except (struct.error, OverflowError) as error:
        raise WireError(f"evidence: reason, piece or values: {error}") from error
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
    magic, version, number, piece, tolerance, calibration = _HEAD.unpack_from(content)
    if (magic, version) != (EVIDENCE_MAGIC, EVIDENCE_VERSION):
        raise WireError(f"evidence: kind or version {version} is not known here; version {EVIDENCE_VERSION} is")
    reason = next((one for one in NEEDED if one == number), None)
    if reason is None:
        raise WireError(f"evidence: reason: {number} accuses nobody")
    if not 0 < tolerance <= MAX_TOLERANCE or not 0 <= calibration <= MAX_MAGNITUDE:
        raise WireError(f"evidence: tolerance or calibration: must be above 0 to {MAX_TOLERANCE}, and 0 to 2^60")
    reader = Reader(content[_HEAD.size :], "evidence")
    parts = {name: _take_part(reader, name) for name in _PARTS}
    reader.finish("last part")
    for name in _CHOSEN:
        if bool(parts[name]) != (name in NEEDED[reason]):
            raise WireError(f"evidence: {name}: is missing, or not asked for by the reason {reason.name.lower()}")
    if len(parts["tokens"]) % 4:
        raise WireError("evidence: tokens: must be ids of four bytes")
    values = next(_VALUES.iter_unpack(parts.pop("values")), ())
    if not all(abs(value) <= MAX_MAGNITUDE for value in values):
        raise WireError("evidence: values: a number is not finite or above 2^60")
    results = _read_results(parts.pop("results"))
    return Evidence(reason, piece, tolerance, calibration, results=results, values=values, **parts)


def _take_part(reader: Reader, name: str) -> bytes:
    size = reader.take_number(4, name)
    wanted = _SIZES.get(name, size)
    if size not in (wanted, 0 if name in _CHOSEN else wanted) or size > MAX_PART_BYTES:
        raise WireError(f"evidence: {name}: {size} bytes, must be {_SIZES.get(name, f'up to {MAX_PART_BYTES}')}")
    return reader.take(size, name)


def _read_results(raw: bytes) -> tuple[SignedResult, ...]:
    """Reports of audits, as many as there are, and the trained result behind them."""
    reader, found = Reader(raw, "evidence"), list[SignedResult]()
    while not found or found[-1].report:
        if len(found) == STORED_ROUNDS:
            raise WireError(f"evidence: results: more than {STORED_ROUNDS}, of which the record has no rounds")
        header, signature = reader.take(HEADER_BYTES, "results"), reader.take(SIGNATURE_BYTES, "results")
        read = decode_header(header)
        is_report = read.result_kind is ResultKind.AUDIT
        found.append(SignedResult(header, signature, reader.take(read.body_len, "results") if is_report else b""))
        if is_report and not read.body_len:
            raise WireError("evidence: results: a report without rows")
    reader.finish("results")
    return tuple(found)
