"""What a client checks before it joins: whether it can take part in this run at all.

A member that can never load its weights holds up everybody's Warmup, in every epoch that it joins.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

from psyche.client.engine.context import ACTIVE_STATES
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.weights.remote import open_place
from psyche.config.load import find_data_manifest, find_local_data
from psyche.config.rules import find_unsupported
from psyche.core.state.limits import NO_UPLOADER
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    Coordinator,
    DataLocationKind,
    DataType,
    RunState,
)
from psyche.data.local import find_difference
from psyche.data.prepared.rows import open_rows
from psyche.data.provider import find_rows, has_own_rows, open_local
from psyche.errors import ConfigError, DataError, StorageError, TrainerError, UnusableModelError
from psyche.modeling.device_name import describe_verifying
from psyche.modeling.first_weights import gives_digest
from psyche.modeling.model_check import ModelCheck, check_model, find_differences
from psyche.modeling.model_config import Dims
from psyche.modeling.model_files import REMOTE
from psyche.modeling.snapshot import CONFIG_NAME, MODEL_NAME, list_snapshots
from psyche.modeling.trainer.process import TrainerProcess
from psyche.telemetry.text import format_bytes, format_count
from psyche.wire.trainer import CheckRequest

SNAPSHOTS: Final = 3  # P6: two are kept while a third is written
PARAMETER_BYTES: Final = 8  # in a snapshot: weights and momentum in fp32
HEADERS_S: Final = 30.0  # for the headers of a repository or bucket; without them the load says what is wrong


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The folder of the run's model on this machine, and what its config and headers say."""

    folder: Path
    check: ModelCheck


def read_local_model(state: Coordinator, settings: ClientSettings) -> LocalModel | None:
    """Read the headers of the run's model, once for all checks; None: it is not here. Blocks on the disk."""
    source = _get_source(state)
    folder = settings.local_root / source.name
    if source.kind is not CheckpointKind.LOCAL or not source.name or not folder.is_dir():
        return None
    return LocalModel(folder, check_model(folder))


async def find_model_problem(
    state: Coordinator, settings: ClientSettings, trainer: TrainerProcess, local: LocalModel | None
) -> str:
    """What keeps this machine's transformers from training the run's model (AR1 to AR4, AR7); values are not read.

    Empty: nothing, or neither the model nor its headers can be read before the join.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = await _find_model(state, settings, Path(folder), local)
        if found is None:
            return ""
        config, tensors = found
        request = CheckRequest(**settings.devices, config=str(config), max_seq_len=state.model.max_seq_len)
        try:
            reply = await trainer.check(request)
        except UnusableModelError as error:
            return str(error)
        return find_differences(state.model.checkpoint.name, tensors, reply.tensors, config)


async def _find_model(
    state: Coordinator, settings: ClientSettings, scratch: Path, local: LocalModel | None
) -> tuple[Path, Mapping[str, Dims]] | None:
    """The config.json of the run's model, and the names and shapes on record: in a snapshot, a folder, or far away."""
    for one in await trio.to_thread.run_sync(list_snapshots, settings.snapshots_dir):
        if one.digest == state.certified.digest:
            return one.path / MODEL_NAME / CONFIG_NAME, {entry.name: tuple(entry.dims) for entry in one.entries}
    if local is not None:
        return None if local.check.tensors is None else (local.folder / CONFIG_NAME, local.check.tensors)
    source = _get_source(state)
    if source.kind in REMOTE:
        with suppress(StorageError, TrainerError, trio.TooSlowError), trio.fail_after(HEADERS_S):
            async with open_place(source, settings.storage) as place:
                config = scratch / CONFIG_NAME
                config.write_bytes(place.layout.small[CONFIG_NAME])
                return config, {name: tensor.dims for name, tensor in place.layout.tensors.items()}
    return None


def check_participation(
    state: Coordinator, settings: ClientSettings, local: LocalModel | None, model_problem: str = ""
) -> None:
    """Raise ConfigError with what to do if this client can never take part in the run; blocks on the disk.

    `local` is from `read_local_model`, `model_problem` from `find_model_problem`.
    """
    if state.run_state is RunState.FINISHED:
        return
    if problems := list(find_obstacles(state, settings, local, model_problem)):
        raise ConfigError("; ".join(problems))


