"""What a tokenizer's files say is read without trust: they come from anywhere."""

import json
from pathlib import Path

import pytest

from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.errors import DataError
from psyche.wire.tokenizer_files import find_positions, open_tokenizer, read_json_table, read_token_ids


def make(vocab: object) -> bytes:
    return json.dumps({"model": {"vocab": vocab}}).encode()


def test_ids_are_read_of_both_kinds_of_vocabulary() -> None:
    assert read_token_ids(make({"a": 3})) == {"a": 3}
    assert read_token_ids(make([["a", -1.5], ["b", -2.0]])) == {"a": 0, "b": 1}


@pytest.mark.parametrize("entry", [7, None, [], {}, {"a": 1}, [None, 1.0], "text"])
def test_what_is_no_pair_of_a_token_and_its_score_has_no_id(entry: object) -> None:
    assert read_token_ids(make([entry, ["b", -2.0]])) == {"b": 1}


def test_a_text_is_read_whole_by_a_tokenizer_whose_file_cuts_texts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")  # scripts/check_versions.py leaves it out
    write_tokenizer(tmp_path)
    table = json.loads((tmp_path / "tokenizer.json").read_bytes())
    table["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    found = open_tokenizer(tmp_path, json.dumps(table).encode())
    assert found.encode("a longer text").ids == list(b"a longer text")
    with pytest.raises(DataError, match="here: is no tokenizer that can be loaded"):
        open_tokenizer("here", b"{")


def test_tables_within_tables_without_end_are_none() -> None:
    assert read_json_table(b"[" * 200_000) == {}
    assert read_json_table(b'{"a":' * 200_000) == {}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 128, "seq_length": 64}, 128),
        ({"n_positions": None, "text_config": {"n_positions": 32}}, 32),
        ({"n_positions": "many", "max_position_embeddings": -1, "text_config": []}, None),
        ({}, None),
    ],
)
def test_the_longest_text_is_a_number_of_the_config_or_unknown(
    config: dict[str, object], positions: int | None
) -> None:
    assert find_positions(config) == positions
