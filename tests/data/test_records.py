"""Documents out of JSON Lines and Parquet, and files that are no text."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.data import records as records_module
from psyche.data.records import measure_records, read_documents, read_span, split_records
from psyche.data.texts import find_texts
from psyche.data.tokenize import tokenize
from psyche.errors import DataError


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))
    return path


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def read_ids(path: Path) -> list[int]:
    return np.fromfile(path, dtype="<u2").tolist()


def test_each_record_is_a_document_and_empty_ones_are_none(tmp_path: Path) -> None:
    texts = ["hi", "", None, "é\nñ"]
    lines = write_lines(tmp_path / "a.jsonl", *({"text": text, "id": 1} for text in texts), b"\n")
    table = write_parquet(tmp_path / "b.parquet", text=texts, id=[1, 2, 3, 4])
    plain = tmp_path / "c.txt"
    plain.write_text("end")
    report = tokenize([lines, table, plain], tmp_path / "out" / "train.bin")
    documents = [*b"hi", 0, *"é\nñ".encode(), 0]
    assert read_ids(report.train.path) == [*documents, *documents, *b"end", 0]
    assert (report.train.documents, report.train.text_bytes) == (5, 17)


def test_another_field_is_the_text_if_it_is_named(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.ndjson", {"body": "x", "text": "y"})
    table = write_parquet(tmp_path / "b.parquet", body=["z"], text=["y"])
    assert [*read_documents(lines, "body"), *read_documents(table, "body")] == [b"x", b"z"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"{not json}\n", r"line 2: is not JSON"),
        (b"[1]\n", r"line 2: is not an object"),
        ({"body": "x"}, r"line 2: has no field 'text'; name one with --field \(there are: 'body'\)"),
        ({"text": 3}, r"line 2: the field 'text' is not text but int"),
        (b"[" * 100_000 + b"\n", r"line 2: is not JSON"),
    ],
)
def test_a_broken_line_is_named_before_anything_is_written(tmp_path: Path, row: Any, reason: str) -> None:
    lines = write_lines(tmp_path / "a.jsonl", {"text": "good"}, row)
    with pytest.raises(DataError, match=reason):
        tokenize([lines], tmp_path / "out" / "train.bin")
    assert not (tmp_path / "out").exists()


def test_a_line_that_never_ends_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_LINE_BYTES", 1000)
    with pytest.raises(DataError, match=r"line 1: is longer than"):
        measure_records(write_lines(tmp_path / "a.jsonl", b"x" * 2000), "text")


def test_a_parquet_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    table = write_parquet(tmp_path / "a.parquet", body=["x"], number=[1])
    with pytest.raises(DataError, match=r"has no field 'text'; name one with --field \(there are: 'body', 'number'\)"):
        measure_records(table, "text")
    with pytest.raises(DataError, match="the column 'number' is not text but int64"):
        measure_records(table, "number")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        measure_records(tmp_path / "b.parquet", "text")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=8), st.integers(1, 60))
def test_a_split_keeps_all_documents_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size_bytes: int
) -> None:
    path = write_lines(tmp_path_factory.mktemp("rows") / "a.jsonl", *({"text": text} for text in texts))
    span = measure_records(path, "text")
    before, after = split_records(span, min(size_bytes, span.size_bytes))
    documents = [text.encode() for text in texts if text]
    assert [*read_span(before), *read_span(after)] == documents
    assert before.size_bytes + after.size_bytes == span.size_bytes
    assert before.size_bytes >= min(size_bytes, span.size_bytes)


def test_a_held_out_part_begins_with_a_whole_record(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "a.jsonl", {"text": "aaaa"}, {"text": "bbbb"}, {"text": "cccc"})
    held_out = tmp_path / "eval" / "held.bin"
    report = tokenize([rows], tmp_path / "out" / "train.bin", held_out=held_out, held_out_bytes=5)
    assert read_ids(report.train.path) == [*b"aaaa", 0, *b"bbbb", 0]
    assert read_ids(held_out) == [*b"cccc", 0]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "long"})
    span = measure_records(path, "text")
    write_lines(path, {"text": "longer"})
    with pytest.raises(DataError, match="changed while it was being read"):
        [*read_span(span)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes(100), "is no text but binary"),
        (gzip.compress(b"text"), "compressed by gzip: unpack it first"),
        (b"%PDF-1.7 and so on", "a PDF: extract its text first"),
    ],
    ids=["zeros", "gzip", "PDF"],  # the bytes of gzip hold the time, and all workers must collect the same tests
)
def test_a_binary_file_is_refused_with_what_it_is(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.md").write_text("text")
    with pytest.raises(DataError, match=reason):
        find_texts([tmp_path / "a.txt"])
    with pytest.raises(DataError, match=reason):
        find_texts([tmp_path], (".txt", ".md"))
    assert find_texts([tmp_path]) == [tmp_path / "b.md"], "a folder is searched for text"


def test_the_command_takes_a_field_and_refuses_one_without_effect(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "a.jsonl", {"body": "hello"})
    output = tmp_path / "out" / "train.bin"
    done = CliRunner().invoke(app, ["data", "tokenize", str(rows), "--field", "body", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert read_ids(output) == [*b"hello", 0]
    (tmp_path / "b.txt").write_text("text")
    refused = CliRunner().invoke(app, ["data", "tokenize", str(tmp_path / "b.txt"), "--field", "x", "-o", str(output)])
    assert refused.exit_code == 1
    assert "--field x has no effect" in refused.output
