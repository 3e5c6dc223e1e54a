"""Fetches a run's model and data before a client takes part, to where its next start finds them."""

import os
from collections.abc import Callable
from contextlib import aclosing

import trio

from psyche.client.runtime.app import lock_data_dir
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.weights.loading import Progress, fetch_from_place
from psyche.client.runtime.weights.remote import list_places
from psyche.config.load import NO_MANIFEST, find_data_manifest
from psyche.config.values import get_variant_name
from psyche.core.encoding.data_manifest import DataManifest, decode_data_manifest
from psyche.core.state.state import ZERO32, CheckpointKind, Coordinator, DataLocationKind
from psyche.data.local import read_data_manifest
from psyche.data.stored import StoredRows, open_http_rows
from psyche.data.weighted import WeightedRows
from psyche.errors import DataError, PsycheError, StorageError, TrainerError
from psyche.modeling.snapshot import list_snapshots
from psyche.telemetry.text import format_bytes

Say = Callable[[str], None]


async def fetch_model(state: Coordinator, settings: ClientSettings, say: Say, progress: Progress) -> None:
    """Fetch the weights that a run is at, from a repository or bucket on record, into the client's data folder.

    Raises:
        PsycheError: no place gives them, or a client is using the folder.
    """
    digest = None if state.certified.digest == ZERO32 else state.certified.digest
    handle = lock_data_dir(settings.data_dir)
    try:
        snapshots = await trio.to_thread.run_sync(list_snapshots, settings.snapshots_dir)
        if any(one.digest == digest for one in snapshots):
            say("model: its weights are here already")
            return
        places = list_places(state, digest)
        if not places:
            kind = state.model.checkpoint.kind
            what = "lies in a folder" if kind is CheckpointKind.LOCAL else "is on record at no repository or bucket"
            say(f"model: {what}: a client that lacks the weights gets them from the others")
            return
        reasons: list[str] = []
        for place in places:
            try:
                path = await fetch_from_place(
                    place, state, settings.snapshots_dir, settings.storage, digest=digest, progress=progress
                )
            except (StorageError, TrainerError) as error:
                reasons.append(str(error))
            else:
                say(f"model: fetched from {place.name} to {path}")
                return
        raise PsycheError("; ".join(reasons))
    finally:
        os.close(handle)


async def fetch_data(state: Coordinator, settings: ClientSettings, say: Say, progress: Progress) -> None:
    """Fetch a run's training data, or the sources of its mix, into the cache; judged by the manifest if it is here.

    Raises:
        DataError: they cannot be read, or the cache has no room for them; another manifest is named.
    """
    location = state.model.data_location
    if location.kind not in (DataLocationKind.HTTP, DataLocationKind.WEIGHTED_HTTP):
        is_elsewhere = location.kind is DataLocationKind.PREPROCESSED
        why = "a client reads as it needs them" if is_elsewhere else "are not read over HTTP"
        say(f"data: are {get_variant_name(location.kind)}, which {why}: nothing to fetch")
        return
    root, own = state.config.data_root, find_data_manifest(settings.data_manifest, settings.local_root)
    raw = await trio.to_thread.run_sync(read_data_manifest, (own,), root)
    if raw is None and settings.data_manifest not in (None, NO_MANIFEST) and root != ZERO32:
        raise DataError(f"{own}: is no manifest of the data on record (data_root {root.hex()})")

    async def find_manifest(_root: bytes) -> DataManifest | None:
        return await trio.to_thread.run_sync(decode_data_manifest, raw or b"")

    length = state.model.max_seq_len
    rows: StoredRows | WeightedRows
    if location.kind is DataLocationKind.WEIGHTED_HTTP:
        rows = WeightedRows(location.address, settings.storage, sequence_length=length, vocab_size=None)
    else:
        rows = open_http_rows(
            location, settings.storage, sequence_length=length, vocab_size=None, root=root if raw else ZERO32,
            find_manifest=find_manifest,
        )  # fmt: skip
    async with aclosing(rows):
        size_bytes = await rows.download(progress)
    say(f"data: all {format_bytes(size_bytes)} are in {settings.storage.cache_dir}")
