"""Exports: folders that other programs take as they are, written without a second copy of the model."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.errors import TrainerError
from psyche.modeling.architecture import build_random, read_blueprint
from psyche.modeling.export import export_model
from psyche.modeling.first_weights import INDEX_NAME
from psyche.modeling.model import get_tensors, init_model, load_model
from psyche.modeling.snapshot import read_model_files
from psyche.modeling.user_files import format_card

CARD = format_card("A title", "What it is.", [("run", "a | b"), ("steps", "240")])
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def byte_model(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    write_tokenizer(folder / "tokenizer")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(tiny_config.read_text()) | {"vocab_size": 256, "eos_token_id": 2}))
    init_model(config, folder / "model", 3, extra_files=sorted((folder / "tokenizer").iterdir()))
    return folder / "model"


def write_export(source: Path, target: Path, dtype: str = "bfloat16", **more: Any) -> dict[str, torch.Tensor]:
    tensors = get_tensors(load_model(source))
    export_model(target, tensors, read_model_files(source), dtype, CARD, read_blueprint(source), **more)
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_written_weights_are_the_masters_rounded_once(byte_model: Path, tmp_path: Path, dtype: str) -> None:
    tensors = write_export(byte_model, tmp_path / "e", dtype)
    written = load_file(tmp_path / "e" / "model.safetensors")
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(written[name], tensor.to(DTYPES[dtype])), name
    assert read_json(tmp_path / "e" / "config.json")["dtype"] == dtype


def test_a_large_model_is_written_in_files_that_transformers_reads(byte_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tensors = write_export(byte_model, tmp_path / "e", "float32", max_shard_bytes=40_000)
    files = sorted(path.name for path in (tmp_path / "e").glob("*.safetensors"))
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    assert len(files) > 2
    index = read_json(tmp_path / "e" / INDEX_NAME)
    assert index["metadata"]["total_size"] == sum(4 * t.numel() for t in tensors.values())
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "e")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, tensors[name]), name


def test_an_export_copies_one_tensor_at_a_time(tiny_config: Path, tmp_path: Path) -> None:
    """The largest tensor may be copied, not the model."""
    sizes = {"num_hidden_layers": 8, "hidden_size": 128, "intermediate_size": 1_024}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(tiny_config.read_text()) | sizes))
    blueprint = read_blueprint(config)
    tensors = get_tensors(build_random(blueprint))
    halves = [2 * t.numel() for t in tensors.values()]
    seen: list[int] = []
    alive: list[weakref.ref[torch.Tensor]] = []
    rounded = torch.Tensor.to

    def watch(tensor: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        made = rounded(tensor, *arguments, **more)
        alive.append(weakref.ref(made))
        seen.append(sum(2 * t.numel() for ref in alive if (t := ref()) is not None))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", watch)
        export_model(tmp_path / "e", tensors, {"config.json": b"{}"}, "bfloat16", CARD, blueprint)
    assert len(seen) == len(halves)
    assert max(seen) <= 2 * max(halves) < sum(halves) / 4


def test_float16_is_refused_where_it_would_write_infinity(byte_model: Path, tmp_path: Path) -> None:
    tensors = get_tensors(load_model(byte_model))
    with torch.no_grad():
        tensors["model.norm.weight"][3] = 1e5
    files = read_model_files(byte_model)
    with pytest.raises(TrainerError, match=r"float16 cannot hold the values of model.norm.weight"):
        export_model(tmp_path / "e", tensors, files, "float16", CARD, read_blueprint(byte_model))
    assert list(tmp_path.iterdir()) == []
    export_model(tmp_path / "e", tensors, files, "bfloat16", CARD, read_blueprint(byte_model))


def test_a_batch_of_texts_of_unequal_length_is_continued_as_each_text_alone(byte_model: Path, tmp_path: Path) -> None:
    """Plain transformers, no settings: padding, its side and the end token come from the folder."""
    from transformers import pipeline

    write_export(byte_model, tmp_path / "e", "float32")
    write: Any = pipeline("text-generation", model=str(tmp_path / "e"), device="cpu")
    texts = ["a", "a longer text", "größer"]
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    together = [found[0]["generated_text"] for found in write(texts, batch_size=3, **options)]
    alone = [write(text, **options)[0]["generated_text"] for text in texts]
    assert together == alone
    assert write.tokenizer.padding_side == "left"
    assert write.model.generation_config.eos_token_id == write.tokenizer.eos_token_id == 0
    assert write.tokenizer.model_max_length == 32


def test_the_card_says_what_is_known_and_what_is_not(byte_model: Path, tmp_path: Path) -> None:
    write_export(byte_model, tmp_path / "e")
    card = (tmp_path / "e" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "license: unknown\n" in card.split("---")[1]
    assert "\n# A title\n" in card
    assert "| run | a \\| b |\n| steps | 240 |\n" in card
