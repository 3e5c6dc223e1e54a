"""What can be known of a model without loading it: its type, its sizes, and what its weight files hold."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.models import LLAMA, write_header, write_model_folder
from transformers.models.llama import LlamaConfig

from psyche.modeling.first_weights import INDEX_NAME
from psyche.modeling.model import build_random_model, count_parameters, get_tensors, load_model
from psyche.modeling.model_check import check_model
from psyche.modeling.model_config import get_sizes, list_tensors

VARIANTS = [
    {},
    {"tie_word_embeddings": True},
    {"attention_bias": True, "mlp_bias": True},
    {"head_dim": 8, "num_key_value_heads": 1},
    {"num_key_value_heads": None},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_names_and_shapes_of_tensors_are_those_of_transformers(changes: dict[str, Any]) -> None:
    settings = {**LLAMA, **changes}
    model = build_random_model(LlamaConfig(**{key: value for key, value in settings.items() if key != "model_type"}))
    actual = {name: tuple(tensor.shape) for name, tensor in get_tensors(model).items()}
    assert dict(list_tensors(get_sizes(settings))) == actual


def test_sizes_that_a_config_leaves_out_are_those_of_transformers() -> None:
    sizes, usual = get_sizes({}), LlamaConfig()
    assert (sizes.vocab_size, sizes.max_positions) == (usual.vocab_size, usual.max_position_embeddings)
    assert (sizes.hidden_size, sizes.intermediate_size) == (usual.hidden_size, usual.intermediate_size)
    assert (sizes.layers, sizes.query_size) == (usual.num_hidden_layers, usual.hidden_size)


def test_a_model_as_transformers_writes_it_has_no_problems(tiny_model: Path) -> None:
    check = check_model(tiny_model, 32)
    assert check.problems == ()
    assert check.parameters == count_parameters(get_tensors(load_model(tiny_model)))


def rewrite(**changes: object) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(json.dumps({**LLAMA, **changes})) and None


def to_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def lie_about_length(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")


def lose_a_tensor(folder: Path) -> None:
    write_header(folder / "model.safetensors", {**LLAMA}, without=("model.norm.weight",))


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": names}))


def break_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / INDEX_NAME).write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (rewrite(model_type="qwen2"), ("config.json", "model_type is 'qwen2'", "take a Llama model")),
        (rewrite(model_type="gpt2"), ("model_type is 'gpt2'", "only 'llama'")),
        (rewrite(model_type="mistral"), ("model_type is 'mistral'", "only 'llama'")),
        (rewrite(auto_map={"AutoModel": "x.py"}), ("auto_map is not supported",)),
        (rewrite(quantization_config={"bits": 4}), ("quantization_config is not supported",)),
        (rewrite(vocab_size="many"), ("vocab_size is 'many'", "whole number from 1 to")),
        (rewrite(num_hidden_layers=10**9), ("num_hidden_layers is 1000000000", "whole number from 1 to 10,000")),
        (rewrite(rms_norm_eps=math.nan), ("rms_norm_eps is nan", "must be a finite number")),
        (rewrite(rms_norm_eps=-1), ("rms_norm_eps is -1", "must be above 0")),
        (rewrite(rms_norm_eps=None), ("rms_norm_eps is None", "must be a finite number")),
        (rewrite(rope_scaling={"factor": math.inf}), ("factor is inf", "must be a finite number")),
        (rewrite(max_position_embeddings=31), ("max_position_embeddings is 31", "max_seq_len is 32", "31 or less")),
        (rewrite(vocab_size=4_000), ("model.embed_tokens.weight is 64 x 32, not 4000 x 32", "from one model")),
        (to_bin, ("has pytorch_model.bin, but no .safetensors file", "`save_pretrained`")),
        (lambda folder: (folder / "config.json").unlink(), ("no config.json", "`psyche model init`")),
        (lambda folder: (folder / "model.safetensors").unlink(), ("no model.safetensors", "`psyche model init`")),
        (cut_off, ("model.safetensors: is not a whole", "cut off", "copy the file again")),
        (lie_about_length, ("is not a whole safetensors file",)),
        (lose_a_tensor, ("the weights lack model.norm.weight",)),
        (lose_a_shard, ("model-00002-of-00002.safetensors: No such file",)),
        (break_index, (INDEX_NAME, "is not a table")),
    ],
)
def test_what_no_run_can_train_is_named_with_a_way_out(
    tmp_path: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    folder = write_model_folder(tmp_path / "model")
    assert check_model(folder, 32).problems == ()
    spoil(folder)
    (problem,) = check_model(folder, 32).problems
    assert all(word in problem for word in words), problem


def test_a_file_from_which_a_model_is_to_be_made_is_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text("vocab_size = 256\nmax_position_embeddings = 64\n")
    assert check_model(path, 64).problems == ()
    (problem,) = check_model(path, 65).problems
    assert "max_position_embeddings is 64" in problem


def test_a_model_in_several_files_is_read_as_one(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"model.norm.weight": "model-1.safetensors"}}))
    assert check_model(folder, 32).problems == ()


def test_weights_saved_without_the_prefix_are_those_of_the_model(tmp_path: Path) -> None:
    """As transformers loads them."""
    folder = write_model_folder(tmp_path / "model", tie_word_embeddings=True)
    write_header(folder / "model.safetensors", {**LLAMA, "tie_word_embeddings": True}, prefix="")
    assert check_model(folder, 32).problems == ()
