"""`psyche model chat`: what a model is asked, what is said of it, and that its text is that of `generate`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kits.models import write_config
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.modeling.model import init_model
from psyche.standalone.exported import Writer, load_exported, load_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = write_config(
        tmp_path / "c.json", "llama", vocab_size=256, max_position_embeddings=40, initializer_range=1.0
    )
    init_model(config, tmp_path / "model", 0)
    write_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def talk(model: Path, said: str, tokens: int = 5) -> Any:
    arguments = ["model", "chat", str(model), "--temperature", "0", "--tokens", str(tokens)]
    return CliRunner().invoke(app, arguments, input=said)


def write_plainly(model: Path, text: str, tokens: int) -> str:
    """The most likely token, again and again, each by a forward pass over everything."""
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    ids = tokenizer(text).input_ids
    start = len(ids)
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
    return tokenizer.decode(ids[start:], skip_special_tokens=True)


def show(text: str) -> str:
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)


def test_answers_are_those_to_the_templates_text_with_what_was_said_before(model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    result = talk(model, "hi\n\nyo\n")
    assert result.exit_code == 0, result.output
    first = write_plainly(model, "u:hi;a:", 5)
    second = write_plainly(model, f"u:hi;a:{first};u:yo;a:", 5)
    assert result.stdout == f"{show(first)}\n{show(second)}\n"
    assert "no chat template" not in result.stderr


def test_without_a_template_the_model_goes_on_and_says_so(model: Path) -> None:
    result = talk(model, "def \n")
    assert result.stdout == show(write_plainly(model, "def ", 5)) + "\n"
    assert "note: the model has no chat template, so it goes on with your text" in result.stderr


def test_a_chat_longer_than_the_model_forgets_its_beginning_or_refuses_the_message(model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    result = talk(model, f"{'x' * 20}\n{'y' * 20}\n{'z' * 90}\nhi\n", tokens=4)
    assert "note: the first 1 questions are forgotten: the model has 40 positions" in result.stderr
    assert "note: the message has 95 tokens, the model 40 positions; say less" in result.stderr
    assert result.exit_code == 0


def test_a_text_may_be_longer_than_the_model_and_end_where_the_model_ends_it(model: Path) -> None:
    plain, tokenizer = load_exported(model), load_tokenizer(model)
    said: list[str] = []
    plain.generation_config.eos_token_id = None
    tokenizer.eos_token = None
    written = Writer(plain, tokenizer).write([5, 6], 100, say=said.append)
    assert len(written) == 100
    assert "".join(said) == tokenizer.decode(written, skip_special_tokens=True)
    plain.generation_config.eos_token_id = [written[3], 255]
    cut = written.index(written[3]) + 1
    assert Writer(plain, tokenizer).write([5, 6], 100) == written[:cut]
    assert Writer(plain, tokenizer).write([], 3), "a text may be empty"
