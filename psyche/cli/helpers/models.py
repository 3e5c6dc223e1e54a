"""Models at addresses and in folders, for `psyche model pull`, `push` and `inspect`."""

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from psyche.cli.helpers.common import say
from psyche.client.runtime.weights.remote import list_places
from psyche.config.places import MODELS, format_address, parse_model_address
from psyche.core.encoding.plan import compute_plan
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator
from psyche.durable import read_file
from psyche.errors import ConfigError, StorageError, TrainerError
from psyche.modeling.distro.layout import compute_cut_share
from psyche.modeling.first_weights import StoredTensor
from psyche.modeling.model_config import MAX_CONFIG_BYTES
from psyche.modeling.model_copy import Progress, check_digest, copy_model, list_model_files
from psyche.modeling.model_facts import ModelFacts, read_facts
from psyche.modeling.model_files import FolderFiles, use_model_files
from psyche.modeling.snapshot import INFO_NAME
from psyche.modeling.user_files import CARD_NAME, format_card
from psyche.modeling.weight_files import write_rounded_folder
from psyche.storage.bucket_writer import BucketWriter
from psyche.storage.hub import push_to_hub
from psyche.storage.port import StorageOptions
from psyche.telemetry.text import format_bytes, format_table

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")
CHUNK: Final = 64  # the usual one
DEVICES: Final = (2, 4, 8)
_UPLOAD: Final = "psyche model push"


def inspect(text: str, options: StorageOptions, read_values: Progress | None) -> ModelFacts:
    """Read what a model's headers say, in a folder of this machine if there is one of this name."""
    folder = Path(text)
    _refuse_snapshot(folder)
    source = Checkpoint(CheckpointKind.LOCAL, text) if folder.exists() else parse_model_address(text)
    found = use_model_files(source, folder, partial(read_facts, read_values=read_values), options)
    if found is None:
        raise ConfigError(f"{text}: is a file; name a model's folder, or {MODELS}")
    return found


def _refuse_snapshot(folder: Path) -> None:
    if (folder / INFO_NAME).is_file():
        raise ConfigError(
            f"{folder}: is a snapshot, from which a client goes on, and no model's folder; what the client exports is "
            "in models, beside the folder snapshots"
        )


def describe(facts: ModelFacts) -> str:
    """Facts for people; tensors that are alike in all layers share a line."""
    rows: dict[tuple[str, str, str], int] = {}
    for name, tensor in facts.tensors.items():
        key = _NUMBER.sub(".*", name), " x ".join(map(str, tensor.dims)), tensor.dtype
        rows[key] = rows.get(key, 0) + 1
    types = ", ".join(f"{dtype} {count:,}" for dtype, count in sorted(facts.count_dtypes().items()))
    kind = ", ".join(facts.config.get("architectures") or [str(facts.config.get("model_type", "unknown"))])
    lines = [
        f"{facts.address}: {kind}, {facts.parameters:,} parameters, {format_bytes(sum(facts.sizes_bytes.values()))}",
        f"types: {types or 'none'}", f"tokenizer: {facts.describe_tokenizer()}",
    ]  # fmt: skip
    if any(facts.chain):
        lines.append(f"uploaded by a client of a run: chain digest {facts.chain.hex()}")
    if facts.blob_ids:
        lines.append(f"digest: {facts.compute_digest().hex()}")
    if rows:
        table = [[name, str(count), shape, dtype] for (name, shape, dtype), count in sorted(rows.items())]
        lines += ["", format_table(["tensor", "times", "shape", "type"], table)]
        lines += ["", _describe_division(facts.tensors)]
    files = [[name, f"{size:,}"] for name, size in sorted(facts.sizes_bytes.items())]
    lines += ["", format_table(["file", "bytes"], files), ""]
    lines += [f"a run refuses it: {problem}" for problem in facts.problems] or ["a run can begin with it"]
    return "\n".join(lines)


def _describe_division(tensors: Mapping[str, StoredTensor]) -> str:
    plan = compute_plan({name: tensor.dims for name, tensor in tensors.items()}, CHUNK, 1, one_bit=True)
    shares = ", ".join(f"{100 * compute_cut_share(plan, ranks):.3g} % among {ranks}" for ranks in DEVICES)
    return f"several devices of one client divide {shares} (compression_chunk {CHUNK}); one has the rest"


def to_json(facts: ModelFacts) -> dict[str, Any]:
    def show(name: str, tensor: StoredTensor) -> dict[str, Any]:
        blob_id = {"blob_id": facts.blob_ids[name].hex()} if name in facts.blob_ids else {}
        return {"name": name, "shape": tensor.dims, "type": tensor.dtype, "file": tensor.file, **blob_id}

    return {
        "address": facts.address, "parameters": facts.parameters, "types": facts.count_dtypes(),
        "files": dict(facts.sizes_bytes), "tokenizer": facts.describe_tokenizer(), "chain": facts.chain.hex(),
        "digest": facts.compute_digest().hex() if facts.blob_ids else None, "problems": facts.problems,
        "tensors": [show(name, tensor) for name, tensor in sorted(facts.tensors.items())],
    }  # fmt: skip


