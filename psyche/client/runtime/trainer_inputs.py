"""What the trainer is given: payloads that passed their check (R4), and samples fetched while it is busy."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from psyche.client.engine.actions import FetchData
from psyche.core.encoding.plan import TransformPlan, decode_plan
from psyche.data.provider import DataProvider
from psyche.errors import DataError, PsycheError, WireError


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


@dataclass(slots=True)
class PendingData:
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # pyright: ignore[reportCallIssue, reportArgumentType]
    tokens: bytes = b""
    error: PsycheError | None = None


class DataAhead:
    """Samples by epoch and height: requested at a round's start, taken when its training begins."""

    def __init__(self, provider: DataProvider) -> None:
        self.provider = provider
        self._pending: dict[tuple[int, int], PendingData] = {}

    def expect(self, action: FetchData) -> PendingData:
        """Register a fetch: from now on `take` waits for its result."""
        self._pending[action.epoch, action.height] = pending = PendingData()
        return pending

    async def fetch(self, action: FetchData, pending: PendingData) -> None:
        try:
            with pending.scope:
                pending.tokens = await self.provider.get(
                    action.start, action.end, epoch=action.epoch, height=action.height
                )
        except PsycheError as error:
            pending.error = error
        except OSError as error:
            pending.error = DataError(f"data: {error}")
        finally:
            pending.done.set()

    async def take(self, epoch: int, height: int, start: int, end: int) -> bytes:
        """Take the tokens of samples `start` to `end` (u32 little-endian); a prefetch can be taken once."""
        pending = self._pending.pop((epoch, height), None)
        if pending is None:
            return await self.provider.get(start, end, epoch=epoch, height=height)
        try:
            await pending.done.wait()  # bounded by the provider's own retries
        except trio.Cancelled:
            pending.scope.cancel()
            raise
        if pending.error is not None:
            raise pending.error
        return pending.tokens

    def expire(self, epoch: int, height: int) -> None:
        """Drop what no round needs any more; a source that hangs would keep its requests from the rounds that come."""
        for key in [key for key in self._pending if key < (epoch, height)]:
            self._pending.pop(key).scope.cancel()
