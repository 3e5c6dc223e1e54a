"""The canonical list of a run's data files; its blob id is `config.data_root` (D1)."""

import itertools
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from psyche.core.encoding.reader import Reader, take_name
from psyche.core.state.limits import HASH_BYTES
from psyche.errors import WireError

DATA_TAG: Final = b"psyche/data/1"
DATA_CHUNK_BYTES: Final = 1 << 20
MAX_DATA_FILES: Final = 100_000
MAX_DATA_NAME_BYTES: Final = 1_024
MAX_DATA_MANIFEST_BYTES: Final = 256 << 20  # 8 TB of tokens with hashes
WHOLE_BYTES: Final = 1  # the token size of files in another form, such as Parquet: their bytes are counted
_NUMBERS: Final = struct.Struct("<QIQ")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One token file: `tokens` ids from byte `offset` to its end.

    `version`: ETag or generation, empty if the place has none. `hashes`: BLAKE3 of each MiB, one after the other.
    """

    name: str
    version: str
    size_bytes: int
    offset: int
    tokens: int
    hashes: bytes = b""


@dataclass(frozen=True, slots=True)
class DataManifest:
    """The token files of a run, sorted by name; with hashes of all of them, or of none."""

    token_size_bytes: int
    is_hashed: bool
    files: tuple[DataFile, ...]


FindManifest = Callable[[bytes], Awaitable[DataManifest | None]]  # by its id; None: nobody gives it now


def count_data_chunks(size_bytes: int) -> int:
    return -(-size_bytes // DATA_CHUNK_BYTES)


def encode_data_manifest(token_size_bytes: int, files: Iterable[DataFile], *, is_hashed: bool) -> bytes:
    """The manifest's canonical bytes; they do not depend on the order of `files`.

    Tag | token size u8 | 1 with hashes, else 0, u8 | number of files u32 | per file, sorted by name: name length u16,
    name, version length u16, version, size u64, offset u32, tokens u64, with hashes 32 for each MiB.

    Raises:
        WireError: the files break a rule (`_check`), or the format cannot hold a value.
    """
    manifest = DataManifest(token_size_bytes, is_hashed, tuple(sorted(files, key=lambda file: file.name)))
    _check(manifest)
    parts = [DATA_TAG, struct.pack("<BBI", token_size_bytes, is_hashed, len(manifest.files))]
    for file in manifest.files:
        try:
            for text in (file.name.encode(), file.version.encode()):
                parts += struct.pack("<H", len(text)), text
            parts += _NUMBERS.pack(file.size_bytes, file.offset, file.tokens), file.hashes
        except (struct.error, UnicodeEncodeError) as error:
            raise WireError(f"data manifest: {file.name[:80]!a}: {error}") from error
    return b"".join(parts)


def decode_data_manifest(raw: bytes) -> DataManifest:
    """Read a manifest; an accepted manifest encodes back to the same bytes.

    Raises:
        WireError: it has another form, or its files break a rule (`_check`).
    """
    reader = Reader(raw, "data manifest")
    reader.expect(DATA_TAG, "tag")
    token_size_bytes, with_hashes = reader.take_number(1, "token size"), reader.take_number(1, "hashes")
    if with_hashes > 1:
        raise reader.fail(f"{with_hashes} says neither that there are hashes nor that there are none")
    count = reader.take_number(4, "number of files")
    if count > MAX_DATA_FILES:
        raise reader.fail(f"{count} files, at most {MAX_DATA_FILES} may be there")
    files: list[DataFile] = []
    for _ in range(count):
        name, version = take_name(reader, "name"), take_name(reader, "version")
        size_bytes, offset, tokens = _NUMBERS.unpack(reader.take(_NUMBERS.size, "size"))
        hashes = reader.take(HASH_BYTES * count_data_chunks(size_bytes) if with_hashes else 0, "hashes")
        files.append(DataFile(name, version, size_bytes, offset, tokens, hashes))
    reader.finish()
    manifest = DataManifest(token_size_bytes, bool(with_hashes), tuple(files))
    _check(manifest)
    return manifest


def _check(manifest: DataManifest) -> None:
    """Names rise and have 1 to 1,024 bytes; the ids fill a file from their offset on; each MiB has its hash."""
    if manifest.token_size_bytes not in (WHOLE_BYTES, 2, 4):
        raise WireError(f"data manifest: token size is {manifest.token_size_bytes} bytes, must be 1, 2 or 4")
    if not 0 < len(manifest.files) <= MAX_DATA_FILES:
        raise WireError(f"data manifest: {len(manifest.files)} files, must be 1 to {MAX_DATA_FILES}")
    for before, after in itertools.pairwise(manifest.files):
        if before.name >= after.name:
            raise WireError(f"data manifest: names do not rise at {after.name[:80]!a}")
    for file in manifest.files:
        if not 0 < len(file.name.encode("utf-8", "replace")) <= MAX_DATA_NAME_BYTES:
            raise WireError(f"data manifest: {file.name[:80]!a}: a name has 1 to {MAX_DATA_NAME_BYTES} bytes")
        if file.offset + file.tokens * manifest.token_size_bytes != file.size_bytes:
            raise WireError(f"data manifest: {file.name[:80]!a}: its tokens do not fill the file")
        if len(file.hashes) != (HASH_BYTES * count_data_chunks(file.size_bytes) if manifest.is_hashed else 0):
            raise WireError(f"data manifest: {file.name[:80]!a}: each MiB needs a hash of {HASH_BYTES} bytes, or none")
