"""Local steps in the trainer's engine: a round in two calls, and what ends it early."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import trio

from psyche.core.encoding.plan import TransformPlan, decode_plan, get_payload_bytes
from psyche.core.state.state import ZERO32, InnerOptimizer, Model, Optimizer, OptimizerKind
from psyche.errors import TrainerError
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.local.exchange import get_values
from psyche.modeling.trainer import decoding
from psyche.modeling.trainer.batch import Cancelled
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.fault import VARIABLE
from psyche.modeling.trainer.process import TrainerProcess
from psyche.modeling.verification.openings import decode_opening, draw_chunks, get_opening_bytes
from psyche.wire.crypto import blake3_hash
from psyche.wire.data import NOT_COUNTED
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    Contribution,
    LoadRequest,
    MergeRequest,
    OpenRequest,
    SentResult,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

SAMPLES, LENGTH, STEPS, MERGE = 8, 16, 4, 2
OPTIMIZER = Optimizer(
    OptimizerKind.LOCAL_STEPS, clip_grad_norm=1.0, weight_decay=0.1, inner_steps=STEPS, merge_step=MERGE,
    compression_topk=4, compression_chunk=8, value_bits=2, error_decay=0.95, outer_rate=1.0,
)  # fmt: skip


@pytest.fixture
def run_model(run_model: Model) -> Model:
    return replace(run_model, optimizer=OPTIMIZER)


@pytest.fixture
def make_engine(load_request: LoadRequest) -> Callable[..., TrainerEngine]:
    """Makes an engine; keywords replace settings of the optimizer."""

    def make(
        path: Path | None = None, *, keep_momentum: bool = True, verifies: bool = False, **changes: object
    ) -> TrainerEngine:
        model = replace(load_request.model, optimizer=replace(OPTIMIZER, **changes))
        source: dict[str, object] = {} if path is None else {"path": str(path), "is_snapshot": True}
        source |= {"keep_momentum": keep_momentum, "verifies": verifies}
        engine = TrainerEngine()
        engine.load(msgspec.structs.replace(load_request, model=model, micro_batch_size=SAMPLES, **source))
        return engine

    return make


@pytest.fixture
def engine(make_engine: Callable[..., TrainerEngine]) -> TrainerEngine:
    return make_engine()


def make_request(height: int, samples: int = SAMPLES, seed: int = 0) -> TrainRequest:
    ids = np.random.default_rng([height, seed]).integers(0, 64, size=(samples, LENGTH), dtype="<u4")
    return TrainRequest(
        epoch=0, height=height, step=height + 1, lr=1e-2, next_lr=1e-2, lookahead_lr=0.0, tokens=ids.tobytes(),
        samples=samples, sequence_length=LENGTH, decided=(), in_flight=True,
    )  # fmt: skip


def train(engine: TrainerEngine, height: int, samples: int = SAMPLES, seed: int = 0, **changes: object) -> TrainReply:
    beat = changes.pop("beat", None)
    call = (msgspec.structs.replace(make_request(height, samples, seed), **changes),)
    return engine.train(*call) if beat is None else engine.train(*call, beat)  # pyright: ignore[reportArgumentType]


def contribute(reply: TrainReply) -> Contribution:
    return Contribution(payload=reply.payload, inner_steps=reply.inner_steps)


def apply(engine: TrainerEngine, height: int, *parts: Contribution) -> ApplyReply:
    return engine.apply(
        ApplyRequest(
            height=height, lr=1e-2, payloads=tuple(p.payload for p in parts), run_update=True, full_digest=True,
            random_seed=0, inner_steps=tuple(p.inner_steps for p in parts),
        )
    )  # fmt: skip


def read_weights(engine: TrainerEngine) -> dict[str, bytes]:
    loaded = engine._loaded
    assert loaded is not None
    return {name: tensor.detach().numpy().tobytes() for name, tensor in loaded.replica.parameters.items()}


def read_memory(engine: TrainerEngine) -> dict[str, bytes]:
    state = engine._get_loaded().replica.local.exchange.memory.get_state()
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def stop_at(call: int) -> Callable[[], None]:
    """A beat that cancels at its `call`-th call, counted from 1."""
    left = [call]

    def beat() -> None:
        left[0] -= 1
        if not left[0]:
            raise Cancelled

    return beat


def test_a_round_at_height_0_is_one_call_and_lowers_the_loss_once_applied(engine: TrainerEngine) -> None:
    before = read_weights(engine)
    losses: list[float] = []
    for height in range(6):
        reply = train(engine, 0, in_flight=False, decided=(SentResult(height=0, applied=True),) if height else ())
        assert (reply.waits_for_merge, reply.inner_steps, reply.train_count) == (False, STEPS, height + 1)
        losses.append(reply.loss)
        if not height:
            assert read_weights(engine) == before, "the masters wait for the apply"
        apply(engine, height, contribute(reply))
    assert losses[-1] < losses[0] - 0.3
    assert read_weights(engine) != before


def test_with_overlap_a_round_waits_for_its_merge_and_starts_from_the_own_result(engine: TrainerEngine) -> None:
    first = contribute(train(engine, 0))
    before = read_weights(engine)
    waiting = train(engine, 1, own=(first,))
    assert (waiting.waits_for_merge, waiting.payload, waiting.inner_steps) == (True, b"", MERGE)
    assert read_weights(engine) != before
    done = engine.merge(MergeRequest(held=(first,)))
    assert (done.waits_for_merge, done.inner_steps, done.tokens) == (False, STEPS, SAMPLES * (LENGTH - 1))
    assert len(done.payload) == get_payload_bytes(engine._get_loaded().replica.plan)
    assert read_weights(engine) == before


def test_a_merge_moves_what_later_inner_steps_start_from_and_is_no_part_of_what_they_moved(
    make_engine: Callable[..., TrainerEngine],
) -> None:
    """With inner steps that move nothing there is nothing to send, whatever is merged between them."""
    own, other = (contribute(train(make_engine(), 0, seed=seed)) for seed in range(2))
    engine = make_engine(weight_decay=0.0)
    assert train(engine, 1, own=(own,), lr=0.0, next_lr=0.0).waits_for_merge
    assert engine._loaded is not None
    replica = engine._loaded.replica
    before = [weight.detach().clone() for weight in replica.parameters.values()]
    replica.merge([own, other])
    assert not all(map(torch.equal, before, replica.parameters.values()))
    sent = decode_payload(replica.plan, engine.merge(MergeRequest(held=(own, other))).payload)
    assert max(float(np.abs(get_values(sets)).max()) for sets in sent) < 1e-6, "what rounding leaves"


@pytest.mark.parametrize("calls", [1, MERGE, MERGE + 1, MERGE + 2, STEPS + MERGE])
def test_a_round_cancelled_before_or_after_the_merge_leaves_masters_and_error_memory_as_they_were(
    engine: TrainerEngine, calls: int
) -> None:
    first = contribute(train(engine, 0))
    before = read_weights(engine), read_memory(engine)
    beat = stop_at(calls)
    reply = train(engine, 1, own=(first,), beat=beat)
    if reply.waits_for_merge:
        reply = engine.merge(MergeRequest(held=(first,)), beat)
    assert (reply.cancelled, reply.payload) == (True, b"")
    assert (read_weights(engine), read_memory(engine)) == before
    assert train(engine, 2).waits_for_merge, "and it goes on"


def test_a_round_that_is_given_up_at_its_merge_leaves_the_masters_to_whoever_calls_next(engine: TrainerEngine) -> None:
    first = contribute(train(engine, 0))
    before = read_weights(engine)
    train(engine, 1, own=(first,))
    empty = engine.apply(
        ApplyRequest(height=1, lr=1e-2, payloads=(), run_update=False, full_digest=True, random_seed=0)
    )  # fmt: skip
    assert read_weights(engine) == before
    with pytest.raises(TrainerError, match="no round waits for it"):
        engine.merge(MergeRequest(held=(first,)))
    assert empty.weight_part == apply(engine, 1).weight_part


def test_a_merge_of_a_malformed_result_is_refused_and_ends_the_round(engine: TrainerEngine) -> None:
    first = contribute(train(engine, 0))
    before = read_weights(engine)
    for bad, text in (
        (Contribution(payload=b"x", inner_steps=1), "the plan says"),
        (msgspec.structs.replace(first, inner_steps=STEPS + 1), "must be 1 to 4"),
        (msgspec.structs.replace(first, inner_steps=0), "of 0 inner steps"),
    ):
        assert train(engine, 1, own=(first,)).waits_for_merge
        with pytest.raises(TrainerError, match=text):
            engine.merge(MergeRequest(held=(first, bad)))
        assert read_weights(engine) == before
        with pytest.raises(TrainerError, match=text):
            apply(engine, 1, bad)
        assert read_weights(engine) == before


def test_a_merged_result_that_the_record_decides_against_moves_no_master(
    make_engine: Callable[..., TrainerEngine],
) -> None:
    """Two members, of which one has merged what is never applied, have equal weights after the next set."""
    engine, other = make_engine(), make_engine()
    own, odd = contribute(train(engine, 0)), contribute(train(other, 0, seed=1))
    train(engine, 1, own=(own,))
    engine.merge(MergeRequest(held=(own, odd)))
    assert apply(engine, 2, own).weight_part == apply(other, 2, own).weight_part


def test_what_the_record_leaves_out_comes_with_a_later_result(make_engine: Callable[..., TrainerEngine]) -> None:
    """R8: with inner steps that move nothing, the second result is the first one again, once that is given back."""
    engine = make_engine(error_decay=1.0)
    first = train(engine, 0)
    decided = (SentResult(height=0, applied=False),)
    second = train(engine, 1, decided=decided, in_flight=False, lr=0.0, next_lr=0.0)
    plan = engine._get_loaded().replica.plan
    for one, two in zip(decode_payload(plan, first.payload), decode_payload(plan, second.payload), strict=True):
        assert np.array_equal(one.indices, two.indices)


def test_fewer_samples_than_inner_steps_are_fewer_steps_and_still_merge(engine: TrainerEngine) -> None:
    first = contribute(train(engine, 0, samples=1))
    assert first.inner_steps == 1
    waiting = train(engine, 1, samples=1, own=(first,))
    assert (waiting.waits_for_merge, waiting.inner_steps) == (True, 0), "its only batch is the last"
    assert engine.merge(MergeRequest(held=(first,))).inner_steps == 1
    assert train(engine, 2, samples=3).waits_for_merge
    assert engine.merge(MergeRequest(held=())).inner_steps == 3


def test_members_weigh_by_the_inner_steps_that_they_did(make_engine: Callable[..., TrainerEngine]) -> None:
    one, two = (make_engine() for _ in range(2))
    whole, half = contribute(train(one, 0)), contribute(train(two, 0, samples=2, seed=1))
    assert (whole.inner_steps, half.inner_steps) == (STEPS, 2)
    assert apply(one, 1, whole, half).weight_part == apply(two, 1, half, whole).weight_part
    equal = msgspec.structs.replace(half, inner_steps=STEPS)
    assert apply(make_engine(), 1, whole, equal).weight_part != apply(one, 2).weight_part


def give_time(steps: int) -> Callable[[float], bool]:
    """Time for so many inner steps, for the question comes before each one but the first and at its safe points."""
    left = [steps]

    def has_time(seconds: float) -> bool:
        left[0] -= seconds > 0
        return left[0] > 0

    return has_time


def test_a_round_that_is_cut_short_sends_what_its_inner_steps_have_moved_so_far(
    make_engine: Callable[..., TrainerEngine],
) -> None:
    """LS9: the step that was given up, or not begun, leaves no trace."""
    engine, stopped, given_up = (make_engine() for _ in range(3))
    before = read_weights(engine)
    whole = train(engine, 0)
    short = stopped.train(make_request(0), lambda: None, give_time(2))
    assert (short.inner_steps, short.waits_for_merge, short.tokens) == (2, False, SAMPLES // 2 * (LENGTH - 1))
    assert read_weights(stopped) == before
    assert short.payload not in (b"", whole.payload)
    beats: list[None] = []
    cut = given_up.train(make_request(0), lambda: beats.append(None), lambda _: len(beats) < 5)
    assert (cut.inner_steps, cut.payload) == (2, short.payload), "cut at the first safe point of the third step"
    assert train(stopped, 1).waits_for_merge, "and the next round is whole"


def test_the_first_inner_step_is_done_whatever_the_time(engine: TrainerEngine) -> None:
    reply = engine.train(make_request(0), lambda: None, lambda _: False)
    assert (reply.inner_steps, bool(reply.payload)) == (1, True)


def test_a_round_that_is_cut_short_before_its_merge_has_none_and_after_it_ends_there(engine: TrainerEngine) -> None:
    first = contribute(train(engine, 0))
    request = msgspec.structs.replace(make_request(1), own=(first,))
    cut = engine.train(request, lambda: None, give_time(1))
    assert (cut.waits_for_merge, cut.inner_steps) == (False, 1)
    assert engine.train(request).waits_for_merge
    done = engine.merge(MergeRequest(held=(first,)), lambda: None, lambda _: False)
    assert (done.waits_for_merge, done.inner_steps) == (False, MERGE)
    assert done.payload


def test_a_round_that_is_cancelled_is_not_cut_short(engine: TrainerEngine) -> None:
    before = read_weights(engine), read_memory(engine)
    reply = engine.train(make_request(0), stop_at(3), lambda seconds: seconds > 0)
    assert (reply.cancelled, reply.payload) == (True, b"")
    assert (read_weights(engine), read_memory(engine)) == before


@pytest.mark.whole
async def test_a_trainer_process_cuts_a_round_short_when_it_is_told_or_its_time_is_up(
    load_request: LoadRequest, tmp_path: Path
) -> None:
    """LS9, in a process of its own, with far more samples than there is time for."""
    model = replace(load_request.model, optimizer=replace(OPTIMIZER, inner_steps=2_000, merge_step=0))
    trainer = TrainerProcess(log_path=tmp_path / "trainer.log")
    await trainer.load(msgspec.structs.replace(load_request, model=model, micro_batch_size=2))
    replies = [await trainer.train(msgspec.structs.replace(make_request(0, 4_000), within_s=0.0))]
    async with trio.open_nursery() as nursery:

        async def go_on() -> None:
            replies.append(await trainer.train(make_request(1, 4_000)))

        nursery.start_soon(go_on)
        await trio.sleep(2.0)  # of minutes; there is no quiet moment to wait for: signs of life come all the time
        await trainer.shorten(3.0)
    await trainer.stop()
    assert [bool(reply.payload) for reply in replies] == [True, True]
    assert replies[0].inner_steps == 1
    assert 1 < replies[1].inner_steps < 2_000


def test_inner_batches_without_a_counted_label_are_left_out(engine: TrainerEngine) -> None:
    rows = np.random.default_rng(1).integers(0, 64, size=(SAMPLES, LENGTH, 3), dtype="<u4")
    rows[..., 2] = np.arange(LENGTH)
    rows[: SAMPLES // 2, :, 1] = np.array(NOT_COUNTED, dtype="<i4").view("<u4")
    reply = train(engine, 0, tokens=rows.tobytes(), has_labels=True)
    assert (reply.inner_steps, reply.tokens) == (STEPS // 2, SAMPLES // 2 * (LENGTH - 1))


@pytest.mark.parametrize("changes", [{"lr": 1e38, "next_lr": 1e38}, {"lr": float("nan"), "next_lr": float("nan")}])
def test_a_round_that_ends_in_numbers_that_are_not_finite_sends_nothing_and_the_next_goes_on(
    engine: TrainerEngine, changes: dict[str, float]
) -> None:
    before = read_weights(engine), read_memory(engine)
    reply = train(engine, 0, **changes)
    assert "finite" in reply.refused
    assert (reply.payload, reply.train_count) == (b"", 0)
    assert (read_weights(engine), read_memory(engine)) == before
    assert train(engine, 0).payload


def test_a_change_that_is_not_finite_is_refused_where_no_later_gradient_shows_it(engine: TrainerEngine) -> None:
    before = read_weights(engine), read_memory(engine)
    reply = train(engine, 0, samples=1, lr=float("nan"), next_lr=float("nan"))
    assert "the change of tensor" in reply.refused
    assert (read_weights(engine), read_memory(engine)) == before


@pytest.mark.parametrize("kind", list(InnerOptimizer))
def test_a_trainer_that_resumes_equals_one_that_never_stopped(
    make_engine: Callable[..., TrainerEngine], tmp_path: Path, kind: InnerOptimizer
) -> None:
    """Error memory, inner state and the count of inner steps are a member's own, and its snapshot has them (LS8)."""
    engine = make_engine(inner_optimizer=kind)
    for height in range(2):
        train(engine, height, own=())
        sent = contribute(engine.merge(MergeRequest(held=()))) if height else None
    assert sent is not None
    engine.snapshot(
        SnapshotRequest(
            kind="resume", path=str(tmp_path / "s"), epoch=0, step=3, data_index=0, chain=bytes(32), digest=bytes(32)
        )
    )  # fmt: skip
    resumed = make_engine(tmp_path / "s", inner_optimizer=kind)
    newcomer = make_engine(tmp_path / "s", keep_momentum=False, inner_optimizer=kind)
    payloads: list[bytes] = []
    for one in (engine, resumed, newcomer):
        train(one, 2, own=(sent,))
        payloads.append(one.merge(MergeRequest(held=(sent,))).payload)
    assert payloads[0] == payloads[1]
    assert payloads[0] != payloads[2], "a newcomer has nothing of it"


