"""The record of a run, and what follows from it, as the pages have it. Nothing of psyche."""

import hashlib
import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from independent_trainer import hash3

WAITING, WARMUP, TRAIN, WITNESS, COOLDOWN, FINISHED = 1, 2, 3, 4, 5, 6
DRAIN, ROOT, DIGEST, CLOSED = 1, 2, 4, 32
HEALTHY, JOINED = 0, 1
ROUNDS, ROUND_BYTES, CLIENTS, SLOTS = 2_048, 18_752, 77_056, 111_872 + 64


def list_bits(raw: bytes) -> list[int]:
    bits = int.from_bytes(raw, "little")
    return [bit for bit in range(bits.bit_length()) if bits >> bit & 1]


def to_bitmap(members: Iterable[int]) -> bytes:
    return sum(1 << member for member in set(members)).to_bytes(32, "little")


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


# --- chance ---------------------------------------------------------------------------------------------


def find_place(index: int, n: int, key: bytes) -> int:
    for turn in range(90):
        (pivot,) = struct.unpack_from("<Q", sha(key, bytes([turn])))
        flip = (pivot % n + n - index) % n
        place = max(index, flip)
        bits = sha(key, bytes([turn]), struct.pack("<I", place // 256))
        if bits[place % 256 // 8] >> place % 8 & 1:
            index = flip
    return index


def put_in_order(members: list[int], key: bytes) -> list[int]:
    order = [0] * len(members)
    for index, member in enumerate(members):
        order[find_place(index, len(members), key)] = member
    return order


# --- rates ----------------------------------------------------------------------------------------------


def linear(a: float, b: float, i: int, n: int) -> float:
    return a + (b - a) * i / n


def cosine(a: float, b: float, i: int, n: int) -> float:
    return b + (a - b) * (0.5 * (1 + math.cos(math.pi * i / n)))


def compute_rate(schedule: bytes, step: int) -> float:
    """The rate of a step by the 56 bytes of a schedule."""
    (kind,) = struct.unpack_from("<I", schedule)
    base, first = struct.unpack_from("<2d", schedule, 8)
    warmup = struct.unpack_from("<I", schedule, {0: 24, 1: 32, 2: 32, 3: 40}[kind])[0]
    done = step - warmup
    if done < 0:
        return linear(first, base, step, warmup)
    if kind == 0:
        return base
    if kind < 3:
        last, _, total = struct.unpack_from("<dII", schedule, 24)
        n = total - warmup
        return last if done >= n else (linear, cosine)[kind - 1](base, last, done, n)
    after_cosine, after_linear = struct.unpack_from("<2d", schedule, 24)
    stable, by_cosine, by_linear = struct.unpack_from("<3I", schedule, 44)
    if done < stable:
        return base
    done -= stable
    if done < by_cosine:
        return cosine(base, after_cosine, done, by_cosine)
    done -= by_cosine
    return linear(after_cosine, after_linear, done, by_linear) if done < by_linear else after_linear


# --- the record -----------------------------------------------------------------------------------------


class Fields:
    """Numbers and bytes at offsets of a part of the record."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def get(self, form: str, offset: int) -> Any:
        return struct.unpack_from("<" + form, self.raw, offset)[0]

    def take(self, offset: int, size: int = 32) -> bytes:
        return self.raw[offset : offset + size]


class Round(Fields):
    """One round of the ring."""

    @property
    def height(self) -> int:
        return self.get("I", 224)

    @property
    def step(self) -> int:
        return self.get("I", 228)

    @property
    def seed(self) -> bytes:
        return self.take(0)

    @property
    def members(self) -> list[int]:
        return list_bits(self.take(32))

    @property
    def quorum(self) -> int:
        return self.get("H", 238)

    def has(self, flag: int) -> bool:
        return bool(self.raw[248] & flag)

    def find_records(self) -> list[Fields]:
        return [Fields(self.take(320 + 512 * place, 512)) for place in range(self.get("H", 240))]

    def find_witnesses(self) -> list[int]:
        key = sha(sha(self.take(192, 8)), b"witness")
        return put_in_order(list_bits(self.take(288)), key)[: self.get("H", 236)]

    def find_shares(self, percent: int) -> dict[int, tuple[int, int]]:
        """First and last sample of each trainer."""
        if self.has(DRAIN):
            return {}
        roles = put_in_order(self.members, sha(sha(self.take(192, 8)), b"committee"))
        verifiers = (len(roles) * percent + self.get("Q", 192) % 100) // 100
        trainers = sorted(roles[min(verifiers, 32, len(roles) - 1) :])
        size, rest = divmod(self.get("H", 232), len(trainers))
        shares: dict[int, tuple[int, int]] = {}
        start = self.get("Q", 200)
        for place, member in enumerate(put_in_order(trainers, sha(b"psyche/assignment/1", self.seed))):
            count = size + (place < rest)
            if count:
                shares[member] = start, start + count - 1
            start += count
        return shares


class Record(Fields):
    """The 165,192 bytes."""

    @property
    def run_uid(self) -> bytes:
        return self.take(504)

    @property
    def run_state(self) -> int:
        return self.raw[536]

    @property
    def epoch(self) -> int:
        return self.get("H", 1_648)

    @property
    def certified(self) -> bytes:
        return self.take(1_696)

    @property
    def model(self) -> Fields:
        return Fields(self.take(560, 960))

    @property
    def is_overlapping(self) -> bool:
        return bool(self.raw[1_520 + 70])

    @property
    def verification_percent(self) -> int:
        return self.raw[1_520 + 62]

    @property
    def config_hash(self) -> bytes:
        model = self.model.raw
        return hash3(
            b"psyche/config/1", self.take(1_520, 128), model[:20], bytes(136), model[156:552], bytes(3 * 136)
        )  # fmt: skip

    @property
    def settings(self) -> tuple[float, float, int, int, bool]:
        """Weight decay, momentum decay, top-k, chunk, 1-bit."""
        optimizer = Fields(self.model.take(520))
        assert optimizer.get("I", 0) == 2, "not Distro"
        decay = optimizer.get("f", 12) if optimizer.raw[5] else 0.0
        topk, chunk = optimizer.get("H", 20), optimizer.get("H", 22)
        return decay, optimizer.get("f", 16), topk, chunk, bool(optimizer.raw[6])

    def find_rate(self, step: int) -> np.float32:
        rate = compute_rate(self.model.take(464, 56), step)
        first, length = self.get("I", 1_796), self.model.get("I", 12)
        if self.raw[1_828] and length and first <= step <= first + length:
            rate = rate * (step - first) / length
        return np.float32(rate)

    @property
    def current(self) -> Round:
        return self._take_round(self.get("I", 1_792))

    def _take_round(self, place: int) -> Round:
        return Round(self.take(ROUNDS + ROUND_BYTES * place, ROUND_BYTES))

    def find_round(self, height: int) -> Round | None:
        found = self._take_round(height % 4)
        return found if height >= 0 and found.members and found.height == height else None

    def has_data(self, height: int) -> bool:
        drain = self.get("I", 1_800)
        return height >= 0 and (not drain or height < drain)

    def is_last_drain(self, height: int) -> bool:
        drain = self.get("I", 1_800)
        return bool(drain) and height >= drain + self.is_overlapping

    def find_attested(self, height: int) -> int | None:
        attested = height - self.is_overlapping
        return attested if self.has_data(attested) else None

    def find_applied(self, height: int) -> int | None:
        applied = height - 1 - self.is_overlapping
        return applied if self.has_data(applied) else None

    @property
    def clients(self) -> list[Fields]:
        """The members of the epoch: p2p key at 32, state at 64, credits at 80."""
        return [Fields(self.take(CLIENTS + 128 * place, 128)) for place in range(self.get("H", 1_804))]

    def find_member(self, key: bytes) -> int | None:
        found = [index for index, one in enumerate(self.clients) if (one.take(32), one.raw[64]) == (key, HEALTHY)]
        return found[0] if found else None

    @property
    def slots(self) -> list[Fields]:
        count = self.get("H", SLOTS - 64)
        return [Fields(self.take(SLOTS + 192 * place, 192)) for place in range(count)]

    def has_joined(self, key: bytes) -> bool:
        waiting = [one for one in self.slots if one.take(0) == key and one.raw[116] == JOINED]
        return any(one.get("H", 112) >= self.get("H", SLOTS - 62) for one in waiting)


# --- results roots and filters --------------------------------------------------------------------------


def compute_root(epoch: int, height: int, held: bytes, listed: dict[int, bytes]) -> bytes:
    """The results root of the commitments in `listed`."""
    if not any(held):
        return bytes(32)
    level = [sha(b"\x00", struct.pack("<H", member), listed[member]) for member in sorted(listed)]
    while len(level) > 1:
        level += level[-1:] * (len(level) % 2)
        level = [sha(b"\x01", *level[place : place + 2]) for place in range(0, len(level), 2)]
    merkle = level[0] if level else bytes(32)
    return sha(b"psyche/results/1", struct.pack("<HI", epoch, height), held, merkle)


def list_positions(seed: bytes, witness: int, commitment: bytes) -> list[int]:
    words = struct.unpack_from("<7I", sha(b"psyche/bloom/1", seed, struct.pack("<H", witness), commitment))
    return [word * 2_560 >> 32 for word in words]


def compute_filter(seed: bytes, witness: int, commitments: Iterable[bytes]) -> bytes:
    places = {place for commitment in commitments for place in list_positions(seed, witness, commitment)}
    return sum(1 << place for place in places).to_bytes(320, "little")


def is_inside(bloom: bytes, seed: bytes, witness: int, commitment: bytes) -> bool:
    return all(bloom[place // 8] >> place % 8 & 1 for place in list_positions(seed, witness, commitment))
