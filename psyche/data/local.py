"""Training data on this machine: rows of token ids from memory-mapped files.

A row has exactly `sequence_length` ids. The model itself shifts them to make labels, as in the original Psyche, so
the last id of a row predicts nothing. Each file is cut into consecutive rows; a rest at its end that does not fill a
row is not used.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.data_manifest import (
    DATA_CHUNK_BYTES,
    MAX_DATA_MANIFEST_BYTES,
    DataFile,
    DataManifest,
    decode_data_manifest,
)
from psyche.core.state.limits import HASH_BYTES
from psyche.core.state.state import ZERO32
from psyche.data.files import TokenArray, TokenFile, encode_files, find_files, open_token_file
from psyche.data.order import RowOrder, count_rows
from psyche.data.scan import ForeignToken, find_foreign_token
from psyche.durable import open_file, read_file
from psyche.errors import DataError, UnusableDataError, WireError
from psyche.wire.crypto import blob_id_of, compute_chunk_hashes

MAX_OPEN_FILES: Final = 64  # memory maps kept open; other files are mapped again when they are read


class TokenRows:
    """The rows of token files, in the order of `RowOrder`.

    Reading is thread-safe. Folders stand for their token files, in the order of their names.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        token_size_bytes: int,
        sequence_length: int,
        shuffle_seed: bytes | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if sequence_length < 1:
            raise DataError(f"sequence length {sequence_length}: must be above 0")
        self.token_size_bytes = token_size_bytes
        self.sequence_length = sequence_length
        self.vocab_size = vocab_size
        self.files = [open_token_file(path, token_size_bytes, vocab_size) for path in find_files(paths)]
        self._order = RowOrder([file.tokens // sequence_length for file in self.files], shuffle_seed)
        self.num_sequences = self._order.num_sequences
        if not self.num_sequences:
            names = ", ".join(str(path) for path in paths)
            raise DataError(f"{names}: no file holds {sequence_length} tokens, the length of one sequence")
        self.kept_files = min(len(self.files), MAX_OPEN_FILES)
        self._maps: OrderedDict[int, TokenArray] = OrderedDict()
        self._lock = threading.Lock()

    def samples(self, start: int, end: int) -> NDArray[np.uint32]:
        out = np.empty((count_rows(start, end, self.sequence_length), self.sequence_length), dtype=np.uint32)
        numbers, places = self._order.find(np.arange(start, end + 1, dtype=np.int64))
        for row, (number, place) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
            first = place * self.sequence_length
            out[row] = self._map(number)[first : first + self.sequence_length]
        self._check_rows(out, numbers, places)
        return out

    def _map(self, number: int) -> TokenArray:
        with self._lock:
            if number not in self._maps:
                self._maps[number] = self.files[number].map()
            self._maps.move_to_end(number)
            while len(self._maps) > MAX_OPEN_FILES:
                self._maps.popitem(last=False)
            return self._maps[number]

    def check_vocabulary(self) -> None:
        """Check ids of all files before anybody trains on them, at most 256 MiB (`find_foreign_token`)."""
        if self.vocab_size is None:
            return
        found = find_foreign_token(self.files, self.vocab_size)
        if found is not None:
            raise UnusableDataError(found.describe(self.vocab_size))

    def _check_rows(self, rows: NDArray[np.uint32], numbers: NDArray[np.intp], places: NDArray[np.int64]) -> None:
        if self.vocab_size is None or int(rows.max()) < self.vocab_size:
            return
        row, column = (int(i) for i in np.argwhere(rows >= self.vocab_size)[0])
        position = int(places[row]) * self.sequence_length + column
        name = str(self.files[int(numbers[row])].path)
        raise UnusableDataError(ForeignToken(name, position, int(rows[row, column])).describe(self.vocab_size))


def make_folder_manifest(
    opened: Sequence[TokenFile], *, is_hashed: bool, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> bytes:
    """Make the manifest of token files of this machine; their versions stay empty (D1).

    Raises:
        DataError: one cannot be read, or two have the same name.
    """
    files: list[DataFile] = []
    total = sum(one.size_bytes for one in opened)
    for one in opened:
        hashes = _hash(one) if is_hashed else b""
        files.append(DataFile(one.name or one.path.name, "", one.size_bytes, one.offset, one.tokens, hashes))
        progress(sum(file.size_bytes for file in files), total)
    return encode_files(files, opened[0].token_size_bytes, is_hashed=is_hashed)


def _hash(opened: TokenFile) -> bytes:
    try:
        with open_file(opened.path) as file:
            return b"".join(map(compute_chunk_hashes, iter(partial(file.read, DATA_CHUNK_BYTES), b"")))
    except OSError as error:
        raise DataError(f"{opened.path}: cannot be read: {error.strerror}") from error


def find_difference(files: Sequence[TokenFile], root: bytes, beside: Path | None = None) -> str:
    """Say that data files are not those of `root`; empty if they are, or no root is on record (D1).

    `beside` is where the manifest may be: it says which file differs. Where it has hashes, versions do not matter.
    """
    if root == ZERO32:
        return ""
    manifest = _read_manifest(beside, root)
    if manifest is not None and manifest.is_hashed:
        differing = _find_differing_file(files, manifest)
    elif any(blob_id_of(make_folder_manifest(files, is_hashed=is_hashed)) == root for is_hashed in (False, True)):
        differing = ""
    else:
        named = _find_differing_file(files, manifest) if manifest is not None else ""
        differing = named or "which of them differ, only its manifest says"
    return differing and (
        f"{files[0].path.parent}: the data files are not those of the run (config.data_root {root.hex()[:16]}): "
        f"{differing}; take the run's own files, all of them and no others"
    )


def read_data_manifest(paths: Sequence[Path | None], root: bytes) -> bytes | None:
    """Read the first of these files that has this id; None: none has."""
    for path in filter(None, paths):
        try:
            raw = read_file(path, MAX_DATA_MANIFEST_BYTES)
        except OSError:
            continue
        if blob_id_of(raw) == root:
            return raw
    return None


def _read_manifest(path: Path | None, root: bytes) -> DataManifest | None:
    raw = read_data_manifest((path,), root)
    try:
        return decode_data_manifest(raw) if raw is not None else None
    except WireError:
        return None


def _find_differing_file(files: Sequence[TokenFile], manifest: DataManifest) -> str:
    here = {file.name or file.path.name: file for file in files}
    for one in manifest.files:
        file = here.pop(one.name, None)
        if file is None:
            return f"{one.name} is missing"
        if file.size_bytes != one.size_bytes:
            return f"{one.name} has {file.size_bytes} bytes, not {one.size_bytes}"
        if (file.token_size_bytes, file.offset) != (manifest.token_size_bytes, one.offset):
            return f"{one.name} has ids of {file.token_size_bytes} bytes from byte {file.offset} on"
        hashes = _hash(file) if manifest.is_hashed else one.hashes
        for at in range(0, len(hashes), HASH_BYTES):
            if hashes[at : at + HASH_BYTES] != one.hashes[at : at + HASH_BYTES]:
                return f"{one.name} has other bytes in its MiB {at // HASH_BYTES}"
    return f"{next(iter(here))} is none of them" if here else ""
