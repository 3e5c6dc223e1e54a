"""`psyche distro show`: what an update has for each tensor, and what it says of files that are none."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from psyche.cli.app import app
from psyche.core.encoding.plan import PlanTensor, TransformPlan, encode_plan
from psyche.modeling.distro.codec import ChunkSets, encode_payload

TENSORS = (PlanTensor("bias", (8,), (1, 8)), PlanTensor("weight", (16, 8), (8, 8)))


def write(folder: Path, *, one_bit: bool) -> Path:
    plan = TransformPlan(TENSORS, 2, one_bit)
    values = np.int8 if one_bit else np.float32
    sets = [
        ChunkSets(np.array([[1, 5]], np.int32), np.array([[1, -1]], values)),
        ChunkSets(np.array([[0, 9], [7, 64]], np.int32), np.array([[1, 1], [-1, 0]], values)),
    ]
    (folder / "plan.bin").write_bytes(encode_plan(plan))
    (folder / "one.distro").write_bytes(encode_payload(plan, sets))
    return folder / "one.distro"


def show(*words: str) -> Result:
    return CliRunner().invoke(app, ["distro", "show", *words])


@pytest.mark.parametrize("one_bit", [True, False])
def test_an_update_is_shown_tensor_by_tensor(tmp_path: Path, one_bit: bool) -> None:
    rows = [line.split() for line in show(str(write(tmp_path, one_bit=one_bit))).stdout.splitlines()]
    magnitude = [] if one_bit else [["magnitude"], ["2"], ["3"]]
    wanted = [
        ["tensor", "weights", "chunks", "sent", "positive"],
        ["bias", "8", "1", "2", "50.0%"],
        ["weight", "128", "2", "3", "66.7%"],
    ]
    assert rows == [row + more for row, more in zip(wanted, magnitude or [[]] * 3, strict=True)]


def test_files_that_are_no_updates_are_refused_with_the_way_out(tmp_path: Path) -> None:
    update = write(tmp_path, one_bit=True)
    update.write_bytes(update.read_bytes() + b"x")
    assert "it is of another model, or cut off" in show(str(update)).stderr
    (tmp_path / "plan.bin").unlink()
    assert "updates are shown by the plan.bin in their folder" in show(str(update)).stderr
    (tmp_path / "plan.bin").write_bytes(b"no plan")
    assert show(str(update)).exit_code == 1