def test_roots_are_those_of_the_error_memory_where_a_run_verifies_and_cost_others_nothing(
    make_engine: Callable[..., TrainerEngine],
) -> None:
    """LS7, V5: an opening has what the payload was chosen from."""
    engine, plain = make_engine(verifies=True), make_engine()
    replies, others = ([train(one, 0), train(one, 1, in_flight=False)] for one in (engine, plain))
    assert [(one.payload, one.work) for one in others] == [(one.payload, None) for one in replies]
    works = [reply.work for reply in replies if reply.work is not None]
    assert (works[0].table, works[0].momentum_before) == (b"", ZERO32)
    assert works[1].momentum_before == works[0].momentum_after != works[1].momentum_after
    replica = engine._get_loaded().replica
    seed, count = bytes([7]) * 32, 8
    places = draw_chunks(replica.plan, seed, count)
    raw = engine.open(OpenRequest(height=1, seed=seed, opened_chunks=count)).opening
    half = get_opening_bytes(replica.plan, places)  # of the roots before and after
    decode_opening(replica.plan, places, works[1].momentum_before, raw[:half])
    sets = decode_payload(replica.plan, replies[1].payload)
    for place, coefficients in decode_opening(replica.plan, places, works[1].momentum_after, raw[half:]):
        row = np.frombuffer(coefficients, "<f4")
        assert row.tobytes() == replica.memory.coefficients[place.group][place.chunk].numpy().tobytes()
        chosen = sets[place.group].indices[place.chunk]
        largest = np.argsort(-np.abs(row), kind="stable")[: replica.plan.k]
        assert sorted(chosen[chosen < row.size]) == sorted(index for index in largest if row[index])


