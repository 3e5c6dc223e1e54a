"""A client that never could take part in the run says so and ends before it joins."""

import json
import shutil
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing
from kits.log import Log
from kits.models import LLAMA, list_tensors, write_header, write_model_folder
from pyarrow import parquet

from psyche.backends.port import Backend
from psyche.client.runtime import app, preflight
from psyche.client.runtime.preflight import check_participation, find_model_problem, read_local_model
from psyche.client.runtime.reporting import Reporter
from psyche.client.runtime.settings import ClientSettings
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    Coordinator,
    DataLocation,
    DataLocationKind,
    DataType,
    Mark,
    OptimizerKind,
    RunState,
)
from psyche.data.local import make_folder_manifest
from psyche.data.prepared.rows import list_row_files
from psyche.errors import ConfigError, PsycheError, TrainerError, UnusableModelError
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_check import check_model
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.trainer.process import TrainerProcess
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.testing.builders import build_hash, build_model, build_state
from psyche.wire.crypto import blob_id_of
from psyche.wire.report import SelfReport
from psyche.wire.trainer import CheckReply, CheckRequest, LoadRequest, MemoryReply, MemoryRequest

FREE_BYTES = 1 << 40
PARAMETERS = 12_896  # of the kit's model


@dataclass
class Place:
    root: Path

    def __post_init__(self) -> None:
        write_model_folder(self.root / "model")
        self.write_tokens(63)
        location = DataLocation(DataLocationKind.LOCAL, address="data")
        model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"), data_location=location)
        self.state = build_state(model=model)
        data_dir = self.root / "client"
        self.settings = ClientSettings(run_id="run", data_dir=data_dir, local_root=self.root)

    def write_tokens(self, largest: int) -> None:
        (self.root / "data").mkdir(exist_ok=True)
        (self.root / "data" / "tokens.bin").write_bytes(np.full(64, largest, dtype="<u2").tobytes())

    def rewrite(self, **changes: object) -> None:
        config = self.root / "model" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))

    def check(self, problem: str = "") -> None:
        check_participation(self.state, self.settings, read_local_model(self.state, self.settings), problem)

    async def find_problem(self, trainer: TrainerProcess) -> str:
        local = read_local_model(self.state, self.settings)
        return await find_model_problem(self.state, self.settings, trainer, local)

    def describe(self) -> str:
        try:
            self.check()
        except ConfigError as error:
            return str(error)
        return ""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=FREE_BYTES))
    return Place(tmp_path)


def to_bin(place: Place) -> None:
    (place.root / "model" / "model.safetensors").rename(place.root / "model" / "pytorch_model.bin")


def miss_root(place: Place) -> None:
    place.settings.local_root = place.root / "nowhere"


def use_dummy(place: Place) -> None:
    place.state.model.checkpoint = Checkpoint(CheckpointKind.DUMMY, "none")


def use_adamw(place: Place) -> None:
    place.state.model.optimizer.kind = OptimizerKind.ADAMW


def use_two_devices(place: Place) -> None:
    place.settings.data_parallelism, place.state.config.verification_percent = 2, 5


def write_data_toml(place: Place) -> None:
    (place.root / "data" / "data.toml").write_text('dir = "."\ntoken_size = "TwoBytes"\nseq_len = 8\n')


def write_sidecar(place: Place) -> None:
    sidecar = {"format": "psyche/tokens/1", "token_size_bytes": 2, "vocab_size": 4_096}
    (place.root / "data" / "tokens.json").write_text(json.dumps(sidecar))


def prepare_rows(place: Place, length: int = 16, **columns: object) -> None:
    """Rows of another kind, in the place of the tokens."""
    lists = {"inputs": [[1] * length] * 3, "labels": [[-100] * length] * 3} | columns
    (place.root / "rows").mkdir()
    table = pa.table({name: values for name, values in lists.items() if values is not None})
    parquet.write_table(table, place.root / "rows" / "train.parquet")
    place.state.model.data_location = DataLocation(DataLocationKind.PREPROCESSED, "rows")
    place.state.model.data_type = DataType.FINETUNING


