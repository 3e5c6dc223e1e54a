"""Payloads of results: the check before they count as held (R4), and how long they stay in memory."""

from collections.abc import Callable

from psyche.core.encoding.plan import TransformPlan, decode_plan
from psyche.errors import WireError


def _validate(plan: TransformPlan, body: bytes) -> None:
    from psyche.modeling.distro.codec import validate_payload  # NumPy: not needed before the first payload

    validate_payload(plan, body)


class PayloadCheck:
    """Checks R4 without torch: canonical order, index ranges, finite values, exact length."""

    def __init__(self, validate: Callable[[TransformPlan, bytes], None] = _validate) -> None:
        self._plan: TransformPlan | None = None
        self._validate = validate

    def set_plan(self, plan: bytes) -> None:
        self._plan = decode_plan(plan)

    def __call__(self, body: bytes) -> None:
        if self._plan is None:
            raise WireError("payload: the model's plan is not known yet")
        self._validate(self._plan, body)


class PayloadCache:
    """Payloads by blob id, each with the last round that needs it."""

    def __init__(self) -> None:
        self._bodies: dict[bytes, tuple[int, int, bytes]] = {}  # blob id -> epoch, height, body

    def __len__(self) -> int:
        return len(self._bodies)

    def keep(self, blob_id: bytes, epoch: int, height: int, body: bytes) -> None:
        """Keep a payload; if two rounds carry the same bytes, keep them as long as the later round needs them."""
        known = self._bodies.get(blob_id, (epoch, height, body))
        self._bodies[blob_id] = (*max((epoch, height), known[:2]), body)

    def find(self, blobs: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
        found = [self._bodies.get(blob) for blob in blobs]
        return None if None in found else tuple(entry[2] for entry in found if entry is not None)

    def expire(self, epoch: int, height: int) -> None:
        self._bodies = {b: entry for b, entry in self._bodies.items() if entry[:2] >= (epoch, height)}
