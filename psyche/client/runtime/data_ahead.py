"""Prefetching of a round's samples while the trainer is busy."""

from dataclasses import dataclass, field

import trio

from psyche.client.engine.actions import FetchData
from psyche.data.provider import DataProvider
from psyche.errors import DataError, PsycheError


@dataclass(slots=True)
class PendingData:
    done: trio.Event = field(default_factory=trio.Event)
    tokens: bytes = b""
    error: PsycheError | None = None


class DataAhead:
    """Samples by epoch and height: requested at a round's start, taken when its training begins."""

    def __init__(self, provider: DataProvider) -> None:
        self._provider = provider
        self._pending: dict[tuple[int, int], PendingData] = {}

    def expect(self, action: FetchData) -> PendingData:
        """Register a fetch: from now on `take` waits for its result."""
        self._pending[action.epoch, action.height] = pending = PendingData()
        return pending

    async def fetch(self, action: FetchData, pending: PendingData) -> None:
        try:
            pending.tokens = await self._provider.get(
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
            return await self._provider.get(start, end, epoch=epoch, height=height)
        await pending.done.wait()  # bounded by the provider's own retries
        if pending.error is not None:
            raise pending.error
        return pending.tokens

    def expire(self, epoch: int, height: int) -> None:
        self._pending = {key: pending for key, pending in self._pending.items() if key >= (epoch, height)}
