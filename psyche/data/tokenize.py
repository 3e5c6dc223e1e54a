"""`psyche data tokenize`: convert text files to files of token ids.

Documents follow each other, each ended by a separator. The last `held_out_bytes` of the text can go to a second file,
for evaluation. Files are written atomically, each with a sidecar that describes it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from psyche.data import bytes_tokenizer
from psyche.data.files import SIDECAR_FORMAT, compute_token_size
from psyche.data.records import DEFAULT_FIELD, Progress
from psyche.data.texts import Span, find_texts, read_parts, split_texts
from psyche.durable import naming, read_file
from psyche.errors import DataError
from psyche.wire.tokenizer_files import (
    END_TOKENS,
    MAX_TOKEN_ROLE_BYTES,
    TOKEN_ROLE_FILES,
    find_token_name,
    open_tokenizer,
)

__all__ = [
    "ByteTokenizer",
    "HuggingFaceTokenizer",
    "TextTokenizer",
    "TokenizeReport",
    "TokenizedFile",
    "find_texts",
    "get_part_path",
    "tokenize",
]

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextTokenizer(Protocol):
    name: str
    vocab_size: int
    separator_id: int

    def encode(self, text: bytes) -> Sequence[int]:
        """Encode a piece of UTF-8 text, without a separator."""
        ...


class ByteTokenizer:
    """A tokenizer that takes every byte as its id; it drops zero bytes, since id 0 is the separator."""

    name = "bytes"
    vocab_size = bytes_tokenizer.VOCAB_SIZE
    separator_id = bytes_tokenizer.SEPARATOR_ID

    def encode(self, text: bytes) -> bytes:
        return text.replace(b"\0", b"")


class HuggingFaceTokenizer:
    """A tokenizer from a `tokenizer.json` or its folder; it replaces bytes that are not UTF-8.

    `separator` is the token between documents; None takes the tokenizer's end token.
    """

    def __init__(self, path: Path, separator: str | None = None) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        self._tokenizer = _load_tokenizer(file)
        self.name = str(file)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.separator_id = self._find_separator(file, separator)

    def encode(self, text: bytes) -> Sequence[int]:
        return self._tokenizer.encode(text.decode("utf-8", errors="replace"), add_special_tokens=False).ids

    def _find_separator(self, file: Path, separator: str | None) -> int:
        wanted = [separator] if separator else [_read_end_token(file.parent), *END_TOKENS]
        for token in wanted:
            number: int | None = self._tokenizer.token_to_id(token) if token else None
            if number is not None:
                return number
        what = f"has no token {separator!r}" if separator else "names no end token"
        raise DataError(f"{file}: {what}; name one of its tokens with --separator")


@dataclass(frozen=True, slots=True)
class TokenizedFile:
    path: Path
    tokens: int
    documents: int
    text_bytes: int
    token_size_bytes: int
    vocab_size: int
    tokenizer: str


@dataclass(frozen=True, slots=True)
class TokenizeReport:
    """The written files; `held_out` is None without a split."""

    train: TokenizedFile
    held_out: TokenizedFile | None


def tokenize(
    texts: Sequence[Path],
    output: Path,
    *,
    tokenizer: TextTokenizer | None = None,
    held_out: Path | None = None,
    held_out_bytes: int = 0,
    token_size_bytes: int | None = None,
    field: str = DEFAULT_FIELD,
    progress: Progress | None = None,
    measuring: Progress | None = None,
) -> TokenizeReport:
    """Write the ids of `texts`, in order, to `output` (`.bin`, little-endian, no header).

    The last `held_out_bytes` of the text go to `held_out`, in a separate folder. `token_size_bytes` None takes 2 if the
    vocabulary allows it, otherwise 4. `field` of records (JSON Lines, Parquet) is the text; each record is a document.
    `progress` is called with (bytes done, total bytes), about once per MiB; `measuring` likewise, while files of
    records are read once before, to check and to measure them.
    """
    chosen: TextTokenizer = tokenizer or ByteTokenizer()
    size_bytes = _choose_token_size(chosen, token_size_bytes)
    _check_split(output, held_out, held_out_bytes)
    before, after = split_texts(texts, held_out_bytes, field, measuring)
    counter = _Counter(progress, sum(s.size_bytes for s in (*before, *after)))
    train = _write(output, before, chosen, size_bytes, counter)
    rest = _write(held_out, after, chosen, size_bytes, counter) if held_out is not None else None
    return TokenizeReport(train, rest)


class _Counter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        if self._progress:
            self._progress(self._done, self._total)


def _choose_token_size(tokenizer: TextTokenizer, wanted: int | None) -> int:
    smallest = compute_token_size(tokenizer.vocab_size)
    if wanted is None:
        return smallest
    if wanted not in (2, 4) or wanted < smallest:
        raise DataError(f"tokens of {wanted} bytes: a vocabulary of {tokenizer.vocab_size} needs {smallest} or 4 bytes")
    return wanted


def _check_split(output: Path, held_out: Path | None, held_out_bytes: int) -> None:
    if (held_out is None) != (held_out_bytes == 0):
        raise DataError("held-out data needs both a file and a number of bytes above 0")
    if held_out is not None and held_out.resolve().parent == output.resolve().parent:
        raise DataError(f"{held_out}: must not be in the folder of {output.name}, or training would read it")


def _write(
    output: Path, spans: Sequence[Span], tokenizer: TextTokenizer, size_bytes: int, counter: _Counter
) -> TokenizedFile:
    output.parent.mkdir(parents=True, exist_ok=True)
    part = get_part_path(output)
    try:
        with naming(output), part.open("wb") as stream:
            tokens = sum(_write_span(stream, s, tokenizer, size_bytes, counter) for s in spans)
            stream.flush()
            os.fsync(stream.fileno())
        written = TokenizedFile(
            path=output,
            tokens=tokens,
            documents=sum(s.count for s in spans),
            text_bytes=sum(s.size_bytes for s in spans),
            token_size_bytes=size_bytes,
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.name,
        )
        sidecar = output.with_suffix(".json")
        sidecar.unlink(missing_ok=True)  # an old sidecar must never accompany the new file
        part.replace(output)
        _write_sidecar(sidecar, written)
        return written
    finally:
        part.unlink(missing_ok=True)


def _write_span(stream: BinaryIO, span: Span, tokenizer: TextTokenizer, size_bytes: int, counter: _Counter) -> int:
    tokens = 0
    for part, ends_document in read_parts(span):
        tokens += _write_ids(stream, tokenizer.encode(part), size_bytes)
        if ends_document:
            tokens += _write_ids(stream, [tokenizer.separator_id], size_bytes)
        if part:
            counter.add(len(part))
    return tokens


def _write_ids(stream: BinaryIO, ids: Sequence[int], size_bytes: int) -> int:
    import numpy as np

    raw = np.frombuffer(ids, dtype=np.uint8) if isinstance(ids, bytes) else np.asarray(ids, dtype=np.uint32)
    stream.write(raw.astype(f"<u{size_bytes}").tobytes())
    return len(raw)


def get_part_path(path: Path) -> Path:
    """The temporary path of a file that is being written; it differs from process to process."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _write_sidecar(path: Path, written: TokenizedFile) -> None:
    content = {"format": SIDECAR_FORMAT} | asdict(written)
    content["path"] = written.path.name
    part = get_part_path(path)
    with naming(path):
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _load_tokenizer(file: Path) -> "Tokenizer":
    if not file.is_file():
        raise DataError(f"{file}: no such tokenizer file; name a tokenizer.json, or its folder, with --tokenizer")
    return open_tokenizer(file, file.read_bytes())


def _read_end_token(folder: Path) -> str | None:
    files = {
        name: read_file(path, MAX_TOKEN_ROLE_BYTES) for name in TOKEN_ROLE_FILES if (path := folder / name).is_file()
    }
    return find_token_name(files, "eos_token")
