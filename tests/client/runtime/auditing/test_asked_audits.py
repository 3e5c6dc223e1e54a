"""What a trainer is asked for of an audit, what it is not (V8)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import trio

from psyche.client.engine import actions as act
from psyche.client.runtime.audit_tasks import AuditTasks
from psyche.client.runtime.trainer_inputs import DataAhead, PayloadCache
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.core.state.state import Coordinator
from psyche.errors import DataError
from psyche.testing.builders import build_hash
from psyche.wire.trainer import AuditedTarget, AuditReply, AuditRequest

BODY = build_hash("body")


@dataclass
class Provider:
    """Has the samples below `end` alone, and counts who asks."""

    end: int = 99
    asked: list[int] = field(default_factory=list[int])

    async def get(self, start: int, end: int, *, epoch: int, height: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append(start)
        if end >= self.end:
            raise DataError(f"samples {start} to {end} of epoch {epoch}, round {height} are not served any more")
        return bytes([start])


@dataclass
class Trainer:
    requests: list[AuditRequest] = field(default_factory=list[AuditRequest])
    most: int = 99

    async def audit(self, request: AuditRequest) -> AuditReply:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        targets = tuple(AuditedTarget(pieces=(), agreement=one.tokens[0] / 100) for one in request.targets)
        return AuditReply(targets=targets[: self.most], seconds=0.1)


@dataclass
class Context:
    state: Coordinator = field(default_factory=Coordinator)

    async def wait_for_replay(self) -> None:
        await trio.lowlevel.checkpoint()


def build(tmp_path: Path, trainer: Trainer, provider: Provider) -> AuditTasks:
    payloads, asked = PayloadCache(), cast("Any", trainer)
    payloads.keep(BODY, 0, 3, b"body")
    replay = ReplayStore(tmp_path / "replay", 1 << 20)
    return AuditTasks(asked, DataAhead(cast("Any", provider)), payloads, replay, Context())


def build_case(member: int, payload: bytes = BODY) -> act.Case:
    start = 10 * member
    return act.Case(member, 4, start, start + 7, 1, (0,), 0, payload)


def build_audit(*cases: act.Case, height: int = 4) -> act.Audit:
    return act.Audit(0, height, (build_hash("a"), build_hash("b")), cases)


async def do(tasks: AuditTasks, audit: act.Audit) -> act.Audited:
    return await tasks.do(audit, is_in_the_way=lambda: False)


async def test_samples_that_the_data_no_longer_gives_cost_their_own_audit_alone(tmp_path: Path) -> None:
    trainer, provider = Trainer(), Provider(end=30)
    tasks = build(tmp_path, trainer, provider)
    audited = await do(tasks, build_audit(build_case(1), build_case(3), build_case(2), build_case(1, build_hash("x"))))
    assert audited.reply is not None
    shown = [one.refused or one.agreement for one in audited.reply.targets]
    assert shown == [
        0.1, "data: samples 30 to 37 of epoch 0, round 4 are not served any more", 0.2,
        "a payload of the member, or what it opened, is no longer here",
    ]  # fmt: skip
    await do(tasks, build_audit(build_case(1)))
    assert provider.asked == [10, 30, 20], "batches are kept for a while"


async def test_an_audit_of_which_nothing_is_here_asks_the_trainer_for_nothing(tmp_path: Path) -> None:
    trainer = Trainer()
    tasks = build(tmp_path, trainer, Provider(end=0))
    audited = await do(tasks, build_audit(build_case(1)))
    assert (audited.reply, trainer.requests) == (None, [])
    assert "are not served any more" in audited.reason
    tasks = build(tmp_path, trainer, Provider())
    audited = await do(tasks, build_audit(build_case(1), height=6))
    assert (audited.reply, trainer.requests) == (None, [])
    assert audited.reason == "a set since the trainer's copy of the weights is not here"


async def test_an_audit_gives_way_to_what_else_waits_for_the_trainer(tmp_path: Path) -> None:
    trainer = Trainer()
    tasks = build(tmp_path, trainer, Provider())
    audited = await tasks.do(build_audit(build_case(1)), is_in_the_way=lambda: True)
    assert audited.reply is not None
    assert audited.reply.cancelled
    assert trainer.requests == []


async def test_a_reply_that_was_cut_short_answers_the_first_cases(tmp_path: Path) -> None:
    trainer = Trainer(most=1)
    audited = await do(build(tmp_path, trainer, Provider()), build_audit(build_case(1), build_case(2)))
    assert audited.reply is not None
    assert [one.agreement for one in audited.reply.targets] == [0.1]
