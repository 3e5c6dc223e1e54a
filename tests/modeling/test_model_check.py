"""What can be known of a model without loading it: what config.json allows, and what its weight files hold."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.models import LLAMA, list_tensors, write_header, write_model_folder

from psyche.modeling.first_weights import INDEX_NAME
from psyche.modeling.model import count_parameters, get_shapes, get_tensors, load_model
from psyche.modeling.model_check import check_model

EXPECTED = {name: tuple(dims) for name, dims in list_tensors(LLAMA)}


def test_a_model_as_transformers_writes_it_has_no_problems(tiny_model: Path) -> None:
    tensors = get_tensors(load_model(tiny_model))
    check = check_model(tiny_model, get_shapes(tensors))
    assert check.problems == ()
    assert (check.parameters, check.vocab_size) == (count_parameters(tensors), 64)


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
        (rewrite(model_type=None), ("config.json", "AR1: model_type is missing")),
        (rewrite(auto_map={"AutoModel": "x.py"}), ("AR1: auto_map is not supported", "take a model that transformers")),
        (rewrite(quantization_config={"bits": 4}), ("AR1: quantization_config", "take the model as it was before")),
        (rewrite(is_encoder_decoder=True), ("AR1: is_encoder_decoder", "only decodes")),
        (rewrite(vocab_size="many"), ("AR1: vocab_size is 'many'", "whole number above 0")),
        (rewrite(num_hidden_layers=10**10), ("AR1: num_hidden_layers is 10000000000", "a number up to 10,000")),
        (rewrite(hidden_size=1 << 40), ("AR1: hidden_size is 1099511627776", "a number up to 2,147,483,647")),
        (rewrite(rope_scaling={"factors": [1, math.nan]}), ("AR1: factors is nan", "a number up to")),
        (to_bin, ("has pytorch_model.bin, but no .safetensors file", "`save_pretrained`")),
        (lambda folder: (folder / "config.json").unlink(), ("no config.json", "`psyche model init`")),
        (lambda folder: (folder / "model.safetensors").unlink(), ("no model.safetensors", "`psyche model init`")),
        (cut_off, ("model.safetensors: is not a whole", "cut off", "copy the file again")),
        (lie_about_length, ("is not a whole safetensors file",)),
        (lose_a_tensor, ("AR4: lacks model.norm.weight", "psyche model convert")),
        (
            lambda folder: write_header(folder / "model.safetensors", {**LLAMA, "vocab_size": 60}),
            ("AR4: model.embed_tokens.weight is 60 x 32, not 64 x 32", "psyche model convert"),
        ),
        (
            lambda folder: write_header(folder / "model.safetensors", {**LLAMA, "num_hidden_layers": 2}),
            ("AR4: has model.layers.1.input_layernorm.weight", "and 6 more, which is no part"),
        ),
        (lose_a_shard, ("model-00002-of-00002.safetensors: No such file",)),
        (break_index, (INDEX_NAME, "is not a table")),
    ],
)
def test_what_no_run_can_train_is_named_with_a_way_out(
    tmp_path: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    folder = write_model_folder(tmp_path / "model")
    assert check_model(folder, EXPECTED).problems == ()
    spoil(folder)
    (problem,) = check_model(folder, EXPECTED).problems
    assert all(word in problem for word in words), problem


def test_a_file_from_which_a_model_is_to_be_made_is_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text('model_type = "gpt2"\nvocab_size = 256\n')
    assert check_model(path).problems == ()
    path.write_text("vocab_size = 256\n")
    (problem,) = check_model(path).problems
    assert "model_type is missing" in problem


def test_a_model_in_several_files_is_read_as_one(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"model.norm.weight": "model-1.safetensors"}}))
    assert check_model(folder, EXPECTED).problems == ()


def test_other_names_than_those_in_memory_are_refused_with_the_version_that_wrote_them(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model", transformers_version="4.51.0")
    write_header(folder / "model.safetensors", LLAMA, prefix="")
    (problem,) = check_model(folder, EXPECTED).problems
    assert "written by transformers 4.51.0: a client needs that version" in problem
    assert f"`psyche model convert {folder} NEW-FOLDER`" in problem
