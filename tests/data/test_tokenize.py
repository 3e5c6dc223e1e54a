"""Text to ids: documents, separators, the held-out end, and files that are whole or not there."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.data import texts as texts_module
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.data.corpus import build_demo_corpus, find_library_sources
from psyche.data.local import TokenRows
from psyche.data.texts import find_texts, read_pieces, split_texts
from psyche.data.tokenize import ByteTokenizer, HuggingFaceTokenizer, tokenize
from psyche.errors import DataError


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read_ids(path: Path, size_bytes: int = 2) -> list[int]:
    return np.fromfile(path, dtype=f"<u{size_bytes}").tolist()


def test_documents_stand_one_after_another_each_followed_by_a_separator(tmp_path: Path) -> None:
    sources = [write(tmp_path, "a.txt", b"hi"), write(tmp_path, "b.txt", b""), write(tmp_path, "c.txt", "é".encode())]
    report = tokenize(sources, tmp_path / "out" / "train.bin")
    assert read_ids(report.train.path) == [*b"hi", 0, *"é".encode(), 0]
    assert (report.train.tokens, report.train.documents, report.train.text_bytes) == (6, 2, 4)
    assert report.held_out is None


def test_zero_bytes_in_a_text_cannot_pass_for_separators(tmp_path: Path) -> None:
    report = tokenize([write(tmp_path, "a.txt", b"a\0\0b")], tmp_path / "out" / "train.bin")
    assert read_ids(report.train.path) == [*b"ab", 0]


def test_the_sidecar_says_what_was_written_and_local_data_reads_it(tmp_path: Path) -> None:
    output = tmp_path / "out" / "train.bin"
    tokenize([write(tmp_path, "a.txt", b"0123456789")], output)
    assert json.loads((tmp_path / "out" / "train.json").read_text()) == {
        "format": "psyche/tokens/1",
        "path": "train.bin",
        "tokens": 11,
        "documents": 1,
        "text_bytes": 10,
        "token_size_bytes": 2,
        "vocab_size": 256,
        "tokenizer": "bytes",
    }
    assert TokenRows([output.parent], 2, 5, vocab_size=256).samples(0, 0).tolist() == [[*b"01234"]]
    assert sorted(p.name for p in output.parent.iterdir()) == ["train.bin", "train.json"]


def test_the_last_bytes_of_the_text_are_held_out(tmp_path: Path) -> None:
    sources = [write(tmp_path, "a.txt", b"aaaa"), write(tmp_path, "b.txt", b"bbbb"), write(tmp_path, "c.txt", b"cc")]
    held_out = tmp_path / "eval" / "held.bin"
    report = tokenize(sources, tmp_path / "out" / "train.bin", held_out=held_out, held_out_bytes=5)
    assert read_ids(report.train.path) == [*b"aaaa", 0, *b"b"]
    assert read_ids(held_out) == [*b"bbb", 0, *b"cc", 0]
    assert report.held_out is not None
    assert (report.train.text_bytes, report.held_out.text_bytes) == (5, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=40), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(8, 30),
    st.integers(4, 12),
)
def test_no_piece_and_no_cut_splits_a_character_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], held_out: int, piece: int, line: int
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    sources = [write(folder, f"{i}.txt", document.encode()) for i, document in enumerate(documents)]
    total = sum(len(document.encode()) for document in documents)
    if held_out >= total:
        with pytest.raises(DataError, match=r"leaves nothing to train on|there is no text in there"):
            split_texts(sources, held_out)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "PIECE_BYTES", piece)
        patch.setattr(texts_module, "MAX_LINE_BYTES", line)
        before, after = split_texts(sources, held_out)
        pieces = [p for span in (*before, *after) for p in read_pieces(span)]
    assert b"".join(pieces) == "".join(documents).encode()
    assert all(0 < len(p) <= piece and p.decode() for p in pieces)
    size = sum(span.size_bytes for span in after)
    assert held_out <= size < held_out + 4


def test_pieces_end_where_lines_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "PIECE_BYTES", 10)
    before, _ = split_texts([write(tmp_path, "a.txt", b"one\ntwo\nthree\nfourfourfourfour\nend")], 0)
    assert [*read_pieces(before[0])] == [b"one\ntwo\n", b"three\n", b"fourfourfo", b"urfour\nend"]


def test_text_that_is_not_utf8_is_cut_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "PIECE_BYTES", 3)
    before, _ = split_texts([write(tmp_path, "a.txt", b"\x80" * 20)], 0)
    assert b"".join(read_pieces(before[0])) == b"\x80" * 20


def test_folders_are_searched_in_the_order_of_paths_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    names = ["b/x.py", "a.py", "b/a.txt", ".git/y.py", "b/.hidden.py", "a/z.py"]
    for name in names:
        write(tmp_path, name, b"x")
    found = [path.relative_to(tmp_path).as_posix() for path in find_texts([tmp_path], (".py",))]
    assert found == ["a.py", "a/z.py", "b/x.py"]
    assert find_texts([tmp_path / ".git/y.py"]) == [tmp_path / ".git/y.py"]
    with pytest.raises(DataError, match=r"no text file that ends with \.rs or \.c"):
        find_texts([tmp_path], (".rs", ".c"))
    with pytest.raises(DataError, match="no such file"):
        find_texts([tmp_path / "missing"])


def test_a_failure_leaves_no_file_and_keeps_the_former_one(tmp_path: Path) -> None:
    class Broken(ByteTokenizer):
        def encode(self, text: bytes) -> bytes:
            raise DataError("broken")

    source = write(tmp_path, "a.txt", b"text")
    output = tmp_path / "out" / "t.bin"
    tokenize([source], output)
    former = output.read_bytes()
    with pytest.raises(DataError, match="broken"):
        tokenize([source], output, tokenizer=Broken())
    assert output.read_bytes() == former
    assert sorted(p.name for p in output.parent.iterdir()) == ["t.bin", "t.json"]


def test_a_text_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "a.txt", b"long enough")
    before, _ = split_texts([source], 0)
    source.write_bytes(b"short")
    with pytest.raises(DataError, match="became shorter"):
        [*read_pieces(before[0])]


@pytest.mark.parametrize(
    ("held_out", "held_out_bytes", "token_size", "reason"),
    [
        ("out/held.bin", 2, None, "must not be in the folder"),
        ("eval/held.bin", 0, None, "both a file and a number"),
        (None, 2, None, "both a file and a number"),
        ("eval/held.bin", 100, None, "leaves nothing to train on"),
        (None, 0, 3, "tokens of 3 bytes"),
        (None, 0, 1, "tokens of 1 bytes"),
    ],
)
def test_impossible_requests_are_refused(
    tmp_path: Path, held_out: str | None, held_out_bytes: int, token_size: int | None, reason: str
) -> None:
    target = tmp_path / held_out if held_out else None
    with pytest.raises(DataError, match=reason):
        tokenize(
            [write(tmp_path, "a.txt", b"text")],
            tmp_path / "out" / "t.bin",
            held_out=target,
            held_out_bytes=held_out_bytes,
            token_size_bytes=token_size,
        )


def test_a_hugging_face_tokenizer_is_used_with_its_own_end_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    tokenizer = HuggingFaceTokenizer(tmp_path / "model")
    assert (tokenizer.vocab_size, tokenizer.separator_id) == (256, 0)
    report = tokenize([write(tmp_path, "a.txt", "né".encode())], tmp_path / "out" / "t.bin", tokenizer=tokenizer)
    assert read_ids(report.train.path) == [*"né".encode(), 0]
    assert report.train.tokenizer.endswith("tokenizer.json")
    assert HuggingFaceTokenizer(tmp_path / "model" / "tokenizer.json", "A").separator_id == ord("A")
    with pytest.raises(DataError, match="has no token 'nothing'"):
        HuggingFaceTokenizer(tmp_path / "model", "nothing")
    with pytest.raises(DataError, match="no such tokenizer"):
        HuggingFaceTokenizer(tmp_path)
    with pytest.raises(DataError, match="is no tokenizer that can be loaded"):
        HuggingFaceTokenizer(write(tmp_path, "bad/tokenizer.json", b"{}"))


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    class Wide:
        name = "wide"
        vocab_size = 65_537
        separator_id = 65_536

        def encode(self, text: bytes) -> Sequence[int]:
            return [byte + 65_000 for byte in text]

    source = write(tmp_path, "a.txt", b"\x01\x02")
    report = tokenize([source], tmp_path / "out" / "t.bin", tokenizer=Wide())
    assert read_ids(report.train.path, 4) == [65_001, 65_002, 65_536]
    with pytest.raises(DataError, match="needs 4"):
        tokenize([source], tmp_path / "out" / "t.bin", tokenizer=Wide(), token_size_bytes=2)


def test_the_demo_corpus_is_the_standard_library_without_packages_and_tests() -> None:
    sources = find_library_sources()
    names = [path.as_posix() for path in sources]
    assert any(name.endswith("/json/decoder.py") for name in names)
    assert not any(part in name for name in names for part in ("site-packages/", "dist-packages/", "/test/", "/tests/"))
    assert sources == find_library_sources()


def test_the_demo_corpus_is_built_once(tmp_path: Path) -> None:
    sources = find_library_sources()[:3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psyche.data.corpus.find_library_sources", lambda: sources)
        corpus = build_demo_corpus(tmp_path, held_out_bytes=1_000)
        stamp = (corpus.train_folder / "corpus.bin").stat().st_mtime_ns
        assert build_demo_corpus(tmp_path, held_out_bytes=1_000) == corpus
        assert (corpus.train_folder / "corpus.bin").stat().st_mtime_ns == stamp
        assert (corpus.documents, corpus.held_out_tokens) == (3, len(read_ids(corpus.held_out)))
        text = bytes(read_ids(corpus.train_folder / "corpus.bin") + read_ids(corpus.held_out))
        assert text == b"".join(path.read_bytes() + b"\0" for path in sources)
        corpus.held_out.write_bytes(b"")  # half-made: built again
        assert build_demo_corpus(tmp_path, held_out_bytes=1_000) == corpus
        assert build_demo_corpus(tmp_path, held_out_bytes=2_000) != corpus
        (tmp_path / "corpus.json").write_text("[1]")
        assert build_demo_corpus(tmp_path, held_out_bytes=1_000) == corpus


def test_a_folder_gives_no_keys_and_no_binary_files(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_text("ab" * 32)
    (tmp_path / "tokens.bin").write_bytes(bytes(100))
    (tmp_path / "text").write_text("hello")
    assert find_texts([tmp_path]) == [tmp_path / "text"]


def test_files_without_any_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=r"a\.txt: there is no text in there; name other files"):
        tokenize([tmp_path / "a.txt"], tmp_path / "out" / "x.bin")
    assert not (tmp_path / "out" / "x.bin").exists()
