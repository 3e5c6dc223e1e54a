"""`psyche train`: small trainings of a tiny model on made-up data."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from kits.commands import call, refuse
from kits.tier import few

from psyche.core.committee.schedule import compute_learning_rate
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model import get_parameters, load_model
from psyche.standalone.corpus import Corpus
from psyche.standalone.report import describe_step
from psyche.standalone.settings import (
    InnerName,
    LookaheadName,
    OptimizerName,
    ScheduleName,
    ScheduleSettings,
    TrainSettings,
)
from psyche.standalone.sources import ReadingLoop
from psyche.standalone.steppers import StepReport
from psyche.standalone.train import StepProgress, train_model

LENGTH = 16
CONFIG = {
    "model_type": "llama",
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


LOCAL: dict[str, Any] = {"optimizer": OptimizerName.LOCAL, "inner_steps": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "model.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 rows that count upwards, which is quickly learnt."""
    path = tmp_path_factory.mktemp("data") / "tokens.bin"
    ((np.arange(64 * LENGTH) * 3) % 64).astype("<u2").tofile(path)
    return path


def make_settings(model: Path, data: Path, **changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "model": model, "data": (data,), "sequence_length": LENGTH, "total_batch": 6, "steps": 5, "chunk": 8,
        "topk": 8, "schedule": ScheduleSettings(lr=1e-2, warmup_steps=2), "eval_tokens": 4 * LENGTH,
        "eval_every": 2, "device": "cpu", "threads": 1,
    }  # fmt: skip
    return TrainSettings(**{**values, **changes})


WAYS: Final = {
    "adamw": {"optimizer": OptimizerName.ADAMW},
    "overlap": {"peers": 3, "overlap": True, "micro_batch": 1},
    "local overlap": {**LOCAL, "peers": 3, "overlap": True, "merge_step": 1, "inner_optimizer": InnerName.MUON},
    "local anew": {**LOCAL, "peers": 2, "inner_optimizer": InnerName.ADAMW_ANEW, "value_bits": 1, "inner_steps": 5},
    "one peer": {"peers": 1},
    "three peers": {"peers": 3},
    "own look-ahead": {"peers": 3, "overlap": True, "lookahead": LookaheadName.OWN},
    "values": {"peers": 2, "values": True},
    "local": {**LOCAL, "peers": 1},
}


@pytest.mark.parametrize("way", few(list(WAYS), 4))
def test_every_way_of_training_learns(model: Path, data: Path, way: str) -> None:
    result = train_model(make_settings(model, data, steps=12, **WAYS[way]))
    assert result.losses[12] < result.losses[1] - 0.1
    assert result.final_held_out < result.held_out[0] - 0.1
    assert sorted(result.held_out) == [0, *range(2, 13, 2)]
    assert result.tokens == 12 * 6 * LENGTH


def test_a_training_repeats_itself_bit_for_bit(model: Path, data: Path) -> None:
    settings = make_settings(model, data, peers=2, overlap=True)
    first, second = train_model(settings), train_model(settings)
    other = train_model(make_settings(model, data, peers=2, seed=1))
    assert (first.losses, first.held_out) == (second.losses, second.held_out)
    assert first.losses != other.losses


ONE_RATE = ScheduleSettings(name=ScheduleName.CONSTANT, lr=1e-2, warmup_steps=0)


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": OptimizerName.ADAMW}, {}, {"overlap": True}, {"values": True}, {**LOCAL, "overlap": True}],
    ids=["adamw", "distro", "overlap", "values", "local"],
)
def test_held_out_losses_are_measured_after_every_update_whatever_the_optimizer(
    model: Path, data: Path, changes: dict[str, Any]
) -> None:
    long = train_model(make_settings(model, data, steps=4, schedule=ONE_RATE, **changes))
    short = train_model(make_settings(model, data, steps=2, schedule=ONE_RATE, **changes))
    assert long.held_out[2] == short.held_out[2]


