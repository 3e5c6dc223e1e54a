"""Which files an address of `psyche data manifest` means, and their manifest."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import trio

from psyche.config.load import NO_MANIFEST, RUN_FILE_NAMES, LoadedRun, find_local_data, load_run
from psyche.config.places import parse_data
from psyche.core.encoding.data_manifest import WHOLE_BYTES
from psyche.core.state.state import DataLocation, DataLocationKind, DataType
from psyche.data.files import TokenFile, find_files, find_token_size, open_token_file
from psyche.data.local import make_folder_manifest
from psyche.data.prepared.rows import list_row_files
from psyche.data.provider import REMOTE_KINDS, find_rows, has_own_rows
from psyche.data.stored import encode_tokens, get_token_size, list_tokens, open_location
from psyche.errors import DataError
from psyche.storage.port import MAX_RANGE_BYTES, Storage, StorageOptions
from psyche.storage.urls import open_urls
from psyche.wire.crypto import compute_chunk_hashes

USUAL_TOKEN_SIZE: Final = 2
STRIDE_BYTES: Final = 8 * MAX_RANGE_BYTES  # as many requests at once as a storage makes
Progress = Callable[[int, int], None]


def find_run(addresses: Sequence[str]) -> LoadedRun | None:
    """Load the run whose file, or folder, is the only address."""
    path = Path(addresses[0])
    is_run = path.name in RUN_FILE_NAMES or any((path / name).is_file() for name in RUN_FILE_NAMES)
    return load_run(path, NO_MANIFEST) if is_run and len(addresses) == 1 else None


def make(
    run: LoadedRun | None, addresses: Sequence[str], token_size: int | None, options: StorageOptions, *,
    is_hashed: bool, progress: Progress,
) -> bytes:  # fmt: skip
    """Make the manifest of a run's data, or of the files at these addresses.

    Raises:
        ConfigError, DataError, StorageError: the files cannot be read, or are no token files.
    """
    location = run.model.data_location if run else None
    if location is None and len(addresses) == 1:
        location = parse_data(addresses[0], token_size or USUAL_TOKEN_SIZE)
    if location is not None and location.kind in REMOTE_KINDS and not (run and has_own_rows(location, run.folder)):
        opened, size = _open_place(location, options)
    elif any("://" in address for address in addresses):
        urls = open_urls(addresses, options)
        opened, size = (urls, urls.names), USUAL_TOKEN_SIZE
    else:
        files = _find_folder_files(run, [Path(address) for address in addresses], token_size)
        return make_folder_manifest(files, is_hashed=is_hashed, progress=progress)
    if size != WHOLE_BYTES:
        size = token_size or size
    return trio.run(partial(make_manifest, *opened, size, is_hashed=is_hashed, progress=progress))


def _open_place(
    location: DataLocation, options: StorageOptions
) -> tuple[tuple[Storage, Sequence[str] | None], int]:  # fmt: skip
    """Open a place; say which of its files are meant (None: all) and how many bytes a token has."""
    if location.kind is DataLocationKind.HTTP:
        return open_location(location.http, options), get_token_size(location)
    if location.kind is DataLocationKind.WEIGHTED_HTTP:
        raise DataError(
            "data_location 'WeightedHttp': a mix has no manifest; #sha256= and its hash behind the address pin the "
            "mix, addresses of a commit of the Hub its data"
        )
    from psyche.storage.hub import open_hub

    name, _, revision = location.address.partition("@")
    return (open_hub(name, revision, options, kind="dataset"), None), WHOLE_BYTES


def _find_folder_files(run: LoadedRun | None, paths: Sequence[Path], token_size: int | None) -> list[TokenFile]:
    if run is not None:
        location = run.model.data_location
        if location.kind is DataLocationKind.PREPROCESSED:
            return list_row_files(find_rows(location, run.folder))
        paths = [run.resolve(location.address if location.kind is DataLocationKind.LOCAL else "")]
    data = find_local_data(paths[0])
    if run is not None and data is not None and run.model.data_type is DataType.FINETUNING:
        return list_row_files(data.folder)
    found = find_files([data.folder] if data else paths)
    size = token_size or (data.token_size_bytes if data else find_token_size(found[0], None))
    return [open_token_file(path, size) for path in found]


async def make_manifest(
    storage: Storage, names: Sequence[str] | None, token_size_bytes: int, *, is_hashed: bool, progress: Progress
) -> bytes:
    """List and measure the token files of a storage and, with hashes, read them all; closes the storage.

    Raises:
        DataError, StorageError: as `list_tokens`.
    """
    async with aclosing(storage):
        files = await list_tokens(storage, names, token_size_bytes)
        if not is_hashed:
            return encode_tokens(files, token_size_bytes)
        hashes: dict[str, bytes] = {}
        total, done = sum(one.file.size_bytes for one in files), 0
        for file in (one.file for one in files):
            parts: list[bytes] = []
            for start in range(0, file.size_bytes, STRIDE_BYTES):
                raw = await storage.read(file, start, min(start + STRIDE_BYTES, file.size_bytes))
                parts.append(await trio.to_thread.run_sync(compute_chunk_hashes, raw))
                done += len(raw)
                progress(done, total)
            hashes[file.name] = b"".join(parts)
        return encode_tokens(files, token_size_bytes, hashes)
