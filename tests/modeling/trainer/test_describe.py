"""What transformers makes of a config is asked once for each content, by all processes together."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kits.models import FAMILIES, write_config

from psyche.core.state.state import Model
from psyche.errors import ConfigError
from psyche.modeling.architecture import read_blueprint
from psyche.modeling.trainer import describe
from psyche.modeling.trainer.memory import Step, predict_bytes
from psyche.storage.port import find_cache_folder

pytestmark = pytest.mark.usefixtures("trainer_host")


def test_an_answer_is_kept_for_other_processes_until_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_request: object) -> None:
        raise ConfigError("a child is started")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = write_config(tmp_path / "config.json", "gpt2")
    described = describe.describe_model(config, FAMILIES["gpt2"]["n_positions"])
    assert described is not None
    assert described.parameters["transformer.wte.weight"] == (64, 32)
    (kept,) = (find_cache_folder() / describe.FOLDER).iterdir()

    monkeypatch.setattr(describe, "_ask", refuse)
    monkeypatch.setattr(describe, "_known", {})  # as in another process
    toml = tmp_path / "model.toml"
    toml.write_text("\n".join(f"{key} = {value!r}" for key, value in reversed(FAMILIES["gpt2"].items())))
    assert tomllib.loads(toml.read_text()) == FAMILIES["gpt2"]
    assert describe.describe_model(toml) == described
    with pytest.raises(ConfigError, match="a child is started"):
        describe.describe_model(write_config(tmp_path / "other.json", "gpt2", n_embd=16))

    kept.write_bytes(kept.read_bytes()[:-1])
    monkeypatch.setattr(describe, "_known", {})
    with pytest.raises(ConfigError, match="a child is started"):
        describe.describe_model(config)


def test_the_memory_of_a_run_s_step_is_kept_for_each_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_model: Model
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(describe, "_known", {})
    config = write_config(tmp_path / "config.json", "llama")
    reply = describe.predict_memory(config, run_model)
    assert reply is not None
    read = read_blueprint(config)
    step = Step(read.config, run_model.optimizer, run_model.max_seq_len)
    assert reply.parts == predict_bytes(step, torch.device("cpu"), 1, activation_checkpointing=False)
    longer = describe.predict_memory(config, replace(run_model, max_seq_len=2 * run_model.max_seq_len))
    assert longer is not None
    assert longer.parts["activations"] > 1.5 * reply.parts["activations"]
    monkeypatch.setattr(describe, "_ask", lambda _request: pytest.fail("asked again"))
    monkeypatch.setattr(describe, "_known", {})
    assert describe.predict_memory(config, run_model) == reply