def prepare_other_rows(place: Place) -> None:
    prepare_rows(place)
    raw = make_folder_manifest(list_row_files(place.root / "rows"), is_hashed=True)
    place.state.config.data_root = blob_id_of(raw)
    (place.root / "data.manifest").write_bytes(raw)
    shutil.rmtree(place.root / "rows")
    prepare_rows(place, inputs=[[2] * 16] * 3)


CASES: dict[str, tuple[Callable[[Place], object], tuple[str, ...]]] = {
    "code": (lambda p: p.rewrite(auto_map={"AutoModel": "x.X"}), ("AR1: auto_map is not supported",)),
    "weights in .bin": (to_bin, ("has pytorch_model.bin", "write the model again")),
    "tokens beyond the vocabulary": (
        lambda p: p.write_tokens(64), ("tokens.bin: token 64 at position 0", "tokenize with the model's tokenizer"),
    ),
    "tokens of another tokenizer": (write_sidecar, ("was tokenized with a vocabulary of 4096", "the model's has 64")),
    "a local root that is missing": (miss_root, ("--local-root", "nowhere: there is no such folder; name the folder")),
    "data that is missing": (lambda p: shutil.rmtree(p.root / "data"), ("data: there is no such file or folder",)),
    "data of another length": (write_data_toml, ("seq_len of its data.toml is 8", "max_seq_len is 16")),
    "rows without labels": (lambda p: prepare_rows(p, labels=None), ("train.parquet: has no column 'labels'",)),
    "rows of another length": (
        lambda p: prepare_rows(p, 15), ("row 0: inputs has 15 numbers, must have 16, the model's max_seq_len",),
    ),
    "rows beyond the vocabulary": (
        lambda p: prepare_rows(p, inputs=[[64] * 16] * 3), ("train.parquet: row 0: token 64 at position 0",),
    ),
    "other rows than the record's": (
        prepare_other_rows, ("not those of the run", "train.parquet has other bytes in its MiB 0; take the run's own"),
    ),
    "a run without weights": (use_dummy, ("the run names no weights: its owner sets model.LLM.checkpoint",)),
    "several devices where members verify": (
        use_two_devices, ("2 devices: in a run that verifies", "start the client with one"),
    ),
    "an optimizer of `psyche train`": (use_adamw, ("'AdamW' trains in one process only",)),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), CASES.values(), ids=CASES)
def test_what_never_can_work_is_named_with_a_way_out(
    place: Place, spoil: Callable[[Place], None], words: tuple[str, ...]
) -> None:
    assert place.describe() == ""
    spoil(place)
    found = place.describe()
    assert all(word in found for word in words), found


def test_several_obstacles_are_told_together(place: Place) -> None:
    to_bin(place)
    place.write_tokens(64)
    assert "has pytorch_model.bin" in place.describe()
    assert "token 64" in place.describe()


def test_snapshots_need_room_which_those_of_an_earlier_process_are(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 3 * 8 * PARAMETERS
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=needed - 1))
    assert "resume: 310 kB are free there, but 3 snapshots of a model of 12.9k parameters" in place.describe()
    (place.settings.data_dir / "resume").mkdir(parents=True)
    (place.settings.data_dir / "resume" / "old").write_bytes(b"1")
    assert place.describe() == ""


def test_the_owner_s_word_counts_for_the_size_of_a_model_that_is_not_here(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=24_000))
    shutil.rmtree(place.root / "model")
    place.state.metadata.num_parameters, place.state.metadata.vocab_size = 1_001, 63
    assert "need 24.0 kB" in place.describe()
    assert "token 63 at position 0" in place.describe()


@pytest.mark.parametrize(
    ("certified", "run_state"),
    [(True, RunState.WAITING_FOR_MEMBERS), (False, RunState.ROUND_TRAIN), (False, RunState.FINISHED)],
)
def test_whoever_can_get_the_weights_from_peers_needs_no_model_of_its_own(
    place: Place, certified: bool, run_state: RunState
) -> None:
    """S9."""
    place.state.certified = Mark(digest=build_hash("weights")) if certified else Mark()
    place.state.run_state = run_state
    place.rewrite(auto_map="x")
    assert place.describe() == ""


