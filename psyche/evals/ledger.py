"""What members have found of tasks on weights of one digest, and which block a member does next."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from psyche.evals.division import BLOCK_DOCUMENTS, find_home, is_repeated, walk
from psyche.evals.results import BlockResult, Merged, merge
from psyche.evals.tasks import Metric

MAX_RESULTS: Final = 16  # of one block: more say nothing new
SETTLERS: Final = 4  # members that do a block which nobody agrees on, for each result that there is of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A task as members divide it: all who ask the same compute the same."""

    name: str
    task_hash: bytes
    documents: int
    metric: Metric  # the main one
    shots: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.documents // BLOCK_DOCUMENTS)


@dataclass(frozen=True, slots=True)
class Worker:
    """A member that does blocks; nobody else knows its `secret`."""

    member: int
    members: int
    key: bytes
    secret: bytes


@dataclass(slots=True)
class Ledger:
    """The results of every task; members are told apart by their keys."""

    digest: bytes
    plans: Sequence[Plan]
    began_at: float
    news_at: float = 0.0  # when the last result came
    _found: dict[tuple[bytes, int], dict[bytes, BlockResult]] = field(default_factory=dict)
    _merged: dict[bytes, Merged] = field(default_factory=dict)
    _news: dict[tuple[bytes, int], float] = field(default_factory=dict)  # of each member's part of a task
    _heard: set[int] = field(default_factory=set)

    def find_plan(self, task_hash: bytes) -> Plan | None:
        return next((plan for plan in self.plans if plan.task_hash == task_hash), None)

    def find_merged(self, plan: Plan) -> Merged | None:
        return self._merged.get(plan.task_hash)

    def find_problem(self, result: BlockResult, key: bytes) -> str:
        """Why a result has no place here, or nothing."""
        plan = self.find_plan(result.task_hash)
        if plan is None:
            return "of a task that is not asked here"
        if result.block >= plan.blocks:
            return f"of block {result.block} of {plan.blocks}"
        if result.count > min(BLOCK_DOCUMENTS, plan.documents - result.block * BLOCK_DOCUMENTS):
            return f"of {result.count} documents, more than block {result.block} has"
        found = self._found.get((result.task_hash, result.block), {})
        if key in found:
            return f"a second one of block {result.block}"
        return f"one more of block {result.block}" if len(found) >= MAX_RESULTS else ""

    def add(self, result: BlockResult, key: bytes, members: int, now: float) -> Merged:
        """Take a result without a problem; return what is known of its task now."""
        plan = self.find_plan(result.task_hash)
        assert plan is not None, "`find_problem` has looked"
        found = self._found.setdefault((result.task_hash, result.block), {})
        if not found:
            self._news[result.task_hash, find_home(result.block, members, plan.blocks)] = now
        found[key], self.news_at = result, now
        self._heard.add(result.member)
        ours = [one for (task, _), known in self._found.items() if task == result.task_hash for one in known.values()]
        self._merged[result.task_hash] = merged = merge(ours, plan.blocks)
        return merged

    def choose(self, worker: Worker, now: float, patience_s: float) -> tuple[Plan, int] | None:
        """The next block of a member: of its own part; then repeats, disputes, and parts of which nothing comes.

        A part is taken over after `patience_s` without news by the nearest member before it, so that not all take the
        same block; by the next one after twice that time.
        """
        for plan in self.plans:
            blocks = walk(
                worker.member, worker.members, plan.blocks,
                lambda block, plan=plan: self._is_left_out(plan, block, worker, now, patience_s),
            )  # fmt: skip
            if (block := next(blocks, None)) is not None:
                return plan, block
        return None

    def _is_left_out(self, plan: Plan, block: int, worker: Worker, now: float, patience_s: float) -> bool:
        found = self._found.get((plan.task_hash, block), {})
        if found:
            is_open = block not in self._merged[plan.task_hash].counted
            distance = (worker.member - block) % worker.members
            is_wanted = is_open and distance < SETTLERS * len(found)
            return worker.key in found or not (
                is_wanted or is_repeated(worker.secret, self.digest, plan.task_hash, block)
            )
        home = find_home(block, worker.members, plan.blocks)
        if home == worker.member:
            return False
        own = (home - worker.member) % worker.members
        nearer = sum(0 < (home - one) % worker.members < own for one in self._heard)
        since = self._news.get((plan.task_hash, home), self.began_at)
        return now < since + patience_s * (1 + nearer)
