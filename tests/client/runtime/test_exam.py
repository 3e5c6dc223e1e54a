"""Documents of tasks as ids of the run's own tokenizer, which lies in a client's snapshot."""

import json
from pathlib import Path
from typing import Any

import pytest
from kits.storage.tasks import write_data

from psyche.client.runtime.evals.exam import TaskExam
from psyche.client.runtime.settings import ClientSettings
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.errors import DataError
from psyche.evals.ledger import Plan
from psyche.evals.tasks import TASKS, Metric
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import SnapshotRequest

ROWS = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("tasks"), ROWS)


@pytest.fixture
def settings(data: Path, tmp_path: Path) -> ClientSettings:
    return ClientSettings(
        run_id="run", data_dir=tmp_path / "client", eval_tasks=(TASKS["piqa"], TASKS["mmlu"]), eval_task_data=data
    )


async def keep_snapshot(settings: ClientSettings, **changes: bytes) -> bytes:
    """Write a snapshot whose model has the tokenizer of bytes; return the digest of its weights."""
    folder = settings.data_dir.parent / "tokenizer"
    write_tokenizer(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    trainer = DummyTrainer()
    trainer.files = {"config.json": b"{}", **files} | {
        name.replace("_json", ".json"): raw for name, raw in changes.items()
    }
    trainer.files = {name: raw for name, raw in trainer.files.items() if raw}
    chain = bytes(32)
    digest = compute_state_digest(chain, trainer.compute_part())
    request: dict[str, Any] = {"kind": "resume", "epoch": 0, "step": 1, "data_index": 0, "chain": chain}
    await trainer.snapshot(SnapshotRequest(path=str(settings.snapshots_dir / "one"), digest=digest, **request))
    return digest


async def test_blocks_have_all_documents_in_an_order_of_their_own(settings: ClientSettings) -> None:
    digest, exam = await keep_snapshot(settings), TaskExam(settings)
    piqa, mmlu = await exam.load()
    assert (piqa.name, piqa.documents, piqa.blocks, piqa.metric) == ("piqa", ROWS, 2, Metric.ACC_NORM)
    assert (mmlu.metric, mmlu.task_hash == piqa.task_hash) == (Metric.ACC, False)
    asked = [one for block in range(2) for one in await exam.encode(piqa, digest, block)]
    assert len({one.document for one in asked}) == ROWS
    first = asked[0]
    assert bytes(first.request.context).decode() == first.document.context
    assert [bytes(one).decode() for one in first.request.choices] == [f" {one}" for one in first.document.choices]


@pytest.mark.parametrize(
    "config", [{"max_position_embeddings": 60}, {"n_positions": 60}, {"text_config": {"max_position_embeddings": 60}}]
)
async def test_documents_longer_than_the_model_are_left_out(settings: ClientSettings, config: dict[str, Any]) -> None:
    digest = await keep_snapshot(settings, config_json=json.dumps(config).encode())
    exam = TaskExam(settings)
    plan = (await exam.load())[0]
    asked = [one for block in range(plan.blocks) for one in await exam.encode(plan, digest, block)]
    assert 0 < len(asked) < ROWS
    assert all(one.request.positions <= 60 for one in asked)


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [(b"", "the run's model has no tokenizer.json"), (b"{", "is no tokenizer that can be loaded")],
)
async def test_a_model_without_a_tokenizer_is_told(settings: ClientSettings, tokenizer: bytes, text: str) -> None:
    digest, exam = await keep_snapshot(settings, tokenizer_json=tokenizer), TaskExam(settings)
    plan: Plan = (await exam.load())[0]
    with pytest.raises(DataError, match=text):
        await exam.encode(plan, digest, 0)
    with pytest.raises(DataError, match="has no snapshot of the certified weights yet"):
        await TaskExam(settings).encode(plan, bytes(32), 0)