def pull(source: Checkpoint, path: Path, options: StorageOptions, progress: Progress) -> None:
    """Copy the model at an address to a new folder."""
    _copy(source, path, options, progress, lambda _: None)


def pull_of_run(state: Coordinator, path: Path, options: StorageOptions, progress: Progress, checking: Progress) -> str:
    """Copy the weights that a run is at from a place on record; return the place. The digest on record decides.

    Raises:
        StorageError: no place on record gives them.
    """
    digest = next((mark.digest for mark in (state.certified, state.checkpoint) if mark.digest != ZERO32), None)
    is_exact = state.model.optimizer.is_exact
    reasons: list[str] = []
    for source in list_places(state, digest):

        def check(folder: Path) -> None:
            if digest is not None:
                check_digest(folder, digest, is_exact=is_exact, progress=checking)

        try:
            _copy(source, path, options, progress, check)
        except (StorageError, TrainerError) as error:
            reasons.append(f"{source.name}: {error}")
        else:
            return format_address(source)
    raise StorageError(
        f"run {state.run_id}: no repository or bucket on record gives the weights that it is at"
        f"{''.join(f'; {reason}' for reason in reasons)}; members have them: take part, or ask one to upload them "
        "(`psyche client train --hub-repo`)"
    )


def _copy(
    source: Checkpoint, path: Path, options: StorageOptions, progress: Progress, check: Callable[[Path], None]
) -> None:
    use_model_files(source, None, lambda files: copy_model(files, path, progress, check), options)  # type: ignore[arg-type]


def push(
    folder: Path, place: Checkpoint, options: StorageOptions, *, message: str, upload_dtype: str, is_private: bool,
    progress: Progress,
) -> list[str]:  # fmt: skip
    """Upload a model's folder, and once more in another type if that is wanted; return the addresses.

    Raises:
        ConfigError, TrainerError: there is nothing to upload, or not so.
        StorageError: it is not there; what is there by then is not sent again.
    """
    upload = partial(_upload, options=options, message=message, is_private=is_private, progress=progress)
    files = FolderFiles(folder)
    names = list_model_files(files)
    if left_out := sorted(files.get_sizes().keys() - names):
        say(f"note: {', '.join(left_out)}: not uploaded, as neither weights nor the model's small files nor its card")
    card = format_card(folder.absolute().name, "A language model.", [("uploaded with", _UPLOAD)])
    with tempfile.TemporaryDirectory() as staged:
        for name in names:
            (Path(staged) / name).symlink_to((folder / name).absolute())
        if CARD_NAME not in names:
            (Path(staged) / CARD_NAME).write_text(card, encoding="utf-8")
        found = [upload(Path(staged), place)]
    if upload_dtype != "float32":
        # Beside the folder: as much as it has may not fit elsewhere.
        with tempfile.TemporaryDirectory(prefix=".rounded-", dir=folder.absolute().parent) as beside:
            rounded = Path(beside) / upload_dtype
            write_rounded_folder(rounded, files, _read_card(folder, card))
            branch = Checkpoint(CheckpointKind.HUB, place.name, upload_dtype)
            found.append(upload(rounded, branch))
    return found


def check_push(
    folder: Path, place: Checkpoint, options: StorageOptions, upload_dtype: str, *, is_private: bool
) -> None:
    """Check what is known of an upload before anything is read or sent.

    Raises:
        ConfigError: it cannot come to anything.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; name a model's, as clients export it")
    _refuse_snapshot(folder)
    if place.kind is CheckpointKind.HUB:
        if not options.hub_token:
            raise ConfigError("the Hub needs a token that may write there: set HF_TOKEN, or `hf auth login`")
        if _COMMIT.fullmatch(place.revision or ""):
            raise ConfigError(
                f"{place.name}@{place.revision}: is a commit, which nothing can be added to; name a branch"
            )
    elif is_private:
        raise ConfigError("--private: who may read a bucket is set at the bucket; leave --private out")
    elif not place.revision:
        raise ConfigError(f"gs://{place.name}: name a folder of the bucket too, as gs://{place.name}/my-model")
    elif upload_dtype != "float32":
        raise ConfigError("--upload-dtype: a bucket has no branches; push to the Hub, or float32 alone")


def _upload(
    folder: Path, place: Checkpoint, *, options: StorageOptions, message: str, is_private: bool, progress: Progress
) -> str:
    paths = sorted(folder.iterdir())
    total = sum(path.stat().st_size for path in paths)

    async def to_bucket() -> str:
        async with aclosing(BucketWriter(place.name, place.revision or "", options)) as writer:
            about = {"message": message}
            await writer.put_files(paths, about, own=[CARD_NAME], progress=lambda sent: progress(sent, total))
        return format_address(place)

    async def to_hub() -> str:
        commit = await push_to_hub(
            folder, place.name, options, message=message, branch=place.revision or "main",
            is_private=is_private, progress=lambda sent: progress(sent, total),
        )  # fmt: skip
        return f"hf://{place.name}@{commit}"

    return trio.run(to_hub if place.kind is CheckpointKind.HUB else to_bucket)


def _read_card(folder: Path, otherwise: str) -> str:
    try:
        return read_file(folder / CARD_NAME, MAX_CONFIG_BYTES).decode(errors="replace")
    except OSError:
        return otherwise
