"""Records of addresses, headers, gossip and reports as the pages have them. Nothing of psyche."""

import struct
import time
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from independent_trainer import hash3

HEADER_BYTES = 448
BODIES = {"ready": 33, "result": 32, "finished": 96, "leave": 0}


class Failed(Exception):
    """The other side does not do what the page says."""


def demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise Failed(what)


def is_signed(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def get_record_bytes(key: bytes, addresses: list[str], expires_unix: int) -> bytes:
    body = b"".join(bytes([len(one)]) + one.encode("ascii") for one in addresses)
    return b"psyche/address/1" + key + struct.pack("<QB", expires_unix, len(addresses)) + body


def build_record(seed: bytes, addresses: list[str]) -> list[Any]:
    secret = Ed25519PrivateKey.from_private_bytes(seed)
    key, expires_unix = secret.public_key().public_bytes_raw(), int(time.time()) + 24 * 3_600
    return [key, addresses, expires_unix, secret.sign(get_record_bytes(key, addresses, expires_unix))]


def check_record(record: list[Any]) -> bytes:
    key, addresses, expires_unix, signature = record
    demand(is_signed(key, get_record_bytes(key, addresses, expires_unix), signature), "a record is not signed")
    return key


@dataclass
class Header:
    """What a result says of itself."""

    run_uid: bytes
    epoch: int
    member: int
    height: int
    step: int
    lr_bits: int
    share: tuple[int, int]
    plan_hash: bytes
    config_hash: bytes
    base_digest: bytes
    data_hash: bytes
    prev_commitment: bytes
    body_hash: bytes
    body_len: int
    train_count: int
    trainer_key: bytes

    def encode(self) -> bytes:
        head = struct.pack(
            "<4sHH32sHHIIIQQ", b"PSYR", 1, 0, self.run_uid, self.epoch, self.member, self.height, self.step,
            self.lr_bits, *self.share,
        )  # fmt: skip
        hashes = self.plan_hash + self.config_hash + self.base_digest + self.data_hash + self.prev_commitment
        tail = struct.pack("<QIB3x", self.body_len, self.train_count, 0) + self.trainer_key + bytes(8)
        raw = head + hashes + bytes(4 * 32) + self.body_hash + tail
        assert len(raw) == HEADER_BYTES
        return raw

    @staticmethod
    def decode(raw: bytes) -> "Header":
        uid, epoch, member, height, step, bits, first, last = struct.unpack_from("<32sHHIIIQQ", raw, 8)
        hashes = [raw[place : place + 32] for place in range(72, 232, 32)]
        length, count = struct.unpack_from("<QI", raw, 392)
        header = Header(
            uid, epoch, member, height, step, bits, (first, last), *hashes, raw[360:392], length, count, raw[408:440]
        )
        assert header.encode() == raw, "a header with other bytes than its fields"
        return header


def compute_commitment(header: bytes) -> bytes:
    return hash3(b"psyche/result/1", header)


@dataclass
class Said:
    """A signed message of a member."""

    kind: str
    epoch: int
    height: int
    member: int
    body: bytes
    header: bytes
    raw: bytes

    def is_signed_by(self, key: bytes) -> bool:
        end = len(self.raw) - 64 - len(self.header)
        return is_signed(key, self.raw[:end], self.raw[end : end + 64])


def sign(
    seed: bytes, kind: str, run_uid: bytes, round_: tuple[int, int], member: int, body: bytes, header: bytes = b""
) -> Said:  # fmt: skip
    signed = f"psyche/{kind}/1".encode() + run_uid + struct.pack("<HIH", *round_, member) + body
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(signed)
    return Said(kind, *round_, member, body, header, signed + signature + header)


def read(raw: bytes, run_uid: bytes) -> Said | None:
    """A message of this run; None if it has another form."""
    kind = next((one for one in BODIES if raw.startswith(f"psyche/{one}/1".encode())), None)
    if kind is None:
        return None
    at = len(f"psyche/{kind}/1")
    size, header = BODIES[kind], HEADER_BYTES if kind == "result" else 0
    if kind == "finished" and len(raw) == at + 40 + 96 + 33 + 64:
        size += BODIES["ready"]  # a Ready rides in it
    if len(raw) != at + 40 + size + 64 + header or raw[at : at + 32] != run_uid:
        return None
    epoch, height, member = struct.unpack_from("<HIH", raw, at + 32)
    said = Said(kind, epoch, height, member, raw[at + 40 : at + 40 + size], raw[len(raw) - header :], raw)
    if header and compute_commitment(said.header) != said.body:
        return None
    return said


def encode_report(
    round_: tuple[int, int], member: int, flags: int, held: bytes, heard: bytes, bloom: bytes, root: bytes,
    digest: bytes, at_s: int = 0, metadata: bytes = b"",
) -> bytes:  # fmt: skip
    """The bytes of a witness message."""
    head = struct.pack("<HIHBI", *round_, member, flags, at_s)
    return head + held + heard + bytes(32) + bloom + root + digest + struct.pack("<I", len(metadata)) + metadata