async def test_a_model_that_this_machine_s_transformers_names_otherwise_is_found_before_the_join(place: Place) -> None:
    """AR4: the names on record count."""
    folder = place.root / "model"
    trainer = TrainerProcess()
    try:
        assert await place.find_problem(trainer) == ""
        place.rewrite(transformers_version="4.30.1")
        write_header(folder / "model.safetensors", LLAMA, prefix="decoder.")
        problem = await place.find_problem(trainer)
        assert "AR4: lacks model.embed_tokens.weight" in problem
        assert "written by transformers 4.30.1: a client needs that version" in problem
        place.state.model.max_seq_len = 33
        place.rewrite(rope_scaling={"rope_type": "yarn", "factor": 4.0})
        assert "AR7: max_position_embeddings is 32" in await place.find_problem(trainer)
    finally:
        await trainer.stop()
    with pytest.raises(ConfigError, match="AR4"):
        place.check(problem)
    place.state.run_state = RunState.FINISHED
    place.check(problem)


async def test_what_a_member_has_named_is_not_looked_at_before_the_join(place: Place) -> None:
    """S10: a hostile one would keep everybody from joining."""
    place.state.certified = place.state.checkpoint = Mark(digest=build_hash("weights"), epoch=1, uploader=3)
    for kind in (CheckpointKind.HUB, CheckpointKind.GCS, CheckpointKind.LOCAL):
        place.state.model.checkpoint = Checkpoint(kind, "liar/model", "main")
        assert await place.find_problem(TrainerProcess()) == ""


def test_without_a_model_folder_a_client_joins_and_fetches_the_weights(place: Place) -> None:
    """S11."""
    shutil.rmtree(place.root / "model")
    assert place.describe() == ""


@pytest.mark.parametrize(
    "named",
    [
        Checkpoint(CheckpointKind.HUB, "liar/none"),
        Checkpoint(CheckpointKind.GCS, "liar", "none"),
        Checkpoint(CheckpointKind.LOCAL, "small"),
    ],
)
def test_no_place_that_a_member_names_keeps_others_from_joining(place: Place, named: Checkpoint) -> None:
    """S10: any member may name any place, whatever lies there on this machine."""
    place.state.metadata.vocab_size = 0
    place.state.certified = Mark(digest=build_hash("weights"), epoch=1)
    place.state.checkpoint = Mark(digest=build_hash("weights"), epoch=1, uploader=3)
    place.state.model.checkpoint = named
    write_model_folder(place.root / "small", vocab_size=63)  # the data has token 63
    assert place.describe() == ""


def test_weights_on_record_that_nobody_can_train_are_an_obstacle_too(place: Place) -> None:
    """Such a run's server would not start today."""
    digest = compute_first_digest(FolderFiles(place.root / "model"), is_exact=True)
    place.state.certified = Mark(digest=digest)
    with pytest.raises(ConfigError, match="AR7"):
        place.check("AR7: too long")
    place.state.certified = Mark(digest=build_hash("others"))
    place.check("AR7: too long")  # peers have other weights


# --- before the join


@dataclass
class FakeBackend:
    state: Coordinator
    reports: list[SelfReport] = field(default_factory=list)

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        yield self.state

    def report(self, report: SelfReport) -> None:
        self.reports.append(report)


