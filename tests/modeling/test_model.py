import json
import resource
from pathlib import Path

import pytest
import torch

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.architecture import build_random, read_blueprint
from psyche.modeling.model import get_parameters, init_model, load_model


def _write(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, **changes}))
    return path


def test_a_written_model_loads_with_equal_weights_in_fp32(tiny_config: Path, tiny_model: Path) -> None:
    fresh = get_parameters(build_random(read_blueprint(tiny_config), seed=7))
    loaded = get_parameters(load_model(tiny_model))
    assert list(fresh) == list(loaded) == sorted(fresh)
    for name, parameter in loaded.items():
        assert parameter.dtype is torch.float32
        assert torch.equal(parameter, fresh[name])
    assert (tiny_model / "tokenizer_config.json").is_file()


def test_making_a_model_leaves_torchs_generator_alone(tiny_config: Path) -> None:
    before = torch.random.get_rng_state()
    build_random(read_blueprint(tiny_config), seed=3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_tied_tensors_are_trained_once(tmp_path: Path) -> None:
    names = list(read_blueprint(_write(tmp_path / "config.json", tie_word_embeddings=True)).tensors)
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hiden_size": 3}, "'hidden_size'?"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "model config"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match="model config") as caught:
        read_blueprint(_write(tmp_path / "config.json", **changes))
    assert text in str(caught.value)


def test_broken_config_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_blueprint(tmp_path / "absent.json")
    for name, text in {"a.json": "{", "b.toml": "=", "c.json": "[]"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=name):
            read_blueprint(tmp_path / name)


def test_only_safetensors_are_read(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"code")
    with pytest.raises(TrainerError, match=r"no \.safetensors"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(TrainerError, match="is not a whole safetensors file"):
        load_model(tmp_path)


def test_a_model_with_missing_tensors_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    tensors = load_file(tiny_model / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"AR4: lacks model\.norm\.weight"):
        load_model(tmp_path)


def test_a_folder_in_use_is_not_overwritten(tiny_config: Path, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        init_model(tiny_config, tiny_model, 1)


@pytest.mark.parametrize("most_bytes", [0, 8_192], ids=["no byte", "the config alone"])
def test_a_disk_that_is_full_leaves_no_model_and_is_named(tmp_path: Path, most_bytes: int) -> None:
    config = _write(tmp_path / "model.json", num_hidden_layers=1, intermediate_size=32, vocab_size=64)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        with pytest.raises((OSError, TrainerError), match="weights"):
            init_model(config, tmp_path / "weights", seed=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    from psyche.data.bytes_tokenizer import write_tokenizer

    write_tokenizer(tmp_path / "tokenizer")
    config = tmp_path / "model.json"
    _write(config, vocab_size=255)
    files = [tmp_path / "tokenizer" / "tokenizer.json"]
    with pytest.raises(
        ConfigError, match=r"has 256 token ids, but the model's vocab_size is 255; set vocab_size to 256"
    ):
        init_model(config, tmp_path / "out", 0, extra_files=files)
    files[0].write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer that can be loaded"):
        init_model(config, tmp_path / "out", 0, extra_files=files)
    assert not (tmp_path / "out").exists()
