"""The byte tokenizer in the form that plain transformers loads."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.data.bytes_tokenizer import SEPARATOR, SEPARATOR_ID, VOCAB_SIZE, get_byte_characters, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer, LlamaConfig

    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    LlamaConfig(vocab_size=VOCAB_SIZE).save_pretrained(folder)  # as beside exported weights
    return AutoTokenizer.from_pretrained(folder)


def test_it_has_exactly_256_entries_and_byte_0_ends_a_text(tokenizer: Any) -> None:
    assert len(tokenizer) == tokenizer.vocab_size == VOCAB_SIZE == 256
    assert tokenizer.eos_token_id == SEPARATOR_ID == 0
    assert sorted(tokenizer.get_vocab().values()) == list(range(256))


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=60))
def test_text_becomes_its_bytes_and_back(tokenizer: Any, text: str) -> None:
    if SEPARATOR in text:
        return
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_separators_are_left_out_of_decoded_text(tokenizer: Any) -> None:
    ids = [*b"one", SEPARATOR_ID, *b"two"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "onetwo"
    assert tokenizer.decode(ids) == f"one{SEPARATOR}two"
    assert tokenizer(f"one{SEPARATOR}two")["input_ids"] == ids


def test_every_byte_has_a_character_of_its_own(tmp_path: Path) -> None:
    assert len(set(get_byte_characters())) == 256
    write_tokenizer(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
