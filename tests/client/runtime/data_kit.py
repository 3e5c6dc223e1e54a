"""Data for tests of the client: tokens of zeros, or an error."""

from dataclasses import dataclass, field


@dataclass
class FakeData:
    """Gives tokens, or fails as told."""

    fail: Exception | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        self.asked.append((epoch, height))
        if self.fail is not None:
            raise self.fail
        return bytes(4 * (end - start + 1))