def test_statistics_are_those_of_what_is_sent_and_moved_and_change_no_bit(
    make_engine: Callable[..., TrainerEngine],
) -> None:
    engine = make_engine()
    measured, plain = train(engine, 0, with_statistics=True), train(make_engine(), 0)
    assert (measured.payload, plain.statistics) == (plain.payload, ())
    replica = engine._get_loaded().replica
    assert [one.name for one in measured.statistics] == sorted(replica.parameters)
    sent = sum(float(np.abs(get_values(sets)).sum()) for sets in decode_payload(replica.plan, measured.payload))
    assert sum(one.update_energy for one in measured.statistics) == pytest.approx(sent)
    moved = sum(float(one.abs().sum()) for one in replica.memory.coefficients)  # before the first one e is zero
    assert sum(one.grad_energy for one in measured.statistics) == pytest.approx(moved, rel=1e-4)
    assert all(one.momentum_norm > 0 for one in measured.statistics)
    most = replica.plan.k / min(group.area for group in replica.plan.groups)
    assert all(0 <= one.agreement <= most for one in measured.statistics)
    assert train(engine, 1, lr=float("nan"), next_lr=float("nan"), with_statistics=True).statistics == ()


def test_the_plan_is_one_of_local_steps(load_request: LoadRequest) -> None:
    plan = decode_plan(TrainerEngine().load(load_request).plan)
    assert (plan.k, plan.one_bit, plan.scaled_bits) == (4, False, 2)


