"""Choices are scored on the weights that a digest names, and training goes on as if nothing had been scored."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from psyche.errors import TrainerError
from psyche.modeling.inference import scores
from psyche.modeling.model import load_model
from psyche.modeling.trainer import replica
from psyche.modeling.trainer.batch import Cancelled
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import ApplyRequest, LoadRequest, ScoreRequest, ScoreRow, SnapshotRequest, TrainRequest

ROWS = (ScoreRow(context=(1, 2, 3), choices=((4,), (5, 6))), ScoreRow(context=(7,), choices=((8, 9, 10),)))
Scored = tuple[tuple[tuple[float, bool], ...], ...]


@pytest.fixture(autouse=True)
def _has_no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine other passes would be taken each time, and sums of other shapes have other last bits."""
    monkeypatch.setattr(replica, "PASS_S", math.inf)


def load(request: LoadRequest) -> tuple[TrainerEngine, bytes]:
    engine = TrainerEngine()
    reply = engine.load(msgspec.structs.replace(request, scores=True))
    return engine, compute_state_digest(reply.chain, reply.weight_root)


def train(engine: TrainerEngine, height: int) -> bytes:
    tokens = torch.arange(4 * 16, dtype=torch.int32).remainder(60).numpy().tobytes()
    payload = engine.train(
        TrainRequest(
            epoch=0, height=height, step=height + 1, lr=1e-2, lookahead_lr=0.0, tokens=tokens, samples=4,
            sequence_length=16, decided=(), in_flight=False,
        )
    ).payload  # fmt: skip
    engine.apply(
        ApplyRequest(height=height, lr=1e-2, payloads=(payload,), run_update=True, full_digest=False, random_seed=0)
    )
    return payload


def score(engine: TrainerEngine, digest: bytes = b"", beat: Callable[[], None] = lambda: None) -> Scored:
    return engine.score(ScoreRequest(rows=ROWS, digest=digest), beat).rows


@pytest.mark.parametrize("has_room", [True, False], ids=["a copy", "no room for a copy"])
def test_certified_weights_are_scored_while_they_are_there_and_training_is_as_without(
    load_request: LoadRequest, tmp_path: object, monkeypatch: pytest.MonkeyPatch, *, has_room: bool
) -> None:
    if not has_room:
        monkeypatch.setattr(scores, "get_free_bytes", lambda _device: 0)
    engine, digest = load(load_request)
    plain, _ = load(load_request)
    first = score(engine, digest)
    assert [len(row) for row in first] == [2, 1]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert first == score(engine)
    assert torch.equal(torch.get_rng_state(), before)
    assert train(engine, 0) == train(plain, 0)
    assert score(engine, digest) == (first if has_room else ())
    assert score(engine) != first
    assert train(engine, 1) == train(plain, 1)
    request = SnapshotRequest(
        kind="resume", path=f"{tmp_path}/certified", epoch=0, step=2, data_index=0, chain=b"\3" * 32, digest=bytes(32)
    )  # fmt: skip
    reply = engine.snapshot(request)
    certified = compute_state_digest(request.chain, reply.weight_root)
    assert score(engine, certified) == score(engine) != first, "what was written is what a quorum certifies"
    refused = engine.score(ScoreRequest(rows=ROWS, digest=digest))
    assert (refused.rows, refused.refused) == ((), "the weights of that digest are not here")


def test_a_score_ends_between_two_passes_and_what_is_done_counts(load_request: LoadRequest) -> None:
    engine, digest = load(load_request)
    whole, left = score(engine, digest), [3]

    def beat() -> None:
        left[0] -= 1
        if not left[0]:
            raise Cancelled

    reply = engine.score(ScoreRequest(rows=ROWS, digest=digest), beat)
    assert (reply.cancelled, reply.rows) == (True, whole[:1])
    late = engine.score(ScoreRequest(rows=ROWS, digest=digest), has_time=lambda _seconds: False)
    assert (late.cancelled, late.rows) == (False, ())


def test_certified_weights_write_what_is_most_likely_in_as_many_calls_as_it_takes(load_request: LoadRequest) -> None:
    engine, digest = load(load_request)
    whole = engine.score(ScoreRequest(digest=digest, start=(1, 2, 3), tokens=12)).written
    model: Any = load_model(Path(load_request.path)).eval()
    greedy = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert whole == tuple(greedy[0, 3:].tolist())
    train(engine, 0)
    left = [6]

    def beat() -> None:
        left[0] -= 1
        if not left[0]:
            raise Cancelled

    first = engine.score(ScoreRequest(digest=digest, start=(1, 2, 3), tokens=12), beat)
    assert (first.cancelled, 0 < len(first.written) < 12) == (True, True)
    rest = ScoreRequest(digest=digest, start=(1, 2, 3, *first.written), tokens=12 - len(first.written))
    assert first.written + engine.score(rest).written == whole
    with pytest.raises(TrainerError, match="token id is not below 64"):
        engine.score(ScoreRequest(digest=digest, start=(64,), tokens=1))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (ScoreRow(context=(1, 64), choices=((1,),)), "token id is not below 64"),
        (ScoreRow(context=(1,), choices=((-1,),)), "token id is not below 64"),
        (ScoreRow(context=(), choices=((1,),)), "one token or more"),
        (ScoreRow(context=(1,), choices=((1,), ())), "one token or more"),
        (ScoreRow(context=(1,), choices=()), "one choice or more"),
    ],
)
def test_what_a_model_cannot_read_is_refused(load_request: LoadRequest, row: ScoreRow, text: str) -> None:
    engine, _ = load(load_request)
    with pytest.raises(TrainerError, match=text):
        engine.score(ScoreRequest(rows=(row,)))
    assert len(score(engine)) == 2, "and the next ones are scored"


def test_a_trainer_that_was_loaded_for_training_alone_scores_nothing(load_request: LoadRequest) -> None:
    engine = TrainerEngine()
    engine.load(load_request)
    assert "scores nothing" in engine.score(ScoreRequest(rows=ROWS)).refused
