"""Evals in idle time: which block comes next, the trainer that scores it, and what all members send."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import trio

from psyche.client.engine.context import ACTIVE_STATES
from psyche.client.runtime.evals.exam import Asked, Exam
from psyche.client.runtime.evals.writing import make_text, write
from psyche.core.encoding.header import NumericClass
from psyche.core.state.state import ZERO32, Coordinator, Mark
from psyche.errors import NetworkError, PsycheError, TrainerError, WireError
from psyche.evals.division import BLOCK_DOCUMENTS
from psyche.evals.ledger import Ledger, Plan, Worker
from psyche.evals.messages import MessageKind
from psyche.evals.requests import Score, choose
from psyche.evals.results import RESULTS, BlockResult, Merged
from psyche.evals.tasks import Metric
from psyche.evals.texts import TEXTS, WrittenText, choose_prompt, choose_writer
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.network.streams import Signal
from psyche.telemetry import types
from psyche.wire.crypto import Identity, blake3_hash
from psyche.wire.ports import Network, Trainer
from psyche.wire.trainer import OTHER_WEIGHTS, ScoreReply, ScoreRequest, ScoreRow

KEPT: Final = 2  # digests and epochs of which results are taken
EARLY: Final = 256  # messages kept until their weights are on record here too
LOOK_EVERY_S: Final = 1.0  # whether there is something to do
CALL_S: Final = 5.0  # of one call to the trainer; other requests end it at once
BLOCK_S: Final = 0.1  # at least: of 20 messages that a member may send in a second, training needs some
PATIENCE_S: Final = 3.0  # at least; for a part of a task of which nothing comes
SECRET: Final = b"psyche/eval-secret/1"  # signed, it is a number that nobody else knows
PATIENCE_BLOCKS: Final = 4  # of this member's own, in time


class EvalContext(Protocol):
    @property
    def state(self) -> Coordinator: ...

    @property
    def member(self) -> int | None: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def numeric_class(self) -> int: ...


class TrainerTurns(Protocol):
    """The requests that go before."""

    async def wait_idle(self) -> None: ...

    async def recover(self, error: TrainerFailure) -> None: ...


class Evaluating:
    """A member's part of the evals; without an exam it only keeps their messages from the engine."""

    def __init__(
        self, exam: Exam | None, engine: EvalContext, trainer: Trainer, turns: TrainerTurns, network: Network,
        log: Callable[[types.Event], None],
    ) -> None:  # fmt: skip
        self._exam, self._x, self._trainer, self._turns = exam, engine, trainer, turns
        self._network, self._log = network, log
        self._secret = blake3_hash(engine.identity.sign(SECRET))
        self._worker: Worker | None = None
        self._gone = (b"", 0)  # weights that are not asked any more in an epoch
        self._plans: Sequence[Plan] = ()
        self._is_on = False
        self._marks: dict[bytes, Mark] = {}  # the newest certified weights, the older ones first
        self._ledgers: dict[bytes, Ledger] = {}
        self._keys: dict[int, tuple[bytes, ...]] = {}  # of members, by epoch
        self._early: deque[bytes] = deque(maxlen=EARLY)
        self._told: dict[tuple[bytes | int, ...], object] = {}  # by digest and what else it is about
        self._news = Signal()
        self._block_s = 0.0  # how long a block of this member takes

    # --- messages of others -----------------------------------------------------------------------

    def take(self, raws: Iterable[bytes]) -> list[bytes]:
        """Take in results, and return the messages that are something else."""
        others: list[bytes] = []
        for raw in raws:
            if not raw.startswith((RESULTS.tag, TEXTS.tag)):
                others.append(raw)
            elif self._is_on:
                self._take_message(raw)
        return others

    def follow(self) -> None:
        """The record has changed."""
        state, mark = self._x.state, self._x.state.certified
        self._tell_final()
        epoch, keys = state.progress.epoch, tuple(one.p2p for one in state.clients)
        has_others = state.run_state in ACTIVE_STATES and self._keys.get(epoch) != keys
        if has_others:
            self._keys[epoch] = keys
            self._keys = {epoch: self._keys[epoch] for epoch in sorted(self._keys)[-KEPT:]}
        if not self._is_on:
            return
        is_new = mark.digest != ZERO32 and mark.digest not in self._marks
        if is_new:
            self._marks = dict([*self._marks.items(), (mark.digest, mark)][-KEPT:])
            fresh = Ledger(mark.digest, self._plans, trio.current_time())
            self._ledgers = {digest: self._ledgers.get(digest, fresh) for digest in self._marks}
            self._told = {key: told for key, told in self._told.items() if key[0] in self._marks}
            self._news.notify()
        if is_new or has_others:
            early, self._early = self._early, deque(maxlen=EARLY)
            for raw in early:
                self._take_message(raw, is_early=not is_new)

    def _take_message(self, raw: bytes, *, is_early: bool = True) -> None:
        kind: MessageKind[Any] = TEXTS if raw.startswith(TEXTS.tag) else RESULTS
        try:
            found: BlockResult | WrittenText = kind.decode(raw)
        except WireError as error:
            self._refuse(str(error))
            return
        if found.run_uid != self._x.state.run_uid:
            return
        if is_early and (found.digest not in self._ledgers or found.epoch > self._x.state.progress.epoch):
            self._early.append(raw)  # the record may be here later than the result
            return
        keys, ledger = self._keys.get(found.epoch, ()), self._ledgers.get(found.digest)
        what = "text of weights" if isinstance(found, WrittenText) else "result of a block"
        if found.member >= len(keys) or not kind.is_signed_by(found, keys[found.member]):
            self._refuse(f"{what}: member {found.member} of epoch {found.epoch} did not sign this")
        elif ledger is None:
            self._refuse(f"{what}: of weights that are none of the last certified ones", found)
        elif problem := self._find_problem(ledger, found, keys):
            self._refuse(f"{what}: {problem}", found)
        elif isinstance(found, WrittenText):
            self._tell_text(found)
        else:
            self._add(ledger, found, keys)

    def _find_problem(self, ledger: Ledger, found: BlockResult | WrittenText, keys: Sequence[bytes]) -> str:
        if isinstance(found, BlockResult):
            return ledger.find_problem(found, keys[found.member])
        if found.member != (writer := choose_writer(found.digest, len(keys))):
            return f"member {writer} writes this one"
        return "a second one of these weights" if (found.digest, found.epoch) in self._told else ""

    def _refuse(self, reason: str, found: BlockResult | WrittenText | None = None) -> None:
        if found is not None and found.epoch != self._x.state.progress.epoch:  # its number is another member's now
            reason, found = f"{reason}; from member {found.member} of epoch {found.epoch}", None
        self._log(
            types.Refused(what=types.Refusable.SCORE, reason=reason, member=None if found is None else found.member)
        )

    def _tell_text(self, found: WrittenText) -> None:
        self._told[found.digest, found.epoch] = found  # each epoch has a writer of its own
        mark = self._marks[found.digest]
        self._log(
            types.EvalText(
                prompt=choose_prompt(mark.digest), text=found.text, member=found.member, epoch=found.epoch,
                step=mark.step, digest=mark.digest,
            )
        )  # fmt: skip

    def _add(self, ledger: Ledger, result: BlockResult, keys: Sequence[bytes]) -> None:
        merged = ledger.add(result, keys, trio.current_time())
        plan = ledger.find_plan(result.task_hash)
        assert plan is not None, "the ledger has it"
        if merged.is_shown:
            self._tell_score(plan, self._marks[ledger.digest], merged, is_final=False)
        self._tell_disputes(plan, self._marks[ledger.digest], merged)
        self._news.notify()

    def _tell_final(self) -> None:
        """Say what all blocks come to, once no more repeats of them come, which may name a liar."""
        now = trio.current_time()
        for ledger in self._ledgers.values():
            for plan in self._plans if now >= ledger.news_at + self._patience_s else ():
                if (merged := ledger.find_merged(plan)) is not None and merged.is_final:
                    self._tell_score(plan, self._marks[ledger.digest], merged, is_final=True)

    def _tell_score(self, plan: Plan, mark: Mark, merged: Merged, *, is_final: bool) -> None:
        share = merged.acc if plan.metric is Metric.ACC else merged.acc_norm
        key, news = (mark.digest, plan.task_hash), share if is_final else None
        if share.value is not None and (key not in self._told or (is_final and self._told[key] != news)):
            self._told[key] = news
            self._log(
                types.EvalScore(
                    task=plan.name, metric=plan.metric.value, value=share.value, standard_error=share.standard_error,
                    documents=share.documents, shots=plan.shots, epoch=mark.epoch, step=mark.step, digest=mark.digest,
                    percent=100 * merged.blocks_counted // merged.blocks, final=is_final,
                )
            )  # fmt: skip

    def _tell_disputes(self, plan: Plan, mark: Mark, merged: Merged) -> None:
        for block, found in merged.disputes.items():
            for epoch in {one.epoch for one in found} if block in merged.counted else ():
                members = tuple(sorted(one.member for one in found if one.epoch == epoch))
                where = (mark.digest, plan.task_hash, block, epoch)
                if self._told.get(where) != members:
                    self._told[where] = members
                    self._log(
                        types.EvalDisputed(
                            task=plan.name, block=block, epoch=epoch, members=members, digest=mark.digest
                        )
                    )

    # --- own blocks -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do blocks as long as there are any; every wait is for idle time, or bounded."""
        if self._exam is None or not await self._load(self._exam):
            return
        self.follow()
        while self._is_on:
            await self._turns.wait_idle()
            ledger, worker = self._ledgers.get(self._x.state.certified.digest), self._find_worker()
            if ledger and worker and self._gone != (ledger.digest, self._x.state.progress.epoch):
                if await self._write(self._exam, ledger.digest, worker):
                    continue
                chosen = ledger.choose(worker, trio.current_time(), self._patience_s)
                if chosen is not None and await self._try(self._exam, ledger, worker, *chosen):
                    continue
            self._tell_final()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._news.wait()

    async def _load(self, exam: Exam) -> bool:
        try:
            self._plans = await exam.load()
        except (PsycheError, OSError) as error:
            self._log(types.EvalsOff(reason=str(error)))
            return False
        self._is_on = True
        for plan in self._plans:
            self._log(
                types.EvalStarted(
                    task=plan.name, documents=plan.documents, shots=plan.shots, task_hash=plan.task_hash
                )
            )  # fmt: skip
        return True

    @property
    def _patience_s(self) -> float:
        return max(PATIENCE_S, PATIENCE_BLOCKS * self._block_s)

    def _find_worker(self) -> Worker | None:
        """This client as a member of the epoch, and until the next one forms as what it was in the last one."""
        state, member = self._x.state, self._x.member
        if state.run_state in ACTIVE_STATES:
            epoch = state.progress.epoch
            self._worker = None if member is None else Worker(epoch, member, self._keys[epoch], self._secret)
        return self._worker

    async def _try(self, exam: Exam, ledger: Ledger, worker: Worker, plan: Plan, block: int) -> bool:
        """Do a block, send its result, and say whether that was possible."""
        started, result, asked = trio.current_time(), None, ()
        async with self._telling():
            asked = await exam.encode(plan, ledger.digest, block)
            if (scores := await self._score(ledger.digest, asked)) is not None:
                made = self._make(worker, ledger.digest, plan, block, asked, scores)
                result = RESULTS.sign(self._x.identity, made)
        if result is None:
            return False
        seconds = trio.current_time() - started
        self._block_s = max(seconds, self._block_s / 2)
        self._log(
            types.EvalScored(
                task=plan.name, block=block, digest=ledger.digest, documents=len(asked),
                skipped=min(BLOCK_DOCUMENTS, plan.documents - block * BLOCK_DOCUMENTS) - len(asked), seconds=seconds,
            )
        )  # fmt: skip
        self._add(ledger, result, worker.keys)
        with suppress(NetworkError):
            await self._network.publish(RESULTS.encode(result))
        await trio.sleep(max(0.0, BLOCK_S - seconds))
        return True

    async def _score(self, digest: bytes, asked: Sequence[Asked]) -> list[list[Score]] | None:
        """Score all rows, in as many calls as it takes; None: other weights are certified by then, or not here."""
        rows = [
            ScoreRow(context=tuple(one.request.context), choices=tuple(map(tuple, one.request.choices)))
            for one in asked
        ]
        done: list[list[Score]] = []
        while len(done) < len(rows):
            reply = await self._ask(ScoreRequest(rows=tuple(rows[len(done) :]), digest=digest, within_s=CALL_S))
            if reply is None:
                return None
            done += [[Score(*one) for one in row] for row in reply.rows]
        return done

    async def _ask(self, request: ScoreRequest) -> ScoreReply | None:
        """Ask the trainer as soon as it is idle; None: other weights are certified by then, or not here."""
        await self._turns.wait_idle()
        if self._x.state.certified.digest != request.digest or self._find_worker() is None:
            return None
        reply: ScoreReply = await self._trainer.score(request)
        if reply.refused == OTHER_WEIGHTS:
            if self._x.state.in_round:  # else it has them soon, or the next ones are certified soon
                self._give_up(request.digest)
        elif reply.refused:
            self._tell_once(f"the trainer cannot score: {reply.refused}")
        return None if reply.refused else reply

    async def _write(self, exam: Exam, digest: bytes, worker: Worker) -> bool:
        """Have weights go on with a prompt if it is this member's turn; say whether they did."""
        if not exam.has_prompt or any((digest, epoch) in self._told for epoch in self._keys):
            return False
        if worker.member != choose_writer(digest, worker.members):
            return False
        text = None
        async with self._telling():
            text = await write(await exam.open_reader(digest), digest, partial(self._ask_for_tokens, digest))
        if text is None:
            return False
        found = make_text(self._x.identity, self._x.state.run_uid, worker, digest, text)
        self._tell_text(found)
        with suppress(NetworkError):
            await self._network.publish(TEXTS.encode(found))
        return True

    async def _ask_for_tokens(self, digest: bytes, start: Sequence[int], tokens: int) -> Sequence[int] | None:
        request = ScoreRequest(digest=digest, within_s=CALL_S, start=tuple(start), tokens=tokens)
        reply = await self._ask(request)
        return None if reply is None else reply.written

    @asynccontextmanager
    async def _telling(self) -> AsyncIterator[None]:
        """What goes wrong with a model is told, and training goes on."""
        try:
            yield
        except TrainerFailure as error:
            await self._turns.recover(error)
            if error.kind is FailureKind.OUT_OF_MEMORY:  # of several devices: one alone only refuses
                self._is_on = False
                self._log(types.EvalsOff(reason=str(error)))
        except (PsycheError, OSError) as error:
            self._tell_once(str(error))
            if isinstance(error, TrainerError | WireError):  # it would say the same of these weights again
                self._give_up(self._x.state.certified.digest)

    def _give_up(self, digest: bytes) -> None:
        self._gone = digest, self._x.state.progress.epoch

    def _tell_once(self, reason: str) -> None:
        key = (self._x.state.certified.digest,)
        if self._told.get(key) != reason:
            self._told[key] = reason
            self._log(types.Error(message=f"evals: {reason}"))

    def _make(
        self, worker: Worker, digest: bytes, plan: Plan, block: int, asked: Sequence[Asked], scores: list[list[Score]]
    ) -> BlockResult:
        pairs = [(one.document, found) for one, found in zip(asked, scores, strict=True)]

        def count(metric: Metric) -> int:
            right = [choose(document, found, (), metric) == document.answer for document, found in pairs]
            return sum(is_right << place for place, is_right in enumerate(right))

        return BlockResult(
            run_uid=self._x.state.run_uid, digest=digest, task_hash=plan.task_hash, epoch=worker.epoch,
            member=worker.member, block=block, count=len(asked), numeric_class=NumericClass(self._x.numeric_class),
            right=count(Metric.ACC), right_norm=count(Metric.ACC_NORM),
            score_sum=sum(found[document.answer].log_likelihood for document, found in pairs),
        )  # fmt: skip
