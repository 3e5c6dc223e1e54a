"""What a client makes of others' messages about weights that stay the newest ones over two epochs."""

from typing import Any, cast

import trio
import trio.testing

from psyche.client.engine.context import EngineContext
from psyche.client.runtime.evals.evaluating import Evaluating
from psyche.core.encoding.header import NumericClass
from psyche.core.state.state import Client, Coordinator, Mark, RunState
from psyche.evals.results import RESULTS, BlockResult
from psyche.evals.texts import TEXTS, WrittenText, choose_writer
from psyche.sim.exam import SimExam
from psyche.telemetry import types
from psyche.wire.crypto import Identity

MARK = Mark(bytes([5]) * 32, epoch=7, step=40)
EXAM = SimExam(64)
OLD = [Identity(bytes([number]) * 32) for number in range(1, 4)]
NEW = [Identity(bytes([9]) * 32), *OLD[:2]]  # of each the number has become another one
TRUTH, LIE = 0b1011, 0xFFFF


class Idle:
    """No request is ever before the evals."""

    async def wait_idle(self) -> None:
        await trio.lowlevel.checkpoint()

    async def recover(self, error: Exception) -> None:
        raise error


def enter(context: EngineContext, epoch: int, members: list[Identity]) -> None:
    state = Coordinator(run_state=RunState.WARMUP, clients=[Client(p2p=one.public) for one in members])
    state.certified, state.progress.epoch = MARK, epoch
    context.state = state


def say(epoch: int, member: int, right: int) -> bytes:
    result = BlockResult(
        run_uid=bytes(32), digest=MARK.digest, task_hash=EXAM.plan.task_hash, epoch=epoch, member=member, block=0,
        count=32, numeric_class=NumericClass.FP32, right=right, right_norm=right, score_sum=0.0,
    )  # fmt: skip
    return RESULTS.encode(RESULTS.sign((OLD if epoch == 7 else NEW)[member], result))


def write(epoch: int, text: str, by: int) -> bytes:
    made = WrittenText(run_uid=bytes(32), digest=MARK.digest, epoch=epoch, member=by, text=text)
    return TEXTS.encode(TEXTS.sign((OLD if epoch == 7 else NEW)[by], made))


async def test_who_differs_is_named_by_the_number_of_its_own_epoch() -> None:
    events: list[types.Event] = []
    context: Any = EngineContext(Identity(bytes([8]) * 32))
    nothing = cast("Any", None)  # this client is no member: it only reads
    evals = Evaluating(EXAM, context, nothing, Idle(), nothing, events.append)
    enter(context, 7, OLD)
    writer = choose_writer(MARK.digest, len(OLD))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(evals.run)
        await trio.testing.wait_all_tasks_blocked()
        assert evals.take([say(7, 0, LIE), write(7, "a", writer)]) == []
        evals.take([say(8, 0, TRUTH)])  # whose record is ahead of this one
        enter(context, 8, NEW)
        evals.follow()
        evals.take([say(7, 2, TRUTH), write(8, "b", writer), write(7, "c", writer)])
        evals.take([say(8, 1, TRUTH)])  # whose number was 0
        nursery.cancel_scope.cancel()
    disputes = [one for one in events if isinstance(one, types.EvalDisputed)]
    assert [(one.epoch, one.members) for one in disputes] == [(7, (0,))]
    assert [(one.epoch, one.text) for one in events if isinstance(one, types.EvalText)] == [(7, "a"), (8, "b")]
    refused = [(one.member, one.reason) for one in events if isinstance(one, types.Refused)]
    assert refused == [
        (None, f"text of weights: a second one of these weights; from member {writer} of epoch 7"),
        (1, "result of a block: a second one of block 0"),
    ]