def test_a_payload_that_was_prepared_is_not_decoded_again(
    make_engine: Callable[..., TrainerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded in a thread of its own, it moves the weights as it does otherwise, or is refused as it is otherwise."""
    engine, other = make_engine(), make_engine()
    sent = contribute(train(engine, 0))
    expected = apply(other, 1, sent).weight_part
    threads: list[str] = []
    real = decoding.decode_payload

    def decode(plan: TransformPlan, payload: bytes) -> list[ChunkSets]:
        threads.append(threading.current_thread().name)
        return real(plan, payload)

    monkeypatch.setattr(decoding, "decode_payload", decode)
    for _ in range(2):
        engine.prepare(sent.payload)
    train(engine, 1, own=(sent,))
    engine.merge(MergeRequest(held=(sent,)))
    assert apply(engine, 1, sent).weight_part == expected
    assert len(threads) == 1
    assert threads[0].startswith("decode")
    engine.prepare(b"x")
    with pytest.raises(TrainerError, match="the plan says"):
        apply(engine, 2, Contribution(payload=b"x", inner_steps=1))


def test_only_the_newest_payloads_stay_decoded(engine: TrainerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [train(engine, height, in_flight=False).payload for height in range(3)]
    monkeypatch.setattr(decoding, "KEPT_BYTES", 2 * len(payloads[0]))
    decoder = engine._get_loaded().replica.decoder
    for payload in payloads:
        engine.prepare(payload)
    assert list(decoder._kept) == [blake3_hash(payload) for payload in payloads[1:]]
    assert decoder.decode(payloads[0]), "the others are decoded when they are asked for"


@pytest.mark.whole
@pytest.mark.parametrize("fault", ["crash@2", "crash:merge@1", "crash:merge@2"], ids=["before", "in", "after"])
async def test_a_trainer_that_is_killed_around_a_merge_goes_on_from_its_snapshot_as_if_it_had_not_been(
    fault: str, load_request: LoadRequest, tmp_path: Path
) -> None:
    model = replace(load_request.model, optimizer=OPTIMIZER)
    request = msgspec.structs.replace(load_request, model=model, micro_batch_size=SAMPLES)
    path = tmp_path / "resume"
    snapshot = SnapshotRequest(
        kind="resume", path=str(path), epoch=0, step=2, data_index=8, chain=bytes(32), digest=bytes(32)
    )  # fmt: skip

    async def go_on(trainer: TrainerProcess) -> list[bytes]:
        replies: list[bytes] = []
        for height in (1, 2):
            reply = await trainer.train(make_request(height))
            assert reply.waits_for_merge
            replies.append((await trainer.merge(MergeRequest(held=()))).payload)
        return replies

    trainer = TrainerProcess(environment={VARIABLE: fault}, log_path=tmp_path / "trainer.log")
    await trainer.load(request)
    await trainer.train(make_request(0))
    await trainer.snapshot(snapshot)
    with pytest.raises(TrainerFailure) as failure:
        await go_on(trainer)
    assert failure.value.kind is FailureKind.CRASHED
    payloads: list[list[bytes]] = []
    for _ in range(2):  # the second one is a twin that nothing befell
        trainer._environment = {}
        await trainer.restart()
        await trainer.load(msgspec.structs.replace(request, path=str(path), is_snapshot=True))
        payloads.append(await go_on(trainer))
    await trainer.stop()
    assert payloads[0] == payloads[1]
    assert all(payloads[0])
