"""Payloads of simulated trainers: real ones, of a model of 256 weights, drawn from a hash of what they follow from."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from psyche.core.encoding.plan import TransformPlan, compute_run_plan
from psyche.core.state.state import Optimizer
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload, validate_payload
from psyche.wire.crypto import blake3_hash

SHAPE: Final = (16, 16)
TENSOR: Final = "weight"
WEIGHTS: Final = SHAPE[0] * SHAPE[1]
KEPT_GRADIENTS: Final = 4_096
T = TypeVar("T")


class Memo:
    """Caches pure functions of bytes that many machines compute."""

    def __init__(self, limit: int = 4_096) -> None:
        self._limit = limit
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any, compute: Callable[[], T]) -> T:
        if key in self._known:
            return self._known[key]
        found = self._known[key] = compute()
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return found


class PayloadCodec:
    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, shapes = optimizer, {TENSOR: SHAPE}
        self.plan: TransformPlan = compute_run_plan(shapes, optimizer)
        self._votes = Memo()
        self._checked = Memo()
        self._gradients: OrderedDict[bytes, bytes] = OrderedDict()  # hash of a batch -> the honest payload of it

    def make(self, seed: bytes) -> bytes:
        """The payload of the batch whose gradient `seed` represents."""
        sets: list[ChunkSets] = []
        for number, group in enumerate(self.plan.groups):
            shape = (group.chunks, group.area)
            drawn = blake3(seed + bytes([number])).digest(length=group.chunks * group.area * 4)
            keys = np.frombuffer(drawn, dtype="<u4").reshape(shape)
            order = np.sort(np.argsort(keys, axis=1, kind="stable")[:, : group.k], axis=1)
            signs = (np.take_along_axis(keys, order, axis=1) & 1).astype(np.int8) * np.int8(2) - np.int8(1)
            exponents = np.zeros(group.chunks, dtype=np.int8) if group.scaled_bits else None
            sets.append(ChunkSets(order.astype(np.int32), signs, exponents))
        return encode_payload(self.plan, sets)

    def flip(self, body: bytes, chosen: Callable[[], bool]) -> bytes:
        """The payload with the signs turned that are chosen."""
        sets = decode_payload(self.plan, body)
        for one in sets:
            for place in np.ndindex(one.values.shape):
                one.values[place] *= -1 if chosen() else 1
        return encode_payload(self.plan, sets)

    def note_gradient(self, tokens: bytes, honest: bytes) -> None:
        self._gradients[blake3_hash(tokens)] = honest
        if len(self._gradients) > KEPT_GRADIENTS:
            self._gradients.popitem(last=False)

    def compute_sign_share(self, tokens: bytes, body: bytes) -> float:
        """The share of the signs sent that an honest trainer of this batch sends too; negative: not known."""
        honest = self._gradients.get(blake3_hash(tokens))
        if honest is None:
            return -1.0
        sent, own = self.get_votes(body), self.get_votes(honest)
        return float((sent == own)[sent != 0].mean())

    def check(self, plan: TransformPlan, body: bytes) -> None:
        """Refuse a malformed payload (R4); raises WireError."""
        self._checked.get(body, lambda: validate_payload(plan, body))

    def get_votes(self, body: bytes) -> NDArray[np.float32]:
        """The payload's sign for each weight: float32 [256], 0 where it has none."""
        return self._votes.get(body, lambda: self._count_votes(body))

    def _count_votes(self, body: bytes) -> NDArray[np.float32]:
        votes = np.zeros(WEIGHTS, dtype=np.float32)
        offset = 0
        for group, sets in zip(self.plan.groups, decode_payload(self.plan, body), strict=True):
            for chunk in range(group.chunks):
                here = sets.indices[chunk]
                used = here < group.area
                votes[offset + here[used]] += sets.values[chunk][used].astype(np.float32)
                offset += group.area
        return votes
