"""Questions whose answers a simulated trainer draws: equal for all who ask weights of one digest."""

from collections.abc import Sequence
from typing import Final

import trio

from psyche.client.runtime.evals.exam import Asked, Reader
from psyche.evals.division import cut_blocks
from psyche.evals.documents import Document
from psyche.evals.ledger import Plan
from psyche.evals.requests import Request
from psyche.evals.tasks import Metric
from psyche.wire.crypto import blake3_hash

SIM_POSITIONS: Final = 64
CHOICES: Final = ("a", "b", "c", "d")


class SimExam:
    """One task of so many documents."""

    def __init__(self, documents: int) -> None:
        self.plan = Plan(
            name="simulated", task_hash=blake3_hash(b"simulated task"), documents=documents, metric=Metric.ACC
        )

    async def load(self) -> Sequence[Plan]:
        await trio.lowlevel.checkpoint()
        return (self.plan,)

    has_prompt = True

    async def open_reader(self, digest: bytes) -> Reader:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        return Reader(lambda text: list(text.encode()), lambda ids: bytes(ids).decode(), None, 0, SIM_POSITIONS)

    async def encode(self, plan: Plan, digest: bytes, block: int) -> Sequence[Asked]:
        await trio.lowlevel.checkpoint()
        places = cut_blocks(digest, plan.task_hash, plan.documents)[block]
        choices = [[number] for number in range(len(CHOICES))]
        return [
            Asked(Document("", CHOICES, place % len(CHOICES)), Request([place % 256, place // 256], choices))
            for place in places
        ]