def find_obstacles(
    state: Coordinator, settings: ClientSettings, local: LocalModel | None, model_problem: str = ""
) -> Iterator[str]:
    source, location = _get_source(state), state.model.data_location
    has_data = location.kind is DataLocationKind.LOCAL
    yield from find_unsupported(replace(state.model, checkpoint=source))
    if source.kind is CheckpointKind.DUMMY and state.certified.digest == ZERO32:
        yield "the run names no weights: its owner sets model.LLM.checkpoint to a folder"
    if (source.kind is CheckpointKind.LOCAL or has_data) and not settings.local_root.is_dir():
        yield (
            f"--local-root {settings.local_root}: there is no such folder; name the folder that the run's model and "
            "data lie in"
        )
        return
    if state.config.verification_percent and (problem := describe_verifying(settings.ranks)):
        yield problem
    model = _check_first_weights(state, local, model_problem)
    yield from model.problems
    if has_data or has_own_rows(location, settings.local_root):
        vocab_size = state.metadata.vocab_size or model.vocab_size
        yield from _find_data_problems(state, settings, vocab_size)
    yield from _find_disk_problems(settings.snapshots_dir, model.parameters or state.metadata.num_parameters)


def _get_source(state: Coordinator) -> Checkpoint:
    """The source of weights that the owner named, or a folder of no name.

    S10: any member may have put a place of any kind in its stead. That says nothing of the run, and the weights of
    the record are with the peers all the same.
    """
    return state.model.checkpoint if state.checkpoint.uploader == NO_UPLOADER else Checkpoint(CheckpointKind.LOCAL)


def _check_first_weights(state: Coordinator, local: LocalModel | None, model_problem: str) -> ModelCheck:
    """Judge the configured model if it is here; a client without it takes the weights from peers (S9, S11)."""
    if local is None:
        return ModelCheck((model_problem,) if model_problem else ())
    check = local.check
    if model_problem and not check.problems:
        check = replace(check, problems=(model_problem,))
    if not check.problems:
        return check
    if state.certified.digest == ZERO32:
        is_needed = state.run_state not in ACTIVE_STATES  # of a running epoch, the weights come from its members
    else:
        is_needed = gives_digest(local.folder, state.certified.digest, is_exact=state.model.optimizer.is_exact)
    return check if is_needed else ModelCheck(())


def _find_data_problems(state: Coordinator, settings: ClientSettings, vocab_size: int | None) -> Iterator[str]:
    location, length, local_root = state.model.data_location, state.model.max_seq_len, settings.local_root
    try:
        if location.kind is DataLocationKind.PREPROCESSED:
            has_labels = state.model.data_type is DataType.FINETUNING
            rows = open_rows(find_rows(location, local_root), length, has_labels=has_labels, vocab_size=vocab_size)
        else:
            files = find_local_data(local_root / location.address)
            rows = open_local(location, files, local_root, length, vocab_size)
        rows.check_vocabulary()
        manifest = find_data_manifest(settings.data_manifest, local_root)
        if different := find_difference(rows.files, state.config.data_root, manifest):
            yield different
    except (ConfigError, DataError) as error:
        yield str(error)


def _find_disk_problems(snapshots: Path, parameters: int) -> Iterator[str]:
    """Check the room for snapshots; those of an earlier process count as room, since new ones replace them."""
    place = snapshots.absolute()
    while not place.exists():
        place = place.parent
    own = sum(file.stat().st_size for file in snapshots.rglob("*") if file.is_file())
    free = shutil.disk_usage(place).free + own
    needed = SNAPSHOTS * PARAMETER_BYTES * parameters
    if free < needed:
        yield (
            f"{snapshots}: {format_bytes(free)} are free there, but {SNAPSHOTS} snapshots of a model of "
            f"{format_count(parameters)} parameters need {format_bytes(needed)}; make room, or name a folder on "
            "another disk with --data-dir"
        )
