"""One model on several ranks, real processes with gloo: they train, apply and store what one rank does."""

import math
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import trio
from kits.leftovers import until_dead
from kits.models import write_config
from torch.distributed import HashStore, destroy_process_group  # pyright: ignore[reportPrivateImportUsage]

from psyche.core.encoding.plan import TransformPlan, decode_plan
from psyche.core.state.state import Lookahead, Model
from psyche.errors import TrainerError
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.compiled import LEAST_PARAMETERS
from psyche.modeling.distro.layout import compute_cut_share
from psyche.modeling.inference.scores import Scores
from psyche.modeling.model import init_model, load_model
from psyche.modeling.snapshot import read_snapshot_info
from psyche.modeling.trainer import replica
from psyche.modeling.trainer.batch import Cancelled
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.fault import VARIABLE
from psyche.modeling.trainer.process import TrainerProcess, WatchdogLimits
from psyche.modeling.trainer.ranks.group import Group
from psyche.modeling.trainer.ranks.shard import make_shard
from psyche.modeling.trainer.replica import Replica
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import (
    OTHER_WEIGHTS,
    ApplyRequest,
    CheckRequest,
    Contribution,
    LoadRequest,
    ScoreReply,
    ScoreRequest,
    ScoreRow,
    SentResult,
    SnapshotRequest,
    TrainRequest,
)

SAMPLES, LENGTH, ROUNDS = 7, 16, 20  # 7 samples divide into no equal parts
PATIENT = WatchdogLimits(start_s=900.0, unknown_s=900.0)
SIZES = [(2, 1), (2, 2), (1, 2), (4, 1)]  # data, tensor
CALLS = ["build", "fill", "read", "compute", "compress", "apply", "get_momentum", "load_momentum"]


def start(tmp_path: Path, fault: str = "", limits: WatchdogLimits = PATIENT) -> TrainerProcess:
    return TrainerProcess(limits=limits, log_path=tmp_path / "trainer.log", environment={VARIABLE: fault})


def train_request(height: int, **changes: object) -> TrainRequest:
    ids = np.random.default_rng(height).integers(0, 60, size=(SAMPLES, LENGTH), dtype="<u4")
    request = TrainRequest(
        epoch=0, height=height, step=height + 1, lr=1e-2, lookahead_lr=1e-2 if height else 0.0, tokens=ids.tobytes(),
        samples=SAMPLES, sequence_length=LENGTH, decided=(), in_flight=True,
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)


def apply_request(height: int, *payloads: bytes, full: bool = True) -> ApplyRequest:
    return ApplyRequest(
        height=height, lr=1e-2, payloads=payloads, run_update=True, full_digest=full, random_seed=height
    )


def snapshot_request(path: Path, kind: str = "resume") -> SnapshotRequest:
    return SnapshotRequest(
        kind=kind, path=str(path), epoch=2, step=9, data_index=45, chain=b"\x03" * 32, digest=b"\x04" * 32,
        prev_commitment=b"\x05" * 32,
    )  # fmt: skip


