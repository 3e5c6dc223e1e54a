"""A trainer that fails between the engine's requests: who waits hears of it, and stale requests are never run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from runtime_kit import TaskShell, build_apply, build_train

from psyche.client.engine import actions as act
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.trainer_tasks import TrainerTasks
from psyche.errors import TrainerError
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.telemetry import types
from psyche.wire.trainer import ApplyReply, ApplyRequest


@dataclass
class FailingTrainer:
    failure: TrainerError
    calls: list[str] = field(default_factory=list)
    may_fail: trio.Event = field(default_factory=trio.Event)
    may_restart: trio.Event = field(default_factory=trio.Event)

    async def train(self, _request: Any) -> Any:
        self.calls.append("train")
        await self.may_fail.wait()
        raise self.failure

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        self.calls.append(f"apply {request.height}")
        return ApplyReply(weight_part=bytes(32), is_full=True, seconds=0.0)

    async def restart(self) -> None:
        self.calls.append("restart")
        await self.may_restart.wait()


class Loader:
    def find_configured(self, *_arguments: object) -> None:
        return None


class Shell(TaskShell):
    def log(self, event: types.Event) -> None:
        assert isinstance(event, types.Error), event

    async def take(self, *_place: int) -> bytes:
        return bytes(4 * 16)

    async def wait_for(self, kind: type[act.EngineEvent]) -> act.EngineEvent:
        while not any(isinstance(event, kind) for event in self.events):
            await self.heard.wait()
        return next(event for event in self.events if isinstance(event, kind))


def build_load() -> act.Load:
    return act.Load(1, None, bytes(32), keep_momentum=True)


@asynccontextmanager
async def running(trainer: FailingTrainer, shell: Shell, folder: Path) -> AsyncIterator[TrainerTasks]:
    settings = ClientSettings(run_id="test", data_dir=folder)
    tasks = TrainerTasks(
        trainer, Loader(), None, shell, settings=settings, snapshots=folder, payloads=shell, data=shell,  # type: ignore[arg-type]
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        yield tasks
        nursery.cancel_scope.cancel()


async def test_a_lost_trainer_is_reported_before_the_new_one_is_up(tmp_path: Path) -> None:
    """The others must not wait for a member whose trainer takes half a minute to come back."""
    trainer, shell = FailingTrainer(TrainerFailure(FailureKind.HUNG, "it hung")), Shell()
    async with running(trainer, shell, tmp_path) as tasks:
        tasks.put(build_train(3))
        trainer.may_fail.set()
        lost = await shell.wait_for(act.TrainFailed)
        await trio.testing.wait_all_tasks_blocked()
        assert trainer.calls == ["train", "restart"], "the new one is not up yet"
    assert isinstance(lost, act.TrainFailed)
    assert lost.trainer_lost


async def test_what_was_asked_of_lost_weights_is_never_run_on_new_ones(tmp_path: Path) -> None:
    trainer, shell = FailingTrainer(TrainerFailure(FailureKind.CRASHED, "it died")), Shell()
    async with running(trainer, shell, tmp_path) as tasks:
        tasks.put(build_train(3))
        await trio.testing.wait_all_tasks_blocked()
        tasks.put(build_apply(4))
        tasks.put(build_train(4))
        tasks.put(build_load())
        trainer.may_fail.set()
        trainer.may_restart.set()
        failed = await shell.wait_for(act.LoadFailed)
    assert trainer.calls == ["train", "restart"], "nothing of the former weights was run"
    assert isinstance(failed, act.LoadFailed)
    assert failed.epoch == 1, "what does not need the former weights was"
    trains = [event for event in shell.events if isinstance(event, act.TrainFailed)]
    assert [(event.height, event.trainer_lost) for event in trains] == [(3, True), (4, False)], "both were answered"


async def test_the_payloads_of_an_apply_are_those_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    trainer, shell = FailingTrainer(TrainerError("refused")), Shell(bodies={b"blob": b"body"})
    async with running(trainer, shell, tmp_path) as tasks:
        tasks.put(build_train(3))
        tasks.put(build_apply(4, (b"blob",)))
        shell.bodies.clear()  # its round is over for everybody else
        trainer.may_fail.set()
        applied = await shell.wait_for(act.Applied)
    assert isinstance(applied, act.Applied)
    assert applied.height == 4


@pytest.mark.parametrize("known", [b"blob", b"other"])
async def test_an_apply_whose_payload_is_gone_costs_the_weights_but_not_the_client(
    tmp_path: Path, known: bytes
) -> None:
    trainer, shell = FailingTrainer(TrainerError("refused")), Shell(bodies={known: b"body"})
    async with running(trainer, shell, tmp_path) as tasks:
        tasks.put(build_apply(4, (b"blob",)))
        heard = await shell.wait_for(act.Applied if known == b"blob" else act.TrainerLost)
    assert heard == shell.events[0]
    assert trainer.calls == (["apply 4"] if known == b"blob" else [])
