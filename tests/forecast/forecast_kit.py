"""A small run and population for the tests of forecasts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from psyche.analysis.accounts import Accounts, read_accounts
from psyche.config.load import load_run
from psyche.config.profile import ClassTable
from psyche.forecast.question import Question
from psyche.forecast.workload import compute_workload
from psyche.telemetry.events import read_entry

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "config" / "dummy" / "run.toml"
SEQUENCE = 16


def build_machines(name: str = "home", **changes: Any) -> ClassTable:
    """A class that trains a sample in a second."""
    values: dict[str, Any] = {
        "name": name, "share": 1.0, "tokens_per_s": float(SEQUENCE), "up_mbit_s": 100.0, "down_mbit_s": 100.0,
        "latency_ms": 20.0, "load_s": 0.5, "apply_s": 0.05,
    }  # fmt: skip
    return ClassTable(**(values | changes))


def build_question(*parts: tuple[ClassTable, int], parameters: int = 10**9, **changes: Any) -> Question:
    run = load_run(RUN)
    own = {name: changes.pop(name) for name in ("rounds", "seed", "faults") if name in changes}
    count = sum(number for _, number in parts)
    config = {
        "max_round_train_time": 30, "init_min_clients": count, "global_batch_size_start": count,
        "global_batch_size_end": count, "rounds_per_epoch": 20,
    }  # fmt: skip
    optimizer = replace(run.model.optimizer, compression_chunk=64, compression_topk=8)
    run = replace(run, model=replace(run.model, optimizer=optimizer))
    return Question(
        run=run, workload=compute_workload(run, parameters=parameters), classes=tuple(one for one, _ in parts),
        counts=tuple(number for _, number in parts), changes=config | changes, **({"rounds": 4} | own),
    )  # fmt: skip


def read_log(log: bytes) -> Accounts:
    return read_accounts(read_entry(json.loads(line)) for line in log.splitlines())