def test_measuring_changes_nothing_of_a_training(model: Path, data: Path) -> None:
    often = train_model(make_settings(model, data, overlap=True, eval_every=1))
    seldom = train_model(make_settings(model, data, overlap=True, eval_every=0))
    assert (often.losses, often.final_held_out) == (seldom.losses, seldom.final_held_out)


def test_overlap_applies_two_steps_late_and_drains_at_the_end(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psyche.modeling.distro.optimizer import Distro

    events: list[str] = []
    compress, apply = Distro.compress, Distro.apply

    def note_compress(self: Distro, *args: Any, **kwargs: Any) -> bytes:
        decided = ",".join(str(sent.height) for sent in args[2])
        events.append(f"train {kwargs['height']} after {decided or 'none'}")
        return compress(self, *args, **kwargs)

    def note_apply(self: Distro, *args: Any) -> None:
        events.append("apply")
        apply(self, *args)

    monkeypatch.setattr(Distro, "compress", note_compress)
    monkeypatch.setattr(Distro, "apply", note_apply)
    train_model(make_settings(model, data, steps=4, overlap=True, eval_every=0))
    assert events == [
        "train 1 after none", "train 2 after none", "apply", "train 3 after 1", "apply", "train 4 after 2", "apply",
        "apply",
    ]  # fmt: skip
    events.clear()
    train_model(make_settings(model, data, steps=2, eval_every=0))
    assert events == ["train 1 after none", "apply", "train 2 after 1", "apply"]


def test_the_result_is_exported_whole_and_loads(model: Path, data: Path, tmp_path: Path) -> None:
    train_model(make_settings(model, data, out=tmp_path / "out"))
    first = get_parameters(load_model(tmp_path / "out"))
    train_model(make_settings(tmp_path / "out", data, out=tmp_path / "more"))
    second = get_parameters(load_model(tmp_path / "more"))
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["more", "out"]


def test_a_byte_model_is_exported_with_its_tokenizer(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "model.json"
    config.write_text(json.dumps({**CONFIG, "vocab_size": 256}))
    train_model(make_settings(config, data, steps=1, out=tmp_path / "out"))
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_gradients_that_are_not_finite_end_the_training(model: Path, data: Path) -> None:
    rates = ScheduleSettings(lr=1e30, warmup_steps=0)
    with pytest.raises(TrainerError, match=r"non-finite gradient.*lower --lr"):
        train_model(make_settings(model, data, schedule=rates, peers=2))


def make_corpus(data: Path, **changes: Any) -> Corpus:
    with ReadingLoop() as loop:
        return Corpus(make_settings(Path(), data, seed=3, **changes), 64, loop)


def test_held_out_rows_are_never_trained_on(data: Path) -> None:
    corpus = make_corpus(data, eval_tokens=5 * LENGTH)
    whole = np.fromfile(data, "<u2").reshape(-1, LENGTH)
    assert (corpus.train_rows, corpus.held_out_rows) == (59, 5)
    np.testing.assert_array_equal(corpus.held_out(100), whole[59:])
    np.testing.assert_array_equal(corpus.held_out(2), whole[[59, 63]])
    for start in (0, 59):  # two passes, each in its own order, each with every row once
        rows = corpus.take(start, 59)
        np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(whole[:59], axis=0))
    assert corpus.take(0, 59).tolist() != corpus.take(59, 59).tolist()


def test_held_out_files_stand_apart(data: Path) -> None:
    corpus = make_corpus(data, eval_data=(data,))
    assert (corpus.train_rows, corpus.held_out_rows) == (64, 64)
    assert len(corpus.held_out(8)) == 8
    with pytest.raises(ConfigError, match="nothing to train on"):
        make_corpus(data, eval_tokens=10_000)


def test_of_a_small_text_a_tenth_is_held_out_unless_the_user_says_how_much(data: Path) -> None:
    corpus = make_corpus(data, eval_tokens=None)
    assert (corpus.train_rows, corpus.held_out_rows) == (57, 7)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"steps": 0}, "--steps: 0"),
        ({"peers": 7}, "7 peers cannot share 6"),
        ({"token_size_bytes": 3}, "--token-size: 3"),
        ({"micro_batch": 0}, "--micro-batch: 0"),
        ({"eval_tokens": -1}, "--eval-tokens: -1"),
        ({"decay": 1.0}, "--decay: 1.0"),
        ({"schedule": ScheduleSettings(lr=0.0)}, "--lr 0.0"),
        ({"schedule": ScheduleSettings(lr=1e-3, final_lr=1.0)}, "--final-lr 1.0"),
        ({"schedule": ScheduleSettings(warmup_steps=-1)}, "--warmup-steps"),
        ({"optimizer": OptimizerName.ADAMW, "overlap": True}, "AdamW has one peer"),
        ({**LOCAL, "decay": 1.1}, "--decay: 1.1, must be 0 to 1"),
        ({**LOCAL, "inner_steps": 0}, "--inner-steps: 0, must be 1 to 2048"),
        ({**LOCAL, "inner_steps": 2_049}, "--inner-steps: 2049"),
        ({**LOCAL, "overlap": True, "merge_step": 2}, "--merge-step: 2, must be 0 to below --inner-steps 2"),
        ({"lookahead": LookaheadName.OWN}, "--lookahead own: only DisTrO with --overlap looks ahead"),
        ({**LOCAL, "merge_step": 1}, "--merge-step: without --overlap there is nothing to merge"),
        ({**LOCAL, "outer_rate": 0.0}, "--outer-rate: 0.0"),
        ({**LOCAL, "value_bits": 3}, "--value-bits: 3, must be 1 or 2"),
        ({**LOCAL, "values": True}, "--values: local steps"),
    ],
)
def test_impossible_settings_name_their_option(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings(Path("m"), Path("d"), **changes).check()
    assert text in str(caught.value)


def test_the_schedules_are_those_of_a_run() -> None:
    wsd = ScheduleSettings(name=ScheduleName.WSD, lr=1e-3, final_lr=1e-4, warmup_steps=10, decay_steps=48).make(240)
    rates = [compute_learning_rate(wsd, step) for step in (5, 10, 191, 192, 216, 240)]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3, 5.5e-4, 1e-4])
    for name, middle in {"constant": 1.0, "linear": 0.55, "cosine": 0.55}.items():
        schedule = ScheduleSettings(name=ScheduleName(name), lr=1.0, warmup_steps=0).make(100)
        assert compute_learning_rate(schedule, 50) == pytest.approx(middle)


