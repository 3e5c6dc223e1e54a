"""Members that lie about what a model has learned; only where members measure it do they make a difference."""

from dataclasses import replace
from typing import Final

from psyche.evals.results import RESULTS, BlockResult
from psyche.evals.texts import TEXTS, WrittenText, choose_writer
from psyche.sim.byzantine.program import ByzantineProgram
from psyche.wire.crypto import blake3_hash
from psyche.wire.ports import Network


class Boast(ByzantineProgram):
    """Says that all answers are right."""

    async def publish(self, node: Network, raw: bytes) -> None:
        if not raw.startswith(RESULTS.tag) or not self.is_due():
            await node.publish(raw)
            return
        for lie in self.change(RESULTS.decode(raw)):
            await node.publish(lie)

    def change(self, result: BlockResult) -> list[bytes]:
        """The messages sent instead."""
        every = (1 << result.count) - 1
        return [self.sign(result, right=every, right_norm=every)]

    def sign(self, result: BlockResult, **changes: object) -> bytes:
        return RESULTS.encode(RESULTS.sign(self.host.identity, replace(result, **changes)))  # type: ignore[arg-type]

    def draw(self, result: BlockResult) -> int:
        return self.rng.getrandbits(32) & ((1 << result.count) - 1)


class Guess(Boast):
    """Draws answers instead of asking the model."""

    def change(self, result: BlockResult) -> list[bytes]:
        return [self.sign(result, right=self.draw(result), right_norm=self.draw(result))]


class SignForOthers(Boast):
    """Sends results in the name of the next member."""

    def change(self, result: BlockResult) -> list[bytes]:
        return [self.sign(result, member=(result.member + 1) % len(self.host.get_state().clients))]


class SayTwice(Boast):
    """Sends each result, and another one of the same block."""

    def change(self, result: BlockResult) -> list[bytes]:
        return [RESULTS.encode(result), self.sign(result, right=self.draw(result))]


class OtherWeights(Boast):
    """Says that it asked weights that nobody has certified."""

    def change(self, result: BlockResult) -> list[bytes]:
        return [self.sign(result, digest=blake3_hash(b"other weights"))]


class OtherBlocks(Boast):
    """Sends results of blocks that the task does not have, and bytes that are no result."""

    def change(self, result: BlockResult) -> list[bytes]:
        return [self.sign(result, block=result.block + 1_000_000), RESULTS.tag + self.rng.randbytes(183)]


class WriteForOthers(Boast):
    """Says how the weights go on, each time in another way: not its turn, another name, others' weights, too long."""

    def change(self, result: BlockResult) -> list[bytes]:
        lie = WrittenText(
            run_uid=result.run_uid, digest=result.digest, epoch=result.epoch, member=result.member, text="I win"
        )  # fmt: skip
        members = len(self.host.get_state().clients)
        writer = choose_writer(result.digest, members)
        lies = (
            replace(lie, member=(writer + 1) % members if writer == result.member else result.member),
            replace(lie, member=writer),
            replace(lie, digest=blake3_hash(b"other weights")),
            replace(lie, text="I win" * 1_000),
        )
        return [RESULTS.encode(result), *(TEXTS.encode(TEXTS.sign(self.host.identity, one)) for one in lies)]


SCORE_LIES: Final[dict[str, type[ByzantineProgram]]] = {
    "boast": Boast, "guess": Guess, "sign_for_others": SignForOthers, "say_twice": SayTwice,
    "other_weights": OtherWeights, "other_blocks": OtherBlocks, "write_for_others": WriteForOthers,
}  # fmt: skip
