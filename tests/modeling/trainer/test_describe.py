"""What transformers makes of a config is asked once for each content, by all processes together."""

import tomllib
from pathlib import Path

import pytest
from kits.models import FAMILIES, write_config

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.trainer import describe
from psyche.storage.port import find_cache_folder


def test_an_answer_is_kept_for_other_processes_until_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_request: object) -> None:
        raise TrainerError("a child is started")

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
