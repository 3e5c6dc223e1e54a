"""Exports: models for users, where they lie and what their cards say."""

import shutil
from pathlib import Path

from psyche.client.engine.actions import Export, ExportTime
from psyche.client.runtime.settings import ClientSettings
from psyche.core.state.state import Coordinator
from psyche.durable import read_file
from psyche.modeling.model_config import MAX_CONFIG_BYTES
from psyche.modeling.snapshot import CONFIG_NAME
from psyche.modeling.user_files import CARD_NAME, format_card
from psyche.wire.tokenizer_files import read_json_table


def get_export_time(settings: ClientSettings) -> ExportTime:
    """When a client with these settings exports: at each epoch's end only where the user named a folder for it."""
    if not settings.export:
        return ExportTime.NEVER
    return ExportTime.LAST_EPOCH if settings.checkpoint_dir is None else ExportTime.EVERY_EPOCH


def get_export_path(settings: ClientSettings, step: int) -> Path:
    root = settings.checkpoint_dir or settings.models_dir
    return root / f"{settings.run_id}-step{step}"


def build_run_card(state: Coordinator, action: Export, dtype: str, loss: float | None = None) -> str:
    metadata, length = state.metadata, state.model.max_seq_len
    rows = [
        ("run", f"`{state.run_id}`, uid `{state.run_uid.hex()}`"),
        ("steps", f"{action.step - 1:,} of {state.config.total_steps - 1:,}"),
        ("epochs", f"{action.epoch + 1:,}"),
        ("tokens", f"{action.data_index * length:,}: {action.data_index:,} samples of {length:,}"),
        ("parameters", f"{action.parameters:,}"),
        ("loss", "" if loss is None else f"{loss:.4f}, of the last samples that the member who wrote this trained on"),
        ("numbers", dtype if dtype == "float32" else f"{dtype}, rounded from float32"),
        ("digest on record", f"`{action.digest.hex()}`"),
        ("trained with", state.client_version),
    ]
    summary = metadata.description or "A model that the members of a Psyche run trained together."
    return format_card(metadata.name or state.run_id, summary, [row for row in rows if row[1] not in ("", "0")])


def measure_export(path: Path, digest: bytes, dtype: str) -> int:
    """The bytes of a folder that is an export of these weights in this type; 0 if it is none."""
    try:
        card = read_file(path / CARD_NAME, MAX_CONFIG_BYTES).decode(errors="replace")
        config = read_json_table(read_file(path / CONFIG_NAME, MAX_CONFIG_BYTES))
        if digest.hex() not in card or config.get("dtype") != dtype:
            return 0
        return sum(file.stat().st_size for file in path.iterdir())
    except OSError:
        return 0


def remove_old_exports(root: Path, run_id: str, keep_steps: int) -> None:
    found: list[tuple[int, Path]] = []
    for folder in root.glob(f"{run_id}-step*"):
        step = folder.name.removeprefix(f"{run_id}-step")
        if step.isdigit() and folder.is_dir():
            found.append((int(step), folder))
    for _, folder in sorted(found, reverse=True)[max(1, keep_steps) :]:
        shutil.rmtree(folder, ignore_errors=True)
