"""What members have found of tasks on weights of one digest, and which block a member does next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from psyche.evals.division import BLOCK_DOCUMENTS, find_home, get_part, go_round, is_repeated
from psyche.evals.results import BlockResult, Merged, Tally
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
    """A member that does blocks, by its number among the `keys` of an epoch; nobody else knows its `secret`."""

    epoch: int
    member: int
    keys: Sequence[bytes]
    secret: bytes

    @property
    def key(self) -> bytes:
        return self.keys[self.member]

    @property
    def members(self) -> int:
        return len(self.keys)


@dataclass(slots=True)
class Ledger:
    """The results of every task; members are told apart by their keys."""

    digest: bytes
    plans: Sequence[Plan]
    began_at: float
    news_at: float = 0.0  # when the last result came
    _tallies: dict[bytes, Tally] = field(init=False)
    _news: dict[bytes, float] = field(default_factory=dict)  # by key, when something came of a member, or of its parts
    _heard: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._tallies = {plan.task_hash: Tally(plan.blocks) for plan in self.plans}

    def find_plan(self, task_hash: bytes) -> Plan | None:
        return next((plan for plan in self.plans if plan.task_hash == task_hash), None)

    def find_merged(self, plan: Plan) -> Merged | None:
        return self._tallies[plan.task_hash].merged

    def find_problem(self, result: BlockResult, key: bytes) -> str:
        """Why a result has no place here, or nothing."""
        plan = self.find_plan(result.task_hash)
        if plan is None:
            return "of a task that is not asked here"
        if result.block >= plan.blocks:
            return f"of block {result.block} of {plan.blocks}"
        if result.count > min(BLOCK_DOCUMENTS, plan.documents - result.block * BLOCK_DOCUMENTS):
            return f"of {result.count} documents, more than block {result.block} has"
        found = self._get_found(plan, result.block)
        if key in found:
            return f"a second one of block {result.block}"
        return f"one more of block {result.block}" if len(found) >= MAX_RESULTS else ""

    def add(self, result: BlockResult, keys: Sequence[bytes], now: float) -> Merged:
        """Take a result without a problem, by the keys of its epoch; return what is known of its task now."""
        tally, key = self._tallies[result.task_hash], keys[result.member]
        if not tally.get_group(result.block):
            self._news[keys[find_home(result.block, len(keys), tally.blocks)]] = now
        self.news_at = self._news[key] = now
        self._heard.add(key)
        return tally.add(result, key)

    def choose(self, worker: Worker, now: float, patience_s: float) -> tuple[Plan, int] | None:
        """The next block of a member: of its own parts; then a repeat or a dispute; then of a silent member's parts.

        These are done from their far ends, so that who takes over meets a slow owner in the middle. It is the nearest
        member before the owner, after `patience_s` without news; the next one after twice that time.
        """
        found = chain(
            *(self._list_own(plan, worker) for plan in self.plans),
            *(self._list_doubtful(plan, worker) for plan in self.plans),
            *(self._list_silent(plan, worker, now, patience_s) for plan in self.plans),
        )
        return next(found, None)

    def _list_own(self, plan: Plan, worker: Worker) -> Iterator[tuple[Plan, int]]:
        part = get_part(worker.member, worker.members, plan.blocks)
        return ((plan, block) for block in part if not self._get_found(plan, block))

    def _list_doubtful(self, plan: Plan, worker: Worker) -> Iterator[tuple[Plan, int]]:
        tally = self._tallies[plan.task_hash]
        counted = tally.merged.counted if tally.merged else frozenset[int]()
        for block in go_round(worker.member, worker.members, plan.blocks):
            found = tally.get_group(block)
            if worker.key in found or not 0 < len(found) < MAX_RESULTS:
                continue
            distance = (worker.member - block) % worker.members
            is_wanted = block not in counted and distance < SETTLERS * len(found)
            if is_wanted or is_repeated(worker.secret, self.digest, plan.task_hash, block):
                yield plan, block

    def _list_silent(self, plan: Plan, worker: Worker, now: float, patience_s: float) -> Iterator[tuple[Plan, int]]:
        nearer = 0
        for steps in range(1, worker.members):
            owner = (worker.member + steps) % worker.members
            key = worker.keys[owner]
            if now >= self._news.get(key, self.began_at) + patience_s * (1 + nearer):
                part = get_part(owner, worker.members, plan.blocks)
                yield from ((plan, block) for block in reversed(part) if not self._get_found(plan, block))
            nearer += key in self._heard

    def _get_found(self, plan: Plan, block: int) -> Mapping[bytes, BlockResult]:
        return self._tallies[plan.task_hash].get_group(block)
