"""What a member has found of a block, as one signed message; and what many of them together say of a task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from psyche.core.encoding.fields import enum, f32, pad, raw, u8, u16, u32, up_to
from psyche.core.encoding.header import NumericClass
from psyche.core.state.limits import MAX_CLIENTS
from psyche.errors import WireError
from psyche.evals.division import BLOCK_DOCUMENTS
from psyche.evals.messages import MessageKind
from psyche.evals.requests import compute_standard_error

SHOWN_PERCENT: Final = 50  # of the blocks; below, a score is not shown
# Answers of two members to the same 32 documents that may differ. Of two classes nothing is said.
_TOLERANCE: Final = {NumericClass.FP32: 1, NumericClass.BF16: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """The right answers to a block, bit by bit in its order, of the `count` documents that fit into the model.

    `score_sum` is the sum of the right choices' log-likelihoods.
    """

    run_uid: bytes
    digest: bytes
    task_hash: bytes
    epoch: int
    member: int
    block: int
    count: int
    numeric_class: NumericClass
    right: int
    right_norm: int
    score_sum: float
    signature: bytes = b""


def _check_bits(result: BlockResult) -> None:
    for name, bits in (("right", result.right), ("right_norm", result.right_norm)):
        if bits >> result.count:
            raise WireError(f"BlockResult.{name}: has a bit beyond the {result.count} documents of the block")


RESULTS: Final = MessageKind(
    BlockResult, "result of a block", b"psyche/score/1",
    [
        raw("run_uid"), raw("digest"), raw("task_hash"), u16("epoch"), up_to(MAX_CLIENTS - 1, u16("member")),
        u32("block"), up_to(BLOCK_DOCUMENTS, u8("count")), enum("numeric_class", NumericClass), u32("right"),
        u32("right_norm"), f32("score_sum"), pad(1),
    ],
    check=_check_bits,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """Which result of a block counts, if any, and the keys of those who sent others than it."""

    counted: BlockResult | None
    differing: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    right: int
    documents: int

    @property
    def value(self) -> float | None:
        return self.right / self.documents if self.documents else None

    @property
    def standard_error(self) -> float | None:
        return compute_standard_error(self.right, self.documents)


@dataclass(frozen=True, slots=True)
class Merged:
    """A task's score on weights with one digest; `disputes` has, of blocks in which results differ, these results.

    Of a block that counts they are those that were outvoted.
    """

    acc: Share
    acc_norm: Share
    blocks: int
    counted: frozenset[int]  # the blocks
    disputes: Mapping[int, tuple[BlockResult, ...]]

    @property
    def blocks_counted(self) -> int:
        return len(self.counted)

    @property
    def is_shown(self) -> bool:
        return self.blocks_counted * 100 >= SHOWN_PERCENT * self.blocks > 0

    @property
    def is_final(self) -> bool:
        return self.blocks_counted == self.blocks > 0


def judge_block(results: Mapping[bytes, BlockResult]) -> BlockVerdict:
    """Judge the results of one block, by the keys of those who sent them.

    Where all agree, that of the lowest key counts. In a dispute it is the one that most others agree with, at least
    one; where two results that differ have as many, none counts until another one comes.
    """
    found = {key: results[key] for key in sorted(results)}
    others = {key: [other for other in found if _differ(one, found[other])] for key, one in found.items()}
    disputed = tuple(key for key, against in others.items() if against)
    if not disputed:
        return BlockVerdict(next(iter(found.values()), None))
    support = {key: sum(_agree(one, other) for other in found.values()) for key, one in found.items()}
    best = max(found, key=support.__getitem__)  # of equal ones the lowest key
    if support[best] == 0 or any(support[other] == support[best] for other in others[best]):
        return BlockVerdict(None, disputed)
    return BlockVerdict(found[best], tuple(others[best]))


@dataclass(slots=True)
class Tally:
    """The results of one task on weights with one digest, as they come, by block and by the key of who sent them.

    Keys, because a number means another member in the next epoch. Who was outvoted in one block counts in no other:
    somebody else has to do those that it did alone.
    """

    blocks: int
    merged: Merged | None = None  # None without results
    _groups: dict[int, dict[bytes, BlockResult]] = field(default_factory=dict)
    _verdicts: dict[int, BlockVerdict] = field(default_factory=dict)
    _outvoted: frozenset[bytes] = frozenset()
    _counted: dict[int, BlockResult] = field(default_factory=dict)
    _disputes: dict[int, tuple[BlockResult, ...]] = field(default_factory=dict)

    def get_group(self, block: int) -> Mapping[bytes, BlockResult]:
        return self._groups.get(block, {})

    def add(self, result: BlockResult, key: bytes) -> Merged:
        """Take the first result of a block with this key.

        Raises:
            WireError: it is of another task, or of other weights.
        """
        first = next((one for group in self._groups.values() for one in group.values()), result)
        if (first.run_uid, first.digest, first.task_hash) != (result.run_uid, result.digest, result.task_hash):
            raise WireError("results of several tasks or weights are not one score")
        group = self._groups.setdefault(result.block, {})
        group[key] = result
        self._verdicts[result.block] = judge_block(group)
        judged = (one.differing for one in self._verdicts.values() if one.counted is not None)
        outvoted = frozenset(chain.from_iterable(judged))
        changed, self._outvoted = outvoted ^ self._outvoted, outvoted
        for block, group in self._groups.items():
            if block == result.block or not changed.isdisjoint(group):
                self._settle(block, group)
        self.merged = self._merge()
        return self.merged

    def _settle(self, block: int, group: Mapping[bytes, BlockResult]) -> None:
        verdict = self._verdicts[block]
        rest = {key: one for key, one in group.items() if key not in self._outvoted}
        found = (verdict if len(rest) == len(group) else judge_block(rest)).counted
        disputing = verdict.differing
        self._counted.pop(block, None)
        if found is not None:
            self._counted[block] = found
            disputing = tuple(key for key in disputing if key in self._outvoted)
        self._disputes[block] = tuple(group[key] for key in disputing)

    def _merge(self) -> Merged:
        counted = self._counted.values()
        documents = sum(one.count for one in counted)
        acc = Share(sum(one.right.bit_count() for one in counted), documents)
        acc_norm = Share(sum(one.right_norm.bit_count() for one in counted), documents)
        disputes = {block: found for block, found in self._disputes.items() if found}
        return Merged(acc, acc_norm, self.blocks, frozenset(self._counted), disputes)


def _differ(one: BlockResult, other: BlockResult) -> bool:
    """Whether two results cannot both be honest; of two numeric classes nobody can tell."""
    return one.numeric_class == other.numeric_class and not _are_close(one, other)


def _agree(one: BlockResult, other: BlockResult) -> bool:
    return one is not other and one.numeric_class == other.numeric_class and _are_close(one, other)


def _are_close(one: BlockResult, other: BlockResult) -> bool:
    pairs = ((one.right, other.right), (one.right_norm, other.right_norm))
    limit = _TOLERANCE[one.numeric_class]
    return one.count == other.count and all((first ^ second).bit_count() <= limit for first, second in pairs)
