"""When a client exports, where to, and what the model card of a run's model says."""

from pathlib import Path
from typing import Any

import pytest

from psyche.client.engine.actions import Export, ExportTime
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.weights.exporting import build_run_card, get_export_path, get_export_time
from psyche.core.state.state import Metadata
from psyche.testing.builders import build_config, build_hash, build_model, build_state

DATA = Path("data")


def build_settings(**changes: Any) -> ClientSettings:
    return ClientSettings(run_id="run", data_dir=DATA, **changes)


@pytest.mark.parametrize(
    ("changes", "time", "path"),
    [
        ({}, ExportTime.LAST_EPOCH, DATA / "models" / "run-step5"),
        ({"checkpoint_dir": Path("mine")}, ExportTime.EVERY_EPOCH, Path("mine") / "run-step5"),
        ({"export": False}, ExportTime.NEVER, None),
        ({"export": False, "checkpoint_dir": Path("mine")}, ExportTime.NEVER, None),
    ],
)
def test_the_model_is_exported_at_the_end_unless_told_otherwise(
    changes: dict[str, Any], time: ExportTime, path: Path | None
) -> None:
    settings = build_settings(**changes)
    assert get_export_time(settings) is time
    assert path is None or get_export_path(settings, 5) == path


def test_the_card_of_a_run_says_what_the_record_says_of_the_model() -> None:
    state = build_state(build_config(total_steps=241), build_model(max_seq_len=128))
    state.metadata = Metadata(name="My | run", description="Poems,\nby many.")
    digest = build_hash("weights")
    card = build_run_card(state, Export(2, 241, 5_760, digest, 900_000), "bfloat16")
    for line in (
        "# My \\| run",
        "Poems, by many.",
        f"| run | `test-run`, uid `{state.run_uid.hex()}` |",
        "| steps | 240 of 240 |",
        "| epochs | 3 |",
        "| tokens | 737,280: 5,760 samples of 128 |",
        "| parameters | 900,000 |",
        "| numbers | bfloat16, rounded from float32 |",
        f"| digest on record | `{digest.hex()}` |",
    ):
        assert line in card.splitlines(), line


def test_what_is_not_known_is_not_in_the_card() -> None:
    state = build_state()
    state.metadata = Metadata()
    card = build_run_card(state, Export(0, 2, 8, build_hash("weights"), 0), "float32")
    assert "| parameters |" not in card
    assert "# test-run" in card.splitlines()
    assert "| numbers | float32 |" in card.splitlines()