def read_folder(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def join_values(plan: TransformPlan, payload: bytes) -> np.ndarray:
    """All coefficients of a payload that leaves none out, in one row."""
    found = []
    for group, sets in zip(plan.groups, decode_payload(plan, payload), strict=True):
        row = np.zeros((group.chunks, group.area + 1), np.float32)
        np.put_along_axis(row, sets.indices, sets.values, axis=1)
        found.append(row[:, :-1].reshape(-1))
    return np.concatenate(found)


async def check_gradients(
    alone: TrainerProcess, group: TrainerProcess, load: LoadRequest, sizes: Mapping[str, int]
) -> None:
    """Sent as values, and all of them, the first momentum is the gradient's transform, which keeps every distance."""
    load = msgspec.structs.replace(load, model=make_model(load.model, quantize_1bit=False, compression_topk=64))
    plan = decode_plan((await alone.load(load)).plan)
    assert decode_plan((await group.load(msgspec.structs.replace(load, **sizes))).plan) == plan
    request = train_request(0, with_statistics=True)
    one, several = await alone.train(request), await group.train(request)
    assert (several.loss, several.grad_norm) == pytest.approx((one.loss, one.grad_norm), rel=1e-5)
    assert [own.name for own in one.statistics] == [part.name for part in several.statistics]
    for own, part in zip(one.statistics, several.statistics, strict=True):
        assert msgspec.structs.astuple(part)[1:] == pytest.approx(msgspec.structs.astuple(own)[1:], rel=1e-3, abs=1e-6)
    gradient, other = join_values(plan, one.payload), join_values(plan, several.payload)
    assert np.linalg.norm(other - gradient) <= 1e-6 * np.linalg.norm(gradient)


def make_model(model: Model, **changes: object) -> Model:
    return replace(model, optimizer=replace(model.optimizer, **changes))


@pytest.mark.whole
@pytest.mark.parametrize(("data", "tensor"), SIZES)
async def test_a_group_of_ranks_is_one_member(
    data: int, tensor: int, load_request: LoadRequest, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"data_parallelism": data, "tensor_parallelism": tensor}
    divided = msgspec.structs.replace(load_request, micro_batch_size=1, activation_checkpointing=True, **sizes)
    alone, group = start(tmp_path), start(tmp_path)
    try:
        assert (await group.check(CheckRequest(device="cpu", **sizes))).device == f"{data * tensor} x cpu"
        await check_gradients(alone, group, load_request, sizes)
        first, second = await alone.load(load_request), await group.load(divided)
        assert msgspec.structs.replace(second, device="cpu") == first
        payload = b""
        for height in range(ROUNDS):
            decided = (SentResult(height=height - 1, applied=True),) if height else ()
            payload = (await alone.train(train_request(height, decided=decided))).payload
            one, several = [await t.apply(apply_request(height, payload)) for t in (alone, group)]
            assert several.weight_part == one.weight_part
        assert (await group.train(train_request(ROUNDS))).train_count == 1
        await check_storing(alone, group, divided, load_request, tmp_path)
    finally:
        await alone.stop()
        await group.stop()


async def check_storing(
    alone: TrainerProcess, group: TrainerProcess, divided: LoadRequest, load_request: LoadRequest, tmp_path: Path
) -> None:
    """A snapshot of one rank, loaded by several, is written again byte by byte; so it is the other way round."""
    written, again, export = tmp_path / "one", tmp_path / "several", tmp_path / "export"
    await alone.snapshot(snapshot_request(written))
    stored = msgspec.structs.replace(divided, path=str(written), is_snapshot=True)
    assert (await group.load(stored)).train_count == ROUNDS
    await group.snapshot(snapshot_request(again))
    assert read_folder(again) == read_folder(written)
    for trainer, name in ((alone, "a"), (group, "b")):
        await trainer.snapshot(snapshot_request(export / name, "export"))
    assert read_folder(export / "a") == read_folder(export / "b")


@pytest.mark.whole
@pytest.mark.usefixtures("trainer_host")
async def test_samples_of_two_ranks_are_summed_like_two_micro_batches(
    load_request: LoadRequest, tmp_path: Path
) -> None:
    """Two addends have one sum, so that even the bits of a payload are those of one rank."""
    request = msgspec.structs.replace(
        load_request, model=make_model(load_request.model, clip_grad_norm=None), micro_batch_size=4
    )
    alone, group = TrainerEngine(), start(tmp_path)
    try:
        alone.load(request)
        await group.load(msgspec.structs.replace(request, data_parallelism=2))
        expected = alone.train(train_request(0))
        assert (await group.train(train_request(0))).payload == expected.payload
        (rank,) = find_children(group.pid)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(TrainerFailure, match="crashed during apply") as caught:
            await group.apply(apply_request(0))
        assert caught.value.kind is FailureKind.CRASHED
    finally:
        await group.stop()


@pytest.mark.whole
@pytest.mark.parametrize("lookahead", Lookahead)
async def test_compiled_loops_of_two_ranks_send_and_apply_what_those_of_one_do(
    lookahead: Lookahead, load_request: LoadRequest, tmp_path: Path
) -> None:
    """They are for models that are not tiny."""
    sizes = {"vocab_size": 8_192, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    init_model(write_config(tmp_path / "config.json", "llama", **sizes), tmp_path / "model", 7)
    model = make_model(load_request.model, clip_grad_norm=None, compression_chunk=64, lookahead=lookahead)
    request = msgspec.structs.replace(load_request, path=str(tmp_path / "model"), model=model, micro_batch_size=4)
    alone, group = TrainerEngine(), start(tmp_path)
    try:
        plan = decode_plan(alone.load(request).plan)
        await group.load(msgspec.structs.replace(request, data_parallelism=2))
        assert sum(one.chunks * one.area for one in plan.groups) >= 2 * LEAST_PARAMETERS
        assert compute_cut_share(plan, 2) == 1
        own = decided = ()
        for height in range(3):
            train = train_request(height, decided=decided, own=own)
            expected = alone.train(train).payload
            assert (await group.train(train)).payload == expected, height
            own, decided = (Contribution(payload=expected),), (SentResult(height=height, applied=True),)
            apply = apply_request(height, expected)
            assert (await group.apply(apply)).weight_part == alone.apply(apply).weight_part
        alone.snapshot(snapshot_request(tmp_path / "one"))
        await group.snapshot(snapshot_request(tmp_path / "two"))
        assert read_folder(tmp_path / "one") == read_folder(tmp_path / "two")
    finally:
        await group.stop()


@pytest.mark.whole
@pytest.mark.parametrize(("data", "tensor"), SIZES[:3])
async def test_ranks_score_what_one_does_and_train_as_if_they_had_not(
    data: int, tensor: int, load_request: LoadRequest, tmp_path: Path
) -> None:
    request = msgspec.structs.replace(load_request, scores=True)
    divided = msgspec.structs.replace(request, data_parallelism=data, tensor_parallelism=tensor)
    alone, group = TrainerEngine(), start(tmp_path)
    try:
        reply = alone.load(request)
        digest = compute_state_digest(reply.chain, reply.weight_root)
        await group.load(divided)
        first = (await group.train(train_request(0))).payload
        await group.apply(apply_request(0, first))
        second = (await group.train(train_request(1))).payload
        await group.load(divided)
        await check_scores(alone, group, digest)
        await group.apply(apply_request(0, first))  # before anything is trained with the weights that were read
        assert (await group.score(make_score(digest))).refused == OTHER_WEIGHTS
        alone.apply(apply_request(0, first))
        await check_scores(alone, group, b"")
        assert (await group.load(divided)).train_count == 0
        assert (await group.train(train_request(0))).payload == first
        await check_giving_way(group)
        await group.apply(apply_request(0, first))
        assert (await group.train(train_request(1))).payload == second
        await group.snapshot(snapshot_request(tmp_path / "certified"))
        written = read_snapshot_info(tmp_path / "certified")
        certified = compute_state_digest(written.chain, written.weight_root)
        found, current = [list_values(await group.score(make_score(one))) for one in (certified, b"")]
        assert found == pytest.approx(current, abs=1e-5)
        assert len(found) == 3
    finally:
        await group.stop()


def test_a_rank_agrees_with_the_others_before_each_pass(
    load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group of one: what it scores, and what a call that comes before leaves done."""
    monkeypatch.setattr(replica, "PASS_S", math.inf)  # so that its passes are the same on a busy machine
    model = load_model(Path(load_request.path))
    expected = Scores(Replica(model, load_request.model.optimizer, torch.device("cpu")), 64, is_asked=True)
    group = Group(HashStore(), 0, 1, 1, torch.device("cpu"))
    try:
        shard = make_shard(group, model, load_request.model.optimizer, checkpointing=False, offload=False)
        found = Scores(shard, 64, is_asked=True)
        whole = found.score(make_score(b""), lambda: None, lambda _: True)
        own = expected.score(make_score(b""), lambda: None, lambda _: True)
        assert (whole.rows, whole.written) == (own.rows, own.written)
        left = iter(range(3))  # a row is two passes

        def beat() -> None:
            if next(left) == 2:
                raise Cancelled

        cut = found.score(make_score(b""), beat, lambda _: True)
        assert (cut.cancelled, cut.rows) == (True, whole.rows[: len(cut.rows)])
        assert len(cut.rows) < 2
        assert model.training
        late = found.score(make_score(b""), lambda: None, lambda _: False)
        assert (late.rows, late.written) == ((), whole.written[:1])
    finally:
        destroy_process_group()


def make_score(digest: bytes, times: int = 1) -> ScoreRequest:
    rows = (ScoreRow(context=(1, 2, 3), choices=((4,), (5, 6))), ScoreRow(context=(7,), choices=((8, 9, 10),)))
    return ScoreRequest(digest=digest, rows=rows * times, start=(1, 2, 3), tokens=12)


def list_values(reply: ScoreReply) -> list[float]:
    return [one[0] for row in reply.rows for one in row]


async def check_scores(alone: TrainerEngine, group: TrainerProcess, digest: bytes) -> None:
    expected, found = alone.score(make_score(digest)), await group.score(make_score(digest))
    assert [[one[1] for one in row] for row in found.rows] == [[one[1] for one in row] for row in expected.rows]
    assert list_values(found) == pytest.approx(list_values(expected), abs=1e-4)
    assert (len(found.written), found.written) == (12, expected.written)


async def check_giving_way(group: TrainerProcess) -> None:
    """A score of ten thousand rows ends at its next pass, and the request that ended it has its answer."""
    replies: list[ScoreReply] = []

    async def score() -> None:
        replies.append(await group.score(make_score(b"", 5_000)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(score)
        await trio.sleep(0.5)
        await group.check(CheckRequest(device="cpu"))
        assert [one.cancelled for one in replies] == [True]


@pytest.mark.whole
async def test_no_rank_outlives_a_trainer_that_is_killed(load_request: LoadRequest, tmp_path: Path) -> None:
    group = start(tmp_path)
    try:
        await group.load(msgspec.structs.replace(load_request, data_parallelism=2))
        assert group.pid
        (rank,) = find_children(group.pid)
        os.kill(group.pid, signal.SIGKILL)
        await until_dead(rank)
    finally:
        await group.stop()


def find_children(pid: int | None) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.whole
@pytest.mark.parametrize("call", CALLS)
async def test_a_rank_that_ends_in_any_call_ends_the_group_which_goes_on_from_a_snapshot(
    call: str, load_request: LoadRequest, tmp_path: Path
) -> None:
    request = msgspec.structs.replace(load_request, data_parallelism=2)
    group = start(tmp_path, f"crash:{call}@1#1")
    try:
        with pytest.raises(TrainerFailure) as caught:
            await use(group, request, tmp_path / "snapshot")
        assert caught.value.kind is FailureKind.CRASHED
    finally:
        await group.stop()
    group = start(tmp_path)
    try:
        await use(group, request, tmp_path / "snapshot")
    finally:
        await group.stop()


async def use(group: TrainerProcess, request: LoadRequest, path: Path) -> None:
    """Every call once."""
    await group.load(request)
    payload = (await group.train(train_request(0))).payload
    await group.apply(apply_request(0, payload))
    await group.snapshot(snapshot_request(path))
    await group.load(msgspec.structs.replace(request, path=str(path), is_snapshot=True))


@pytest.mark.whole
async def test_ranks_that_hang_or_lose_their_trainer_end(load_request: LoadRequest, tmp_path: Path) -> None:
    limits = WatchdogLimits(unknown_s=60.0, floor_s=10.0)
    group = start(tmp_path, "hang:apply@1#1", limits)
    await group.load(msgspec.structs.replace(load_request, data_parallelism=2))
    ranks = find_children(group.pid)
    with pytest.raises(TrainerFailure) as caught:
        await group.apply(apply_request(0))
    assert caught.value.kind is FailureKind.HUNG
    await until_dead(ranks[0])
    await group.stop()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"tensor_parallelism": 3}, "--tensor-parallelism 3: does not divide the model's num_attention_heads, 2"),
        ({"device": "cuda:0,99", "data_parallelism": 2}, "cuda"),
    ],
)
async def test_devices_that_cannot_be_had_are_refused(
    sizes: dict[str, object], text: str, load_request: LoadRequest, tmp_path: Path
) -> None:
    trainer = start(tmp_path)
    try:
        with pytest.raises(TrainerError, match=text):
            await trainer.load(msgspec.structs.replace(load_request, **sizes))
    finally:
        await trainer.stop()
