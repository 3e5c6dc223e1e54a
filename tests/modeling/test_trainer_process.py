"""The trainer in a child process. Children take seconds to start, so few are started, and each does much."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from kits.leftovers import is_alive, until_dead

from psyche.errors import ConfigError, TrainerError, UnusableModelError, WireError
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.fault import VARIABLE, FaultInjector
from psyche.modeling.trainer.frames import (
    Call,
    CallReply,
    Cancel,
    decode_to_child,
    decode_to_parent,
    encode,
)
from psyche.modeling.trainer.process import TrainerProcess, Watchdog, WatchdogLimits
from psyche.wire.line.framing import FrameTimeout
from psyche.wire.trainer import (
    ApplyRequest,
    AuditReply,
    AuditRequest,
    AuditTarget,
    CheckRequest,
    LoadRequest,
    MemoryRequest,
    ScoreReply,
    ScoreRequest,
    ScoreRow,
    SnapshotRequest,
    TrainRequest,
)

SAMPLES, LENGTH = 4, 16
ROOT = Path(__file__).parents[2]


def train_request(height: int, samples: int = SAMPLES, **changes: object) -> TrainRequest:
    ids = b"".join((i % 60).to_bytes(4, "little") for i in range(samples * LENGTH))
    request = TrainRequest(
        epoch=0, height=height, step=height + 1, lr=1e-2, lookahead_lr=0.0, tokens=ids, samples=samples,
        sequence_length=LENGTH, decided=(), in_flight=False,
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)


async def check_what_can_never_be_loaded(trainer: TrainerProcess, load_request: LoadRequest) -> None:
    with pytest.raises(TrainerError, match="'cuda:99'"):
        await trainer.check(CheckRequest(device="cuda:99"))
    assert (await trainer.check(CheckRequest(device="cpu"))).device == "cpu"
    huge = msgspec.structs.replace(load_request, micro_batch_size=10**9, batch_size=10**9)
    with pytest.raises(UnusableModelError, match=r"memory: training with a micro-batch of 1000000000 needs .* TB"):
        await trainer.predict_memory(MemoryRequest(load=huge))
    other = shutil.copytree(load_request.path, Path(load_request.path).with_name("other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 1}))
    with pytest.raises(UnusableModelError, match="AR4"):
        await trainer.load(msgspec.structs.replace(load_request, path=str(other)))
    with pytest.raises(TrainerError, match="nowhere") as caught:
        await trainer.load(msgspec.structs.replace(load_request, path="/nowhere"))
    assert not isinstance(caught.value, UnusableModelError)  # somebody may bring it


async def check_steps_and_halving(trainer: TrainerProcess, load_request: LoadRequest) -> bytes:
    await trainer.load(msgspec.structs.replace(load_request, micro_batch_size=4))
    first = await trainer.train(train_request(0))
    assert (first.micro_batch_size, first.train_count, first.refused) == (4, 1, "")
    assert (await trainer.train(train_request(1))).micro_batch_size == 2  # F20
    return first.payload


async def check_cancelling(trainer: TrainerProcess) -> None:
    many = train_request(2, samples=60_000)
    replies = []

    async def train() -> None:
        replies.append(await trainer.train(many))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(train)
        await trio.sleep(0.3)  # of many seconds; there is no quiet moment to wait for: signs of life come all the time
        await trainer.cancel()
    assert replies[0].cancelled
    with trio.move_on_after(0.2) as scope:
        await trainer.train(many)  # the child is told when the task that waits is cancelled
    assert scope.cancelled_caught


async def check_apply_and_snapshot(trainer: TrainerProcess, payload: bytes, path: Path) -> bytes:
    apply = ApplyRequest(height=2, lr=1e-2, payloads=(payload,), run_update=True, full_digest=True, random_seed=0)
    applied = await trainer.apply(apply)
    with pytest.raises(TrainerError, match="payload") as refused:
        await trainer.apply(msgspec.structs.replace(apply, payloads=(b"",)))
    assert not isinstance(refused.value, TrainerFailure)
    request = SnapshotRequest(
        kind="resume", path=str(path), epoch=0, step=2, data_index=8, chain=bytes(32), digest=bytes(32)
    )  # fmt: skip
    assert (await trainer.snapshot(request)).weight_root == applied.weight_part
    return applied.weight_part


async def check_crash(trainer: TrainerProcess) -> None:
    pid = trainer.pid
    assert pid is not None
    with pytest.raises(TrainerFailure, match=r"exit status 70.*start it again") as crashed:
        await trainer.train(train_request(3))
    assert crashed.value.kind is FailureKind.CRASHED
    assert not is_alive(pid)
    with pytest.raises(TrainerFailure, match="restart it first"):
        await trainer.train(train_request(3))


async def check_out_of_memory_and_hang(trainer: TrainerProcess) -> None:
    pid = trainer.pid
    assert pid is not None
    with pytest.raises(TrainerFailure) as short:
        await trainer.train(train_request(4))
    assert short.value.kind is FailureKind.OUT_OF_MEMORY
    assert is_alive(pid)
    os.kill(pid, signal.SIGINT)  # as a terminal's Ctrl-C would: the parent decides, the child goes on
    trainer._watchdog = Watchdog(WatchdogLimits(unknown_s=0.5))
    with pytest.raises(TrainerFailure, match="no sign of life") as hung:
        await trainer.train(train_request(5))
    assert hung.value.kind is FailureKind.HUNG
    assert not is_alive(pid)


@pytest.mark.whole
async def test_a_child_survives_its_faults_and_resumes_after_a_crash(load_request: LoadRequest, tmp_path: Path) -> None:
    """F20, F21: memory running out, a cancel, a crash, a fresh child that resumes, memory for good, a hang."""
    trainer = TrainerProcess(environment={VARIABLE: "oom@2,crash@5"}, log_path=tmp_path / "trainer.log")
    await check_what_can_never_be_loaded(trainer, load_request)
    payload = await check_steps_and_halving(trainer, load_request)
    await check_cancelling(trainer)
    weight_part = await check_apply_and_snapshot(trainer, payload, tmp_path / "s")
    await check_crash(trainer)

    trainer._environment = {VARIABLE: "oom@2x10,hang@3"}
    crashed = trainer.pid
    await trainer.restart()
    assert trainer.pid not in (crashed, None)
    again = await trainer.load(msgspec.structs.replace(load_request, path=str(tmp_path / "s"), is_snapshot=True))
    assert (again.weight_root, again.train_count) == (weight_part, 2)
    assert (await trainer.train(train_request(3))).train_count == 3
    await check_out_of_memory_and_hang(trainer)
    await trainer.stop()
    assert trainer.pid is None
    with pytest.raises(TrainerFailure, match="stopped"):
        await trainer.train(train_request(6))


async def check_scores_give_way(trainer: TrainerProcess, audit: AuditRequest) -> None:
    rows = (ScoreRow(context=(1, 2, 3), choices=((4,), (5, 6))),) * 100_000
    replies = list[ScoreReply]()

    async def score() -> None:
        replies.append(await trainer.score(ScoreRequest(rows=rows)))

    for ask in (partial(trainer.audit, audit), partial(trainer.train, train_request(3))):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(score)
            await trio.sleep(0.3)
            await ask()
        assert (replies[-1].cancelled, len(replies[-1].rows) < len(rows)) == (True, True)
    assert len((await trainer.score(ScoreRequest(rows=rows[:9]))).rows) == 9


async def test_v8_audits_and_scores_give_way_to_whatever_else_a_trainer_is_asked_for(load_request: LoadRequest) -> None:
    trainer = TrainerProcess()
    await trainer.load(msgspec.structs.replace(load_request, verifies=True, scores=True))
    first = ApplyRequest(height=0, lr=1e-2, payloads=(), run_update=False, full_digest=True, random_seed=0)
    part = (await trainer.apply(first)).weight_part
    samples = 4_000
    target = AuditTarget(
        tokens=train_request(0, samples).tokens, samples=samples, sequence_length=LENGTH, piece_samples=1,
        pieces=tuple(range(samples)), numeric_class=0,
    )  # fmt: skip
    request = AuditRequest(height=0, seeds=(bytes(32),), targets=(target,), applies=())
    replies = list[AuditReply]()

    async def audit() -> None:
        replies.append(await trainer.audit(request))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit)
        await trio.sleep(0.3)  # of many seconds
        assert (await trainer.train(train_request(0))).payload
    assert (replies[0].cancelled, len(replies[0].targets[0].pieces) < samples) == (True, True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trainer.train, train_request(1, 200))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(audit)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(trainer.train, train_request(2))
    assert (replies[1].cancelled, replies[1].targets) == (True, ()), "what comes while it waits comes first too"
    with trio.move_on_after(0.2):
        await trainer.audit(request)
    assert (await trainer.apply(first)).weight_part == part, "the weights are back"
    few = msgspec.structs.replace(request, targets=(msgspec.structs.replace(target, pieces=(0, 9)),))
    assert [one.piece for one in (await trainer.audit(few)).targets[0].pieces] == [0, 9], "nothing else cancels it"
    await check_scores_give_way(trainer, few)
    await trainer.stop()


async def test_a_cancel_waits_until_a_slow_child_has_taken_the_call(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    sent = list[bytes]()

    class SlowStream:
        async def send(self, data: bytes, timeout_s: float) -> None:
            with trio.move_on_after(timeout_s):
                await trio.sleep(5)  # a call of megabytes goes before it
                sent.append(data)
                return
            raise FrameTimeout("not taken")

    class SlowChild:
        stream = SlowStream()

    trainer = TrainerProcess()
    monkeypatch.setattr(trainer, "_child", SlowChild())
    monkeypatch.setattr(trainer, "_training", 3)
    await trainer.cancel()
    assert sent == [encode(Cancel(3))]
    assert autojump_clock.current_time() >= 5


async def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import trio\n"
        "from psyche.modeling.trainer.process import TrainerProcess\n"
        "async def main():\n"
        "    trainer = TrainerProcess()\n"
        "    trainer._child = trainer._spawn()\n"
        "    print(trainer.pid, flush=True)\n"
        "    await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await until_dead(pid)


async def test_a_child_that_cannot_start_is_reported_with_its_own_words(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    trainer = TrainerProcess(environment={VARIABLE: "sneeze@1"}, log_path=log)
    with pytest.raises(TrainerFailure, match=r"crashed during start.*exit status 1") as caught:
        await trainer.start()
    assert "'sneeze@1' must have the form kind" in str(caught.value)


def test_the_watchdog_allows_twice_the_median_step() -> None:
    watchdog = Watchdog(WatchdogLimits(unknown_s=120, floor_s=10))
    assert watchdog.get_limit_s("train") == 120
    for seconds in (8.0, 9.0, 100.0):
        watchdog.note("train", seconds)
    assert watchdog.get_limit_s("train") == 18.0
    for _ in range(40):
        watchdog.note("train", 0.3)
    assert watchdog.get_limit_s("train") == 10
    assert [watchdog.get_limit_s(one) for one in ("check", "memory", "load")] == [600] * 3
    assert watchdog.get_limit_s("apply") == 120
    watchdog.note("apply", 50)
    assert watchdog.get_limit_s("apply") == 200


def test_envelopes_survive_the_wire_and_bad_ones_are_refused(load_request: LoadRequest) -> None:
    for message in (Call(3, load_request), Call(4, train_request(0)), Cancel(3)):
        assert decode_to_child(encode(message)) == message
    reply = CallReply(1, kind="refused", error="no")
    assert decode_to_parent(encode(reply)) == reply
    dance = encode(Call(1, train_request(0))).replace(b"\xa5train", b"\xa5dance")
    for decode, raw in ((decode_to_child, b"\xff"), (decode_to_parent, b"\xff"), (decode_to_child, dance)):
        with pytest.raises(WireError, match="trainer frame"):
            decode(raw)


def test_faults_strike_at_their_call_as_often_as_asked() -> None:
    faults = FaultInjector("oom@2x2, oom:apply@1")
    struck: list[str] = []
    for operation in ("train", "train", "apply", "train"):
        faults.begin(operation)
        for _ in range(3):
            try:
                faults.strike()
            except MemoryError:
                struck.append(operation)
    assert struck == ["train", "train", "apply"]
    faults = FaultInjector("flip:apply@2")
    for is_flipped in (False, True, False):
        faults.begin("apply")
        faults.strike()
        assert faults.is_flipped == is_flipped
    with pytest.raises(ConfigError, match="'oom' must have the form"):
        FaultInjector("oom")
