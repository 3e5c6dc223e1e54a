"""Local steps on several ranks, real processes with gloo: they are one member."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from psyche.core.state.state import InnerOptimizer, Optimizer, OptimizerKind
from psyche.errors import TrainerError
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.process import HOST_VARIABLE, TrainerProcess, WatchdogLimits
from psyche.wire.trainer import (
    ApplyRequest,
    Contribution,
    LoadRequest,
    MergeRequest,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

SAMPLES, LENGTH, STEPS = 8, 16, 4  # of each inner batch of two samples a rank has one: two addends have one sum
OPTIMIZER = Optimizer(
    OptimizerKind.LOCAL_STEPS, weight_decay=0.1, inner_steps=STEPS, merge_step=2, compression_topk=4,
    compression_chunk=8, value_bits=2, error_decay=0.95, outer_rate=1.0,
)  # fmt: skip
PATIENT = WatchdogLimits(start_s=900.0, unknown_s=900.0)


def make_request(
    load_request: LoadRequest, inner: InnerOptimizer = InnerOptimizer.ADAMW, ranks: int = 1
) -> LoadRequest:
    model = replace(load_request.model, optimizer=replace(OPTIMIZER, inner_optimizer=inner))
    return msgspec.structs.replace(load_request, model=model, micro_batch_size=1, data_parallelism=ranks)


def make_batch(height: int, *own: Contribution, lr: float = 1e-2, samples: int = SAMPLES) -> TrainRequest:
    ids = np.random.default_rng(height).integers(0, 60, size=(samples, LENGTH), dtype="<u4")
    return TrainRequest(
        epoch=0, height=height, step=height + 1, lr=lr, next_lr=lr, lookahead_lr=0.0, tokens=ids.tobytes(),
        samples=samples, sequence_length=LENGTH, decided=(), in_flight=True, own=own,
    )  # fmt: skip


async def train(trainer: TrainerProcess, height: int, *own: Contribution, lr: float = 1e-2) -> TrainReply:
    reply = await trainer.train(make_batch(height, *own, lr=lr))
    return await trainer.merge(MergeRequest(held=own)) if reply.waits_for_merge else reply


def make_apply(height: int, *parts: Contribution) -> ApplyRequest:
    return ApplyRequest(
        height=height, lr=1e-2, payloads=tuple(one.payload for one in parts), run_update=True, full_digest=True,
        random_seed=0, inner_steps=tuple(one.inner_steps for one in parts),
    )  # fmt: skip


async def apply(trainer: TrainerProcess, height: int, *parts: Contribution) -> bytes:
    return (await trainer.apply(make_apply(height, *parts))).weight_part


def snapshot(path: Path) -> SnapshotRequest:
    return SnapshotRequest(
        kind="resume", path=str(path), epoch=0, step=3, data_index=0, chain=bytes(32), digest=bytes(32)
    )


def read_folder(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """That of processes whose CPU is a device with the option `--offload`."""
    monkeypatch.delenv(HOST_VARIABLE, raising=False)  # a trainer that is forked there has loaded its modules already
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(
        "from psyche.modeling import device\n"
        "device.find_host = lambda place, *, offload: device.HOST if offload else None\n"
    )
    return {"PYTHONPATH": str(tmp_path / "path")}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("inner", "offload"),
    [(InnerOptimizer.ADAMW, False), (InnerOptimizer.MUON, False), (InnerOptimizer.MUON_ANEW, True)],
)
async def test_two_ranks_send_apply_and_store_what_one_does(
    inner: InnerOptimizer, offload: bool, environment: dict[str, str], load_request: LoadRequest, tmp_path: Path
) -> None:
    alone, group = (
        TrainerProcess(limits=PATIENT, log_path=tmp_path / f"{name}.log", environment=environment) for name in "ab"
    )
    try:
        one, two = (make_request(load_request, inner, ranks) for ranks in (1, 2))
        two = msgspec.structs.replace(two, offload=offload)
        first, second = await alone.load(one), await group.load(two)
        assert (first.plan, first.notices) == (second.plan, second.notices), "what is offloaded is moved"
        own: tuple[Contribution, ...] = ()
        for height in range(4):
            replies = [await train(trainer, height, *own) for trainer in (alone, group)]
            assert [reply.inner_steps for reply in replies] == [STEPS] * 2
            assert replies[0].payload == replies[1].payload, height
            parts = [await apply(trainer, height, *own) for trainer in (alone, group)]
            assert parts[0] == parts[1]
            own = (Contribution(payload=replies[0].payload, inner_steps=STEPS),)
        for trainer, name in ((alone, "a"), (group, "b")):
            await trainer.snapshot(snapshot(tmp_path / name))
        assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")
        await group.load(msgspec.structs.replace(two, path=str(tmp_path / "a"), is_snapshot=True))
        await group.snapshot(snapshot(tmp_path / "c"))
        assert read_folder(tmp_path / "c") == read_folder(tmp_path / "a")
    finally:
        await alone.stop()
        await group.stop()


@pytest.mark.whole
async def test_two_ranks_that_are_cut_short_send_what_their_inner_steps_have_moved_so_far(
    load_request: LoadRequest, tmp_path: Path
) -> None:
    """LS9: the step that both give up leaves no trace, and the next round begins where both have the masters again."""
    one, two = (make_request(load_request, ranks=ranks) for ranks in (1, 2))
    many = replace(one.model, optimizer=replace(one.model.optimizer, inner_steps=2_000, merge_step=0))
    alone, group = TrainerEngine(), TrainerProcess(limits=PATIENT, log_path=tmp_path / "trainer.log")
    alone.load(msgspec.structs.replace(one, model=many))
    batches = [make_batch(height, samples=4_000) for height in range(2)]
    try:
        await group.load(msgspec.structs.replace(two, model=many))
        replies = [await group.train(msgspec.structs.replace(batches[0], within_s=0.0))]
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                replies.append(await group.train(batches[1]))

            nursery.start_soon(go_on)
            await trio.sleep(2.0)  # of minutes
            await group.shorten(3.0)
        assert replies[0].inner_steps == 1
        assert 1 < replies[1].inner_steps < 2_000
        for batch, reply in zip(batches, replies, strict=True):
            left = iter(range(1, reply.inner_steps))
            expected = alone.train(batch, lambda: None, lambda took, left=left: not took or next(left, 0) > 0)
            assert (expected.inner_steps, expected.payload) == (reply.inner_steps, reply.payload)
        parts = [Contribution(payload=reply.payload, inner_steps=reply.inner_steps) for reply in replies]
        assert await apply(group, 2, *parts) == alone.apply(make_apply(2, *parts)).weight_part
    finally:
        await group.stop()


@pytest.mark.whole
async def test_what_one_rank_cannot_do_no_rank_does(load_request: LoadRequest, tmp_path: Path) -> None:
    group = TrainerProcess(limits=PATIENT, log_path=tmp_path / "trainer.log")
    try:
        await group.load(make_request(load_request, ranks=2))
        before = await apply(group, 0)
        refused = await train(group, 0, lr=float("nan"))
        assert "finite" in refused.refused
        assert await apply(group, 0) == before
        bad = Contribution(payload=b"x", inner_steps=1)
        with pytest.raises(TrainerError, match="the plan says"):
            await apply(group, 1, bad)
        sent = await train(group, 1)
        with pytest.raises(TrainerError, match="the plan says"):
            await train(group, 2, bad)
        assert await apply(group, 2) == before
        assert await apply(group, 2, Contribution(payload=sent.payload, inner_steps=STEPS)) != before
    finally:
        await group.stop()
