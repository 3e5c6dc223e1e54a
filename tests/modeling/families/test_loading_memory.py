"""What loading takes of memory: the weights once, and one tensor more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kits.models import FAMILIES

# 60M parameters in tensors of at most 4 MB.
LARGE = {"hidden_size": 1_024, "intermediate_size": 1_024, "num_hidden_layers": 8, "num_attention_heads": 8,
         "num_key_value_heads": 8}  # fmt: skip
MEASURE = """
import resource, sys, torch
from pathlib import Path
from psyche.core.state.state import ZERO32
from psyche.modeling.architecture import read_blueprint
from psyche.modeling.checkpoint import load_snapshot, write_snapshot
from psyche.modeling.model import get_tensors, load_model
from psyche.modeling.snapshot import SnapshotInfo, read_model_files, read_snapshot_info

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

kind, small, large = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
load = {"folder": load_model, "snapshot": lambda path: load_snapshot(read_snapshot_info(path), lambda: None)}[kind]
load(small)  # everything that is imported and set up once
before = peak()
model = load(large)
tensors = [4 * one.numel() for one in get_tensors(model).values()]
print(peak() - before, sum(tensors), max(tensors))
"""
WRITE = """
import sys
from pathlib import Path
from psyche.core.state.state import ZERO32
from psyche.modeling.checkpoint import write_snapshot
from psyche.modeling.model import get_tensors, init_model, load_model
from psyche.modeling.snapshot import SnapshotInfo, read_model_files

for config in map(Path, sys.argv[1:]):
    folder = config.with_suffix("")
    init_model(config, folder, 1)
    info = SnapshotInfo(path=folder.with_name(folder.name + "-snapshot"), epoch=0, step=1, data_index=0, chain=ZERO32,
                        digest=ZERO32, weight_root=ZERO32, plan=b"", prev_commitment=ZERO32, train_count=0,
                        has_momentum=False, entries=(), files=())
    write_snapshot(info, get_tensors(load_model(folder)), {}, {}, read_model_files(folder), lambda: None)
"""
SLACK_BYTES = 16 << 20  # of the interpreter and the allocator


@pytest.mark.whole
def test_loading_holds_the_weights_once_and_one_tensor_more(tmp_path: Path) -> None:
    for name, changes in {"small": {}, "large": LARGE}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**FAMILIES["llama"], **changes}))
    run(WRITE, tmp_path / "small.json", tmp_path / "large.json")
    for kind, end in {"folder": "", "snapshot": "-snapshot"}.items():
        text = run(MEASURE, kind, tmp_path / f"small{end}", tmp_path / f"large{end}")
        taken, weights, largest = map(int, text.split())
        assert weights > 200 << 20
        assert taken <= weights + largest + SLACK_BYTES, (kind, taken, weights)


def run(code: str, *arguments: object) -> str:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout
