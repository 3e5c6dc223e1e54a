"""The digest of the first weights, which a server computes from files, is the one that trainers compute (S11, S2)."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from psyche.core.state.state import ZERO32, Model
from psyche.errors import TrainerError, UnusableModelError
from psyche.modeling import first_weights
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model import init_model
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import LoadRequest

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tiny_config: Path, tmp_path: Path) -> Path:
    """A model folder of which a test may change files; the largest tensors have more than one chunk of a blob."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(tiny_config.read_text()) | {"vocab_size": 9_001}))
    init_model(config, tmp_path / "model", 7)
    return tmp_path / "model"


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cast_to(dtype: torch.dtype) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def split(folder: Path) -> None:
    """Two files and their index, as transformers writes large models."""
    tensors = load_file(folder / WEIGHTS)
    places = {name: f"model-0000{1 + ('layers.1' in name)}-of-00002.safetensors" for name in tensors}
    for file in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / WEIGHTS).unlink()
    (folder / first_weights.INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def tie(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    tensors = load_file(folder / WEIGHTS)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def add_biases(folder: Path) -> None:
    change_config(folder, attention_bias=True, mlp_bias=True)
    tensors = load_file(folder / WEIGHTS)
    biases = {n.replace("weight", "bias"): t[:, 0].clone() for n, t in tensors.items() if "_proj" in n}
    save_file(tensors | biases, folder / WEIGHTS, metadata={"format": "pt"})


def add_file(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "notes.txt").write_text("is not read")


CHANGES: dict[str, Callable[[Path], None]] = {
    "as it was made": lambda _folder: None,
    "bfloat16": cast_to(torch.bfloat16),
    "float16": cast_to(torch.float16),
    "tied": tie,
    "biases": add_biases,
    "files beside it": add_file,
    "in two files": split,
}


@pytest.mark.parametrize("is_exact", [True, False], ids=["signs", "full values"])
def test_the_digest_from_files_is_the_one_that_a_trainer_computes(
    folder: Path, tmp_path: Path, load_request: LoadRequest, run_model: Model, is_exact: bool
) -> None:
    run_model.optimizer.quantize_1bit = is_exact
    seen: dict[str, bytes] = {}
    for name, change in CHANGES.items():
        copy = shutil.copytree(folder, tmp_path / name)
        change(copy)
        reply = TrainerEngine().load(msgspec.structs.replace(load_request, path=str(copy), model=run_model))
        seen[name] = compute_first_digest(FolderFiles(copy), is_exact=is_exact)
        assert seen[name] == compute_state_digest(ZERO32, reply.weight_root), name
    assert seen["in two files"] == seen["as it was made"]
    same = {"in two files"} if is_exact else {"in two files", "bfloat16", "float16"}
    assert len(set(seen.values())) == len(CHANGES) - len(same)


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])


def lead_away(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / first_weights.INDEX_NAME).write_text('{"weight_map": {"model.norm.weight": "../other.safetensors"}}')


def spoil_with(value: float, dtype: torch.dtype) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
        tensors["model.layers.0.mlp.up_proj.weight"][-1, -1] = value
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def damage_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\xff" * 64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut, "cut off"),
        (cast_to(torch.float64), "values of F64"),
        (lead_away, "not the name of a file in its folder"),
        (damage_header, "not a whole safetensors file"),
        (lambda folder: (folder / WEIGHTS).unlink(), "No such file"),
        (lambda folder: (folder / "config.json").write_text("["), "not JSON"),
    ],
)
def test_a_folder_whose_digest_would_be_a_guess_is_refused_with_the_reason(
    folder: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(folder)
    with pytest.raises(TrainerError, match=reason):
        compute_first_digest(FolderFiles(folder), is_exact=True)


@pytest.mark.parametrize("is_exact", [True, False], ids=["signs", "full values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused_by_the_name_of_their_tensor(
    folder: Path, value: float, dtype: torch.dtype, is_exact: bool, load_request: LoadRequest
) -> None:
    spoil_with(value, dtype)(folder)
    for use in (
        lambda: compute_first_digest(FolderFiles(folder), is_exact=is_exact),
        lambda: TrainerEngine().load(msgspec.structs.replace(load_request, path=str(folder))),
    ):
        with pytest.raises(UnusableModelError, match=r"model\.layers\.0\.mlp\.up_proj\.weight has values that are NaN"):
            use()
