"""`psyche eval`: the scores of a model are those of one forward pass for each choice, and what is shown of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from kits.models import write_config
from kits.storage.tasks import write_data
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.evals.documents import Document
from psyche.evals.sources import load_documents
from psyche.evals.tasks import TASKS
from psyche.modeling.model import init_model
from psyche.storage.port import StorageOptions

ROWS = 6
SIZES: dict[str, object] = {"vocab_size": 256, "initializer_range": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), ROWS)


def make_model(folder: Path, positions: int, **changes: object) -> Path:
    config = write_config(folder / "config.json", "llama", max_position_embeddings=positions, **SIZES, **changes)
    init_model(config, folder / "model", 0)
    write_tokenizer(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m"), 2_048)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def run_json(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def read_documents(name: str, data: Path, shots: int) -> tuple[Document, ...]:
    async def read() -> tuple[Document, ...]:
        options = StorageOptions()
        return (await load_documents(TASKS[name], data, options, shots=shots, seed=3, limit=None)).documents

    return trio.run(read)


def score_plainly(model: Any, tokenizer: Any, context: str, choice: str) -> float:
    start, ids = tokenizer(context).input_ids, tokenizer(f"{context} {choice}").input_ids
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(chances[place - 1, ids[place]]) for place in range(len(start), len(ids)))


def test_scores_are_those_of_one_forward_pass_for_each_choice(model: Path, data: Path) -> None:
    found = run_json(
        model, "--tasks", "arc_easy,boolq", "--task-data", data, "--seed", 3, "--num-fewshot", 1, "--device", "cpu"
    )
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    for score in found:
        right = dict.fromkeys(score["metrics"], 0)
        for context, choices, answer in read_documents(score["task"], data, 1):
            values = [score_plainly(plain, tokenizer, context, one) for one in choices]
            alone = [score_plainly(plain, tokenizer, "Answer:", one) for one in choices]
            chosen = {
                "acc": values, "acc_norm": [one / len(c) for one, c in zip(values, choices, strict=True)],
                "acc_uncond": [one - other for one, other in zip(values, alone, strict=True)],
            }  # fmt: skip
            for metric in right:
                right[metric] += chosen[metric].index(max(chosen[metric])) == answer
        assert {name: one["value"] for name, one in score["metrics"].items()} == {
            name: count / ROWS for name, count in right.items()
        }
        assert (score["documents"], score["skipped"], score["shots"], score["seed"]) == (ROWS, 0, 1, 3)
        assert len(score["task_hash"]) == 64
    assert list(found[0]["metrics"]) == ["acc_norm", "acc", "acc_uncond"], "the main one first"
    assert found[1]["metrics"]["acc"]["standard_error"] > 0


def test_documents_longer_than_the_model_are_skipped_counted_and_shown(data: Path, tmp_path: Path) -> None:
    model = make_model(tmp_path, 128)
    scores = {one["task"]: one for one in run_json(model, "--tasks", "mmlu_cf,piqa,mmlu_pro", "--task-data", data)}
    assert (scores["mmlu_cf"]["skipped"], scores["mmlu_pro"]["skipped"]) == (ROWS, ROWS)
    piqa = scores["piqa"]
    longest = [len(context) + 1 + max(map(len, choices)) - 1 for context, choices, _ in read_documents("piqa", data, 0)]
    assert piqa["documents"] == sum(length <= 128 for length in longest)
    assert piqa["documents"] + piqa["skipped"] == ROWS
    shown = run(model, "--tasks", "mmlu_cf", "--task-data", data).stdout.splitlines()
    assert shown[1].split() == ["mmlu_cf", "acc_norm", "-", "-", "0", "0"]
    assert shown[-1].startswith(f"mmlu_cf: {ROWS} of {ROWS} documents skipped, as they are longer than the model")


def test_a_task_without_choices_lets_the_model_write(data: Path, tmp_path: Path) -> None:
    model = make_model(tmp_path, 8_192, num_hidden_layers=1)
    (found,) = run_json(model, "--tasks", "mmlu_pro", "--task-data", data, "--limit", 1, "--num-fewshot", 1)
    assert (found["documents"], found["metrics"]["acc"]) == (1, {"value": 0.0, "standard_error": None})


def test_what_cannot_be_evaluated_is_refused_before_torch_is_loaded(model: Path, data: Path, tmp_path: Path) -> None:
    for arguments, message in [
        ((model, "--tasks", "glue"), "--tasks: there is no task 'glue'; there are arc_challenge"),
        ((tmp_path, "--tasks", "piqa"), "no config.json there; name a model's folder"),
        ((model, "--tasks", "piqa", "--task-data", tmp_path / "x"), "--task-data"),
        ((model, "--tasks", "piqa", "--device", "tpu"), "--device tpu: there is no such device"),
        ((model, "--tasks", "piqa", "--task-data", tmp_path), "reads the Parquet files of ybisk/piqa there"),
    ]:
        result = run(*arguments)
        assert result.exit_code != 0
        assert message in " ".join(result.output.split()), result.output
