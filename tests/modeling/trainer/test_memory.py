"""The prediction of a step's memory, and what follows from it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from kits.models import write_config
from kits.tier import few
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import Mamba2Config

from psyche.core.state.state import DataType, InnerOptimizer, Model, Optimizer, OptimizerKind
from psyche.errors import ConfigError
from psyche.modeling.architecture import read_blueprint
from psyche.modeling.device import get_available_bytes
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.model import init_model
from psyche.modeling.trainer import memory
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.memory import Fitting, Setup, Step, bound_bytes, predict_bytes
from psyche.telemetry.text import format_bytes
from psyche.wire.trainer import LoadRequest, MemoryRequest, TrainRequest

CPU = torch.device("cpu")
MB = 1_000_000
LENGTH, VOCABULARY, MICRO_BATCH = 128, 2048, 16
FIELDS = {"gpt2": "n_positions", "mamba2": ""}  # what says how long sequences are
FIELDS |= dict.fromkeys(("llama", "qwen3_moe", "deepseek_v3", "gemma2"), "max_position_embeddings")
LOCAL_STEPS = Optimizer(
    OptimizerKind.LOCAL_STEPS, compression_topk=4, compression_chunk=16, value_bits=2, inner_steps=2, error_decay=0.95,
    outer_rate=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose activations outweigh everything else."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    sizes["model_type"] = "llama"
    more = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
    folder = tmp_path_factory.mktemp("wide")
    (folder / "wide.json").write_text(json.dumps(sizes | more))
    init_model(folder / "wide.json", folder / "model", 7)
    return folder / "model"


def make_request(folder: Path, run_model: Model) -> LoadRequest:
    run_model.max_seq_len = LENGTH
    return LoadRequest(
        path=str(folder), is_snapshot=False, model=run_model, micro_batch_size=MICRO_BATCH, device="cpu",
        batch_size=2 * MICRO_BATCH,
    )  # fmt: skip


@pytest.fixture
def request_(wide_model: Path, run_model: Model) -> LoadRequest:
    return make_request(wide_model, run_model)


@pytest.fixture(scope="module")
def _known() -> dict[str, dict[str, int]]:
    return {}


@pytest.fixture
def step(request_: LoadRequest, _known: dict[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> Step:
    """Predictions for it take a second each: tests of what follows from them share them."""

    def predict(*given: Any, **more: Any) -> dict[str, int]:
        key = repr((given, more))
        if key not in _known:
            _known[key] = predict_bytes(*given, **more)
        return dict(_known[key])

    monkeypatch.setattr(memory, "predict_bytes", predict)
    return Step(read_blueprint(Path(request_.path)).config, request_.model.optimizer, LENGTH)


def count_step(request: LoadRequest) -> tuple[int, int]:
    """What MemTracker counts in a real step of the trainer: at its peak, and before it."""
    engine = TrainerEngine()
    engine.load(request)
    loaded = engine._get_loaded()
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (2 * MICRO_BATCH, LENGTH), dtype="<u4").tobytes()
    tracker = MemTracker()
    tracker.track_external(loaded.replica.model)
    with tracker:
        tracker._mod_tracker.clear_user_hooks()  # they admit one pass of a model
        loaded.replica.optimizer = Distro(loaded.replica.parameters, loaded.replica.plan, 0.95)
        held = tracker.get_tracker_snapshot()[CPU]["Total"]
        engine.train(
            TrainRequest(
                epoch=0, height=1, step=2, lr=1e-2, lookahead_lr=1e-2, tokens=ids, samples=2 * MICRO_BATCH,
                sequence_length=LENGTH, decided=(), in_flight=True,
            )
        )  # fmt: skip
    return tracker.get_tracker_snapshot("peak")[CPU]["Total"], held


@pytest.mark.parametrize("checkpointing", few([False, True]))
@pytest.mark.parametrize(("family", "positions"), few([*FIELDS.items()]))
def test_a_prediction_is_within_15_percent_of_a_real_step(
    family: str, positions: str, run_model: Model, tmp_path: Path, *, checkpointing: bool
) -> None:
    fields = {"vocab_size": VOCABULARY, **({positions: LENGTH} if positions else {})}
    init_model(write_config(tmp_path / "config.json", family, **fields), tmp_path / "model", 7)
    request = make_request(tmp_path / "model", run_model)
    step = Step(read_blueprint(tmp_path / "model").config, run_model.optimizer, LENGTH)
    parts = predict_bytes(step, CPU, MICRO_BATCH, activation_checkpointing=checkpointing)
    peak, held = count_step(msgspec.structs.replace(request, activation_checkpointing=checkpointing, batch_size=0))
    assert held == parts["weights"] + parts["optimizer"]
    activations = peak - held - parts["gradients"] - parts["look-ahead copy"]
    assert activations > 0.6 * peak  # so that they decide
    assert parts["activations"] == pytest.approx(activations, rel=0.15)
    assert sum(parts.values()) == pytest.approx(peak, rel=0.15)


def test_checkpointing_labels_and_the_micro_batch_show_in_the_activations(step: Step) -> None:
    labelled = Step(step.config, step.optimizer, LENGTH, has_labels=True)
    plain, again, more, labels = (
        memory.predict_bytes(given, CPU, size, activation_checkpointing=checkpointing, host=None)
        for given, size, checkpointing in ((step, 4, False), (step, 4, True), (step, 8, False), (labelled, 4, False))
    )
    assert again["activations"] < plain["activations"]
    assert more["activations"] == pytest.approx(2 * plain["activations"], rel=0.01)
    assert labels["activations"] - plain["activations"] >= 4 * LENGTH * LENGTH  # the mask, a byte a pair
    for name in ("weights", "gradients", "optimizer", "look-ahead copy"):
        assert plain[name] == again[name] == more[name] == labels[name]


def test_a_run_that_verifies_needs_four_copies_more_in_host_memory(step: Step) -> None:
    plain, audits = (
        memory.predict_bytes(one, CPU, 1, activation_checkpointing=False, host=None)
        for one in (step, replace(step, verifies=True))
    )
    assert audits.pop("copies for audits") == 4 * plain["gradients"]
    assert audits == plain


def limit(monkeypatch: pytest.MonkeyPatch, free_bytes: float) -> None:
    monkeypatch.setattr(memory, "get_free_bytes", lambda _device: int(free_bytes))


def get_total(parts: Mapping[str, int]) -> int:
    return sum(parts.values())


@pytest.mark.whole
def test_auto_is_the_largest_micro_batch_that_fits(
    request_: LoadRequest, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = {size: get_total(Fitting(step, CPU).predict(Setup(size))) for size in (1, 5, 6)}
    limit(monkeypatch, totals[6] / 0.9 - 1)
    auto = msgspec.structs.replace(request_, micro_batch_size=0)
    reply = TrainerEngine().predict_memory(MemoryRequest(load=auto))
    assert (reply.micro_batch_size, get_total(reply.parts)) == (5, totals[5])
    engine = TrainerEngine()
    engine.load(auto)  # of weights that came from peers: nothing was known before
    assert engine._get_loaded().micro_batch_size == 5
    monkeypatch.undo()
    assert TrainerEngine().predict_memory(MemoryRequest(load=auto)).micro_batch_size == 2 * MICRO_BATCH  # the batch
    limit(monkeypatch, totals[1] - 1)
    with pytest.raises(ConfigError, match="a micro-batch of 1 needs"):
        engine.load(auto)


def test_a_refusal_names_the_parts_and_settings_that_would_fit(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    most = Fitting(step, CPU).predict(Setup(8))
    limit(monkeypatch, 0.8 * get_total(most))
    fitting = Fitting(step, CPU)
    with pytest.raises(ConfigError) as caught:
        fitting.fit(Setup(8), 8)
    text = str(caught.value)
    for name, size in most.items():
        assert f"{name} {format_bytes(size)}" in text
    smaller, again, *_ = suggested = list(fitting._suggest(Setup(8)))
    assert [setup.describe() in text for setup in suggested] == [True] * len(suggested)
    assert 1 <= smaller.micro_batch_size < 8
    assert smaller.micro_batch_size < again.micro_batch_size <= 8
    assert again.activation_checkpointing
    for setup in suggested:
        assert fitting.fit(setup, 8).micro_batch_size == setup.micro_batch_size


def test_ranks_share_all_but_the_activations(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    one, four = (Fitting(step, CPU).predict(Setup(1, ranks=ranks)) for ranks in (1, 4))
    assert {name for name in one if four[name] == one[name]} == {"activations"}
    limit(monkeypatch, get_total(four) / 0.9 + 1)
    with pytest.raises(ConfigError, match=r"take .* on 4 devices"):
        Fitting(step, CPU).fit(Setup(1), 1)
    assert get_total(Fitting(step, CPU).predict(Setup(1, ranks=4, tensor_parallelism=4))) < get_total(four)
    limit(monkeypatch, 1)
    with pytest.raises(ConfigError, match="take a device with more memory, or a smaller model"):
        Fitting(step, CPU).fit(Setup(1), 1)


@pytest.mark.whole
def test_ranks_that_train_with_muon_have_whole_matrices_beside_their_shards(step: Step) -> None:
    muon = replace(LOCAL_STEPS, inner_optimizer=InnerOptimizer.MUON)
    fitting = Fitting(replace(step, optimizer=muon), CPU)
    one, two = (fitting.predict(Setup(1, ranks=ranks)) for ranks in (1, 2))
    assert "whole matrices" not in one
    assert two["whole matrices"] == two["weights"] + two["gradients"] == one["weights"]


@pytest.mark.whole
def test_ranks_of_one_cpu_share_what_is_free(
    request_: LoadRequest, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = get_total(Fitting(step, CPU).predict(Setup(MICRO_BATCH, ranks=2)))
    two = msgspec.structs.replace(request_, data_parallelism=2)
    limit(monkeypatch, 2 * needed / 0.9 + 2)
    reply = TrainerEngine().predict_memory(MemoryRequest(load=two))
    assert (get_total(reply.parts), reply.free_bytes) == (needed, int(2 * needed / 0.9 + 2) // 2)
    limit(monkeypatch, 2 * needed / 0.9 - 9)
    with pytest.raises(ConfigError, match=r"needs .* for each .* are free for each on cpu"):
        TrainerEngine().predict_memory(MemoryRequest(load=two))
    alone = msgspec.structs.replace(two, rendezvous="127.0.0.1:29500")  # the other rank is on another machine
    assert TrainerEngine().predict_memory(MemoryRequest(load=alone)).micro_batch_size == MICRO_BATCH


@pytest.mark.parametrize("labels", [False, True])
def test_a_step_that_is_little_beside_what_is_free_is_not_played(
    step: Step, monkeypatch: pytest.MonkeyPatch, *, labels: bool
) -> None:
    step = replace(step, has_labels=labels)
    bound = bound_bytes(step, MICRO_BATCH)
    assert bound is not None
    assert bound - memory.OPTIMIZER_BYTES > 2 * get_total(Fitting(step, CPU).predict(Setup(MICRO_BATCH)))
    limit(monkeypatch, 11 * bound)
    monkeypatch.setattr(memory, "predict_bytes", lambda *_given, **_more: pytest.fail("the step is played"))
    reply = Fitting(step, CPU).fit(Setup(MICRO_BATCH), MICRO_BATCH)
    assert (reply.micro_batch_size, get_total(reply.parts)) == (MICRO_BATCH, bound)


def test_a_model_without_attention_is_predicted_by_its_step(step: Step) -> None:
    assert bound_bytes(replace(step, config=Mamba2Config()), MICRO_BATCH) is None


def test_a_prediction_leaves_nothing_behind_in_the_trainer(
    request_: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 1e9)  # so that the step is played
    plain, checked = TrainerEngine(), TrainerEngine()
    plain.load(msgspec.structs.replace(request_, batch_size=0))
    checked.load(request_)
    ids = np.zeros((2, LENGTH), dtype="<u4").tobytes()
    train = TrainRequest(
        epoch=0, height=0, step=1, lr=1e-2, lookahead_lr=0.0, tokens=ids, samples=2, sequence_length=LENGTH, decided=(),
        in_flight=False,
    )  # fmt: skip
    assert checked.train(train).payload == plain.train(train).payload


@pytest.mark.usefixtures("step")
def test_labels_of_a_run_are_predicted_for(request_: LoadRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1e9)
    plain = TrainerEngine().predict_memory(MemoryRequest(load=request_))
    request_.model.data_type = DataType.FINETUNING
    labelled = TrainerEngine().predict_memory(MemoryRequest(load=request_))
    assert labelled.parts["activations"] > plain.parts["activations"]


# --- free memory


def write_machine(root: Path, files: Mapping[str, str]) -> None:
    for name, text in {"proc/meminfo": "MemTotal: 4000 kB\nMemAvailable: 2000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


CGROUP_V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n"}, 2_048_000),
        (
            {
                "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "100\n", "sys/fs/cgroup/a/b/memory.stat": "anon 1\n",
                "sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "3000\n",
                "sys/fs/cgroup/a/memory.stat": "inactive_file 500\n",
            },
            2_500,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/c\n1:cpu:/d\n", f"{CGROUP_V1}/c/memory.limit_in_bytes": "9000\n",
                f"{CGROUP_V1}/c/memory.usage_in_bytes": "1000\n",
                f"{CGROUP_V1}/c/memory.stat": "total_inactive_file 0\n",
            },
            8_000,
        ),
    ],
    ids=["no limit", "the limit of a group above", "the first version"],
)  # fmt: skip
def test_free_memory_is_what_the_machine_and_its_control_groups_leave(
    tmp_path: Path, files: Mapping[str, str], expected: int
) -> None:
    write_machine(tmp_path, files)
    assert get_available_bytes(tmp_path) == expected


def test_this_machine_says_what_is_free() -> None:
    assert get_available_bytes() > MB


def test_local_steps_take_moments_an_error_memory_and_a_copy(step: Step) -> None:
    local = replace(step, optimizer=LOCAL_STEPS)
    parts = predict_bytes(local, CPU, 2, activation_checkpointing=False)
    one = parts["gradients"]  # of all that is trained, in float32
    assert parts["look-ahead copy"] == one
    assert 3 * one <= parts["optimizer"] <= 3 * one + memory.OPTIMIZER_BYTES
    bound = bound_bytes(local, 2)
    assert bound is not None
    assert sum(parts.values()) <= bound
