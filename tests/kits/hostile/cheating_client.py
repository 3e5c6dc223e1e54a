"""A client that cheats, as its user would start it: `python cheating_client.py KIND client train ...`.

It computes, signs and gossips as every client does; what its trainer is asked for or answers is changed on the way.
"""

import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

import msgspec
import numpy as np

from psyche.cli.main import main
from psyche.client.engine.actions import Audited
from psyche.client.runtime.audit_tasks import AuditTasks
from psyche.client.runtime.openings import Openings
from psyche.client.runtime.trainer_tasks import TrainerTasks
from psyche.core.encoding.plan import TransformPlan, decode_plan
from psyche.core.encoding.work import ROW_BYTES
from psyche.modeling.distro.codec import decode_payload, encode_payload
from psyche.wire.trainer import AuditedPiece, TrainReply, TrainRequest

STALE_ROUNDS: Final = 5
FLIPPED_SHARE: Final = 0.1
PLANS: Final[list[TransformPlan]] = []  # of the model, once it is loaded
Answer = Callable[[TrainRequest, TrainReply, list[TrainReply]], TrainReply]


def spoil_half(request: TrainRequest) -> TrainRequest:
    """The second half of the batch is the first one again."""
    row = len(request.tokens) // request.samples
    half = row * (request.samples // 2)
    return msgspec.structs.replace(request, tokens=request.tokens[:half] + request.tokens[: len(request.tokens) - half])


def choose_other(request: TrainRequest) -> TrainRequest:
    """Samples of its own choice."""
    ids = array("I", request.tokens)
    ids.reverse()
    return msgspec.structs.replace(request, tokens=ids.tobytes())


def grow_faster(rate: float) -> Callable[[TrainRequest], TrainRequest]:
    """Its momentum grows by another multiple of the gradient than the others'; the table does not show it."""
    return lambda request: msgspec.structs.replace(request, lr=rate * request.lr)


def answer_flipped(request: TrainRequest, reply: TrainReply, before: list[TrainReply]) -> TrainReply:
    """A tenth of the signs turned; as many as that agree with its gradient all the same."""
    del before
    draw, sets = Random(request.height), decode_payload(PLANS[-1], reply.payload)
    for one in sets:
        for place in np.ndindex(one.values.shape):
            one.values[place] *= -1 if draw.random() < FLIPPED_SHARE else 1
    return msgspec.structs.replace(reply, payload=encode_payload(PLANS[-1], sets))


def answer_lazily(request: TrainRequest, reply: TrainReply, before: list[TrainReply]) -> TrainReply:
    """The first piece, shown for all of them; the calibration row is honest, else it were not judged in the epoch."""
    del before
    assert reply.work is not None
    assert request.work is not None
    table, kept = reply.work.table, ROW_BYTES * bool(request.work.calibration)
    rows = (len(table) - kept) // ROW_BYTES
    work = msgspec.structs.replace(reply.work, table=table[:ROW_BYTES] * rows + table[len(table) - kept :])
    return msgspec.structs.replace(reply, work=work)


def answer_again(age: int) -> Answer:
    """What it answered so many rounds ago, with the table of that round."""

    def answer(request: TrainRequest, reply: TrainReply, before: list[TrainReply]) -> TrainReply:
        del request
        old = before[-age] if len(before) >= age else reply
        is_alike = old.work is not None and reply.work is not None and len(old.work.table) == len(reply.work.table)
        return msgspec.structs.replace(reply, payload=old.payload, work=old.work) if is_alike else reply

    return answer


REQUESTS: Final[dict[str, Callable[[TrainRequest], TrainRequest]]] = {
    "half": spoil_half, "other": choose_other, "poison": grow_faster(-1.0), "greedy": grow_faster(3.0),
}  # fmt: skip
ANSWERS: Final[dict[str, Answer]] = {
    "lazy": answer_lazily, "stale": answer_again(STALE_ROUNDS), "resent": answer_again(1), "flipped": answer_flipped,
}  # fmt: skip


def accuse() -> None:
    """It finds everybody's work wrong, and shows in its own report what it has computed in truth."""
    honest = AuditTasks.do

    def invert(piece: AuditedPiece) -> AuditedPiece:
        own, resketched = piece.values
        return msgspec.structs.replace(piece, values=(tuple(-value for value in own), resketched))

    async def do(tasks: AuditTasks, *args: Any, **named: Any) -> Audited:
        done = await honest(tasks, *args, **named)
        if done.reply is None or done.audit.seeds[0] == done.audit.seeds[1]:  # its own calibration row
            return done
        lies = (msgspec.structs.replace(one, pieces=tuple(map(invert, one.pieces))) for one in done.reply.targets)
        return replace(done, reply=msgspec.structs.replace(done.reply, targets=tuple(lies)))

    AuditTasks.do = do  # pyright: ignore[reportAttributeAccessIssue]


def cheat(kind: str) -> None:
    honest, before = TrainerTasks._train_whole, list[TrainReply]()
    change, answer = REQUESTS.get(kind), ANSWERS.get(kind)

    async def train(tasks: TrainerTasks, request: TrainRequest) -> Any:
        reply, merged = await honest(tasks, request if change is None else change(request))
        if reply.work is None:
            return reply, merged
        shown = reply if answer is None else answer(request, reply, before)
        before.append(reply)
        return shown, merged

    TrainerTasks._train_whole = train  # pyright: ignore[reportAttributeAccessIssue]
    set_plan = Openings.set_plan

    def note_plan(openings: Openings, raw: bytes) -> None:
        PLANS.append(decode_plan(raw))
        set_plan(openings, raw)

    Openings.set_plan = note_plan  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    accuse() if kind == "accuser" else cheat(kind)
    main()
