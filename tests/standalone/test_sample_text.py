"""Text of an exported model, and what becomes of a testnet whose model has no tokenizer that can be read."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.modeling.model import init_model
from psyche.telemetry.console import Console
from psyche.testnet.backends import Prepared
from psyche.testnet.ending import add_sample
from psyche.testnet.report import RunReport
from psyche.testnet.settings import Layout

CONFIG = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0, "model_type": "llama",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose tokenizer is one that only sentencepiece could read."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    init_model(tmp_path / "config.json", tmp_path / "model", 0, extra_files=[])
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"no sentencepiece either")
    return tmp_path / "model"


async def add(model: Path, root: Path) -> tuple[RunReport, str]:
    (root / "logs").mkdir()
    np.arange(256, dtype="<u2").tofile(root / "held-out.bin")
    prepared = SimpleNamespace(layout=Layout(root, root / "events"), held_out=root / "held-out.bin")
    report, said = RunReport("tiny", 1.0, [], 0), io.StringIO()
    await add_sample(report, cast("Prepared", prepared), model, Console(said, live=False))
    return report, said.getvalue()


@pytest.mark.whole
async def test_a_model_whose_text_cannot_be_shown_fails_no_testnet(model: Path, tmp_path: Path) -> None:
    report, said = await add(model, tmp_path)
    assert (report.problems, report.sample) == ([], "")
    assert f"no sample text: {model}: transformers cannot load its tokenizer" in said
    assert report.held_out_loss is not None, "the model itself was read"


@pytest.mark.whole
async def test_a_model_that_cannot_be_read_fails_a_testnet(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_bytes(b"nothing")
    report, _ = await add(model, tmp_path)
    (problem,) = report.problems
    assert "the exported model could not be read" in problem


def test_who_asks_for_text_is_told_why_there_is_none(model: Path) -> None:
    result = CliRunner().invoke(app, ["model", "sample", str(model)])
    assert result.exit_code == 1
    assert "transformers cannot load its tokenizer" in result.output
    (model / "tokenizer.model").unlink()
    write_tokenizer(model)
    assert CliRunner().invoke(app, ["model", "sample", str(model)]).exit_code == 0