def test_a_step_is_described_with_the_newest_losses() -> None:
    progress = StepProgress(2, 4, 1e-3, StepReport(2.5, 1.0, 10), 2.25, 2_000, 2.0)
    assert describe_step(progress) == "loss 2.500, held out 2.250, 1.0k tokens/s, lr 1.00e-03"


def test_the_command_trains_and_says_what_came_out(model: Path, data: Path, tmp_path: Path) -> None:
    options = {
        "--model": model, "--data": data, "--steps": 2, "--total-batch": 4, "--sequence-length": LENGTH, "--peers": 2,
        "--chunk": 8, "--topk": 4, "--eval-tokens": 64, "--threads": 1, "--plot": tmp_path / "loss.html",
    }  # fmt: skip
    ran = call("train", *(word for pair in options.items() for word in pair))
    for text in ("held-out loss", "a peer sends", "losses drawn"):
        assert text in ran.output
    assert b"held out" in (tmp_path / "loss.html").read_bytes()
    local = call("train", *(word for pair in options.items() for word in pair), "--optimizer", "local")
    assert "per 8 inner steps" in local.output
    assert "--steps: 0" in refuse("train", "--model", model, "--data", data, "--steps", 0).output


def test_the_command_loads_no_torch_before_it_is_called() -> None:
    code = "import sys, psyche.cli.commands.train; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
