"""What a run's model means for lines: payload sizes of the real plan."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from forecast_kit import ROOT, RUN
from kits.models import write_config, write_model_folder
from kits.tier import few

from psyche.config.load import load_run
from psyche.core.state.state import CheckpointKind, Optimizer, OptimizerKind
from psyche.errors import ConfigError
from psyche.forecast.workload import (
    compute_even_shapes,
    compute_payload_bytes,
    compute_workload,
    count_elements,
    describe_memory,
    read_shapes,
)
from psyche.modeling.trainer import describe

pytestmark = pytest.mark.usefixtures("trainer_host")
DISTRO = Optimizer(
    OptimizerKind.DISTRO, compression_decay=0.999, compression_topk=8, compression_chunk=64, quantize_1bit=True
)
LLAMA_1B = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize("family", few(["deepseek_v3", "qwen3_moe", "llama"]))
def test_the_plan_is_the_one_that_the_real_trainer_makes(family: str, tmp_path: Path) -> None:
    from psyche.modeling.architecture import build_random, read_blueprint

    config = write_config(tmp_path / "config.json", family)
    real = {name: tuple(one.shape) for name, one in build_random(read_blueprint(config)).named_parameters()}
    assert read_shapes(tmp_path) == dict(sorted(real.items()))
    assert compute_payload_bytes(read_shapes(config), DISTRO) == compute_payload_bytes(real, DISTRO)


def test_the_number_of_parameters_alone_gives_nearly_the_same_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))
    shapes = read_shapes(tmp_path)
    assert count_elements(shapes) == pytest.approx(1.1e9, rel=0.01)
    guessed = compute_payload_bytes(compute_even_shapes(count_elements(shapes), 64), DISTRO)
    assert guessed == pytest.approx(compute_payload_bytes(shapes, DISTRO), rel=0.01)
    # 81 bits of a set and 8 signs for 4,096 weights
    of_a_billion = compute_payload_bytes(compute_even_shapes(10**9, 64), DISTRO)
    assert of_a_billion == pytest.approx(1e9 / 4096 * 89 / 8, rel=0.001)


def test_the_size_comes_from_what_is_named_else_from_beside_the_run_else_from_its_metadata(tmp_path: Path) -> None:
    beside = load_run(ROOT / "config" / "llama-20m")
    assert compute_workload(beside).parameters == pytest.approx(21e6, rel=0.05)
    assert compute_workload(beside).source.endswith("model.json")
    assert compute_workload(beside, parameters=10**9).source == "parameters alone"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))
    assert compute_workload(beside, model_config=tmp_path).parameters == pytest.approx(1.1e9, rel=0.01)
    bare = load_run(RUN)
    told = replace(bare, metadata=replace(bare.metadata, num_parameters=10**8))
    assert compute_workload(told).parameters == 10**8
    with pytest.raises(ConfigError, match=r"the size of the model is not known.*--parameters 1e9"):
        compute_workload(bare)
    with pytest.raises(ConfigError, match="--parameters"):
        compute_workload(bare, parameters=10**14)


def test_an_optimizer_that_sends_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="ADAMW sends no payloads"):
        compute_payload_bytes({"a": (8, 8)}, Optimizer(OptimizerKind.ADAMW))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a table"),
        ('{"model_type": "gpt_2"}', "AR1: model_type 'gpt_2'"),
    ],
)
def test_a_model_config_that_says_nothing_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_shapes(tmp_path / "config.json")


def test_without_transformers_the_sizes_are_those_in_the_model_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "find_spec", lambda _name: None)
    folder = write_model_folder(tmp_path / "model")
    assert read_shapes(folder)["model.norm.weight"] == (32,)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="is not installed -> --parameters 1e9"):
        read_shapes(folder)


def test_a_forecast_says_what_training_takes_of_memory(tmp_path: Path) -> None:
    run = load_run(ROOT / "config" / "llama-20m")
    text = describe_memory(run, write_config(tmp_path / "config.json", "gpt2", n_positions=1024))
    size = r"\S+ MB"
    parts = rf"\({size} of the model, {size} of activations\)"
    pattern = rf"training takes {size} of a client's memory with --micro-batch-size 1 on a CPU {parts}; of a GPU's, "
    assert re.fullmatch(pattern + rf"--offload leaves about {size} less", text), text
    (tmp_path / "bare").mkdir()
    assert describe_memory(replace(run, path=tmp_path / "bare" / "run.toml", model=replace(
        run.model, checkpoint=replace(run.model.checkpoint, kind=CheckpointKind.P2P)))) == ""  # fmt: skip
