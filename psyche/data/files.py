"""Files of token ids: raw little-endian (`.bin`, `.ds`) or `.npy`, memory-mapped and checked before use."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.data_manifest import DataFile, encode_data_manifest
from psyche.durable import open_file, read_file
from psyche.errors import DataError, UnusableDataError, WireError

RAW_SUFFIXES: Final = (".bin", ".ds")
SUFFIXES: Final = (*RAW_SUFFIXES, ".npy")
SIDECAR_FORMAT: Final = "psyche/tokens/1"
MAX_SIDECAR_BYTES: Final = 1 << 16
MAX_TWO_BYTE_VOCAB: Final = 1 << 16
DTYPES: Final = {2: np.dtype("<u2"), 4: np.dtype("<u4")}

TokenArray = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A checked file: `tokens` ids of `token_size_bytes` each, starting at byte `offset`.

    `name` is its name in a manifest, if it is not the path's last part.
    """

    path: Path
    token_size_bytes: int
    offset: int
    tokens: int
    name: str = ""

    @property
    def size_bytes(self) -> int:
        return self.offset + self.tokens * self.token_size_bytes

    def map(self) -> TokenArray:
        """Memory-map the ids: uint16 or uint32 [tokens]."""
        try:
            if self.path.stat().st_size != self.size_bytes:
                raise DataError(f"{self.path}: its size has changed since it was opened; restart the process")
            dtype = DTYPES[self.token_size_bytes]
            return np.memmap(self.path, dtype=dtype, mode="r", offset=self.offset, shape=(self.tokens,))
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error


def find_files(paths: Iterable[Path]) -> list[Path]:
    """List the token files that `paths` name; the files of a folder are sorted by name, alike on every machine."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        if path.is_file():
            files.append(path)
            continue
        found = sorted((p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file()), key=lambda p: p.name)
        if not found:
            raise DataError(
                f"{path}: contains no token file ({', '.join(SUFFIXES)}); make one with `psyche data tokenize`"
            )
        files += found
    return files


def open_token_file(path: Path, token_size_bytes: int, vocab_size: int | None = None) -> TokenFile:
    """Open a token file and check its header, size and sidecar, whose vocabulary must not be larger than `vocab_size`.

    Raises UnusableDataError if it was written for a larger vocabulary.
    """
    if token_size_bytes not in DTYPES:
        raise DataError(f"{path}: token size is {token_size_bytes} bytes, must be 2 or 4")
    _check_sidecar(path, token_size_bytes, vocab_size)
    try:
        with open_file(path) as stream:
            offset, tokens = measure_tokens(str(path), path.stat().st_size, token_size_bytes, stream)
        return TokenFile(path, token_size_bytes, offset, tokens)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def measure_tokens(name: str, size_bytes: int, token_size_bytes: int, head: BinaryIO) -> tuple[int, int]:
    """Find at which byte the ids of a token file begin, and how many it has; `head` is read for `.npy` files only."""
    if not name.endswith(".npy"):
        if size_bytes % token_size_bytes:
            raise DataError(
                f"{name}: {size_bytes} bytes are not a whole number of {token_size_bytes}-byte tokens; "
                "the file is cut off or has another token size"
            )
        return 0, size_bytes // token_size_bytes
    shape, dtype = _read_npy_header(name, head)
    if dtype != DTYPES[token_size_bytes]:
        raise DataError(
            f"{name}: contains {dtype}, must be {DTYPES[token_size_bytes].name} little-endian; "
            f"convert it with tokens.astype('{DTYPES[token_size_bytes].str}')"
        )
    if len(shape) != 1:
        raise DataError(f"{name}: has {len(shape)} dimensions, must have one")
    if size_bytes != head.tell() + shape[0] * token_size_bytes:
        raise DataError(f"{name}: its size does not match the {shape[0]} tokens of its header; the file is cut off")
    return head.tell(), shape[0]


def _read_npy_header(name: str, stream: BinaryIO) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """Read shape and dtype from the header of a .npy file; the stream ends where the data begins."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise DataError(f"{name}: .npy version {version} is unknown")
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(stream)
    except ValueError as error:
        raise DataError(f"{name}: is not a .npy file: {error}") from error
    return shape, dtype


def encode_files(files: Iterable[DataFile], token_size_bytes: int, *, is_hashed: bool) -> bytes:
    """Encode the data manifest of token files (D1).

    Raises:
        DataError: a manifest cannot hold them, such as two of the same name.
    """
    try:
        return encode_data_manifest(token_size_bytes, files, is_hashed=is_hashed)
    except WireError as error:
        raise DataError(str(error)) from error


def find_token_size(path: Path, vocab_size: int | None) -> int:
    """Find the token size in bytes, 2 or 4, from the first file's sidecar or header, or else from the vocabulary."""
    first = find_files([path])[0]
    sidecar = read_sidecar(first)
    if sidecar is not None and sidecar.get("token_size_bytes") in DTYPES:
        return int(sidecar["token_size_bytes"])
    if first.suffix == ".npy":
        with open_file(first) as stream:
            _, dtype = _read_npy_header(str(first), stream)
        return next((size for size in DTYPES if dtype == DTYPES[size]), 2)
    return 2 if vocab_size is None else compute_token_size(vocab_size)


def compute_token_size(vocab_size: int) -> int:
    return 2 if vocab_size <= MAX_TWO_BYTE_VOCAB else 4


def get_sidecar_path(path: Path) -> Path:
    """The path of the sidecar, in which `psyche data tokenize` describes a file: `tokens.bin` -> `tokens.json`."""
    return path.with_suffix(".json")


def read_sidecar(path: Path) -> dict[str, Any] | None:
    """Read the sidecar of a token file; None if there is none, or the file is not in our format."""
    sidecar = get_sidecar_path(path)
    try:
        content = json.loads(read_file(sidecar, MAX_SIDECAR_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{sidecar}: cannot be read: {error}") from error
    is_ours = isinstance(content, dict) and cast("dict[str, Any]", content).get("format") == SIDECAR_FORMAT
    return cast("dict[str, Any]", content) if is_ours else None


def _check_sidecar(path: Path, token_size_bytes: int, vocab_size: int | None) -> None:
    sidecar = read_sidecar(path)
    if sidecar is None:
        return
    if sidecar.get("token_size_bytes") != token_size_bytes:
        raise DataError(
            f"{path}: has tokens of {sidecar.get('token_size_bytes')} bytes (says {get_sidecar_path(path).name}), but "
            f"the configured token size is {token_size_bytes} bytes; set the token size to match"
        )
    written = sidecar.get("vocab_size")
    if vocab_size is not None and isinstance(written, int) and written > vocab_size:
        raise UnusableDataError(
            f"{path}: was tokenized with a vocabulary of {written}, but the model's has {vocab_size}; "
            "tokenize with the model's tokenizer"
        )