@dataclass
class FakeTrainer:
    refused: str = ""
    is_full: bool = False
    asked: list[LoadRequest] = field(default_factory=list)

    async def check(self, request: CheckRequest) -> CheckReply:
        await trio.lowlevel.checkpoint()
        if request.device == self.refused:
            raise TrainerError(f"device {request.device!r}: this machine has 0 CUDA devices; use cpu")
        tensors = {name: tuple(dims) for name, dims in list_tensors(LLAMA)} if request.config else {}
        return CheckReply(device=request.device, parameters=tensors)

    async def predict_memory(self, request: MemoryRequest) -> MemoryReply:
        await trio.lowlevel.checkpoint()
        self.asked.append(request.load)
        if self.is_full:
            raise UnusableModelError("memory: training needs 7 TB")
        return MemoryReply(device="cpu", micro_batch_size=5, parts={"weights": 2, "activations": 3}, free_bytes=9)


@pytest.mark.parametrize(
    ("spoil", "refused", "reason"),
    [(to_bin, "", "has pytorch_model.bin"), (lambda _place: None, "cuda", "this machine has 0 CUDA devices")],
)
async def test_the_owner_is_told_why_a_client_does_not_join(
    place: Place, autojump_clock: trio.testing.MockClock, spoil: Callable[[Place], None], refused: str, reason: str
) -> None:
    log, backend, trainer = Log(), FakeBackend(place.state), FakeTrainer(refused)
    reporter = Reporter(log, "client")
    await app.check_before_join(place.settings, cast("Backend", backend), trainer, reporter)
    assert ([type(event) for event in log.told], backend.reports) == ([types.MemoryPredicted], [])
    spoil(place)
    place.settings.device = "cuda"
    with pytest.raises(PsycheError, match=reason) as caught:
        await app.check_before_join(place.settings, cast("Backend", backend), trainer, reporter)
    assert [event.reason for event in log.get(types.CannotTakePart)] == [str(caught.value)]
    assert [report.error for report in backend.reports] == [f"cannot take part: {caught.value}"]


async def test_memory_is_predicted_for_a_model_that_is_here_whose_headers_are_read_once(
    place: Place, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(preflight, "check_model", lambda folder: read.append(folder) or check_model(folder))
    log, backend, trainer = Log(), cast("Backend", FakeBackend(place.state)), FakeTrainer()
    place.settings.micro_batch_size = 0
    place.state.config.verification_percent = 5  # for which copies are kept
    await app.check_before_join(place.settings, backend, trainer, Reporter(log, "client"))
    assert place.settings.micro_batch_size == 5
    assert place.settings.is_memory_checked
    assert read == [place.root / "model"]
    (asked,) = trainer.asked
    assert (asked.path, asked.micro_batch_size, asked.verifies) == (str(place.root / "model"), 0, True)
    assert asked.batch_size == place.state.config.global_batch_size_end
    (told,) = log.get(types.MemoryPredicted)
    assert (told.needed_bytes, told.free_bytes, told.micro_batch_size) == (5, 9, 5)


async def test_a_client_without_enough_memory_does_not_join(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    log, backend = Log(), FakeBackend(place.state)
    with pytest.raises(UnusableModelError, match="7 TB"):
        await app.check_before_join(
            place.settings, cast("Backend", backend), FakeTrainer(is_full=True), Reporter(log, "client")
        )
    assert [event.reason for event in log.get(types.CannotTakePart)] == ["memory: training needs 7 TB"]


async def test_a_client_with_a_wrong_device_does_not_wait_to_be_allowed(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    class Closed(FakeBackend):
        async def states(self) -> AsyncGenerator[Coordinator, None]:
            await trio.sleep_forever()
            yield self.state

    trainer = FakeTrainer(place.settings.device)
    with trio.fail_after(120), pytest.raises(TrainerError, match="use cpu"):
        await app.check_before_join(
            place.settings, cast("Backend", Closed(place.state)), trainer, Reporter(Log(), "client")
        )


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "CPU", "cuda:0,"])
async def test_a_device_that_nobody_has_is_refused_before_anything_is_made(place: Place, device: str) -> None:
    place.settings.device = device
    with pytest.raises(ConfigError, match=f"--device {device}: there is no such device; use auto, cpu, mps, cuda"):
        await app.run_client(place.settings, EventLog(None, node="n"), lambda *_: pytest.fail("it never gets so far"))
    assert not place.settings.data_dir.exists()
