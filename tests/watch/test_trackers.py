"""A run in CSV, TensorBoard, trackio and wandb: what their own formats hold afterwards."""

import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pytest
import trio
from kits.commands import call, refuse
from kits.log import make
from watch.page_kit import Logs

from psyche.analysis.run_view import RunView
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from psyche.watch import trackers
from psyche.watch.app import Watcher
from psyche.watch.rows import Row, RowReader, name_runs
from psyche.watch.sources import LogSource
from psyche.watch.trackers import CsvWriter, Tracking

KEY = "0" * 40
BLOCK = 32_768  # of wandb's file, which has the frames of LevelDB's log
EVIL = '=cmd()|"\u202e\x1b[31m,\n' + "a" * 10_000
Found = dict[tuple[str, int], float]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    found = Logs(tmp_path / "logs")
    for height in range(4):
        found.play(height, late="ben" if height == 2 else "")
    return found


def read_view(folder: Path) -> RunView:
    source = LogSource(folder)
    while source.read():
        pass
    return source.view


def read_frames(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    place, record = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def read_wandb(folder: Path) -> Found:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.rglob("*.wandb")
    found: Found = {}
    for frame in read_frames(path.read_bytes()):
        items = {item.key or item.nested_key[0]: item.value_json for item in Record.FromString(frame).history.item}
        step = int(items.get("_step", "0"))
        found |= {(key, step): json.loads(value) for key, value in items.items() if key[0] != "_"}
    return found


def read_trackio(folder: Path) -> Found:
    (path,) = folder.glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    return {(key, step): value for step, metrics in rows for key, value in json.loads(metrics).items()}


def read_tensorboard(folder: Path) -> Found:
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.rglob("events.out.tfevents.*")
    data, place, found = path.read_bytes(), 0, Found()
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        event = Event.FromString(data[place + 12 : place + 12 + size])
        found |= {(one.tag, event.step): one.simple_value for one in event.summary.value}
        place += 16 + size
    return found


def read_csv(path: Path) -> Found:
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return {
        (f"p2p/nodes.{row['member']}.{key}" if row["member"] else key, int(row["step"])): float(value)
        for row in rows
        for key, value in row.items()
        if value and key not in ("run", "step", "unix", "member")
    }


def run_watch(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "psyche", "watch", *map(str, words)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.e2e
def test_every_tracker_s_own_file_has_the_figures_of_the_run(tmp_path: Path, logs: Logs) -> None:
    homes = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    for node, update in (("ada", 2.0), ("ben", 3.0)):
        logs.emit(node, make(types.TensorMeasured, step=2, name="a.weight", update_energy=update, grad_energy=8.0))
    measured = {("optim/a.weight.delta_energy", 3): 2.5, ("optim/a.weight.grad_energy", 3): 8.0}
    words = ("--csv", tmp_path / "run.csv", "--tensorboard", tmp_path / "board", "--trackio", "psyche")
    done = run_watch(logs.folder, "--once", *words, "--wandb-group", "demo", **homes)
    assert f"wandb sync {tmp_path}" in done.stdout
    found = read_csv(tmp_path / "run.csv")
    for point in read_view(logs.folder).curve:
        assert found["train/loss", point.step] == point.loss
        assert found["train/total_tokens", point.step] == point.tokens
        assert found["coordinator/round", point.step] == point.height
    assert found["train/global_token_batch_size", 3] == 128
    assert found["train/efficency", 2] == 0.5, "both trained for 1 of 2 seconds"
    assert found["p2p/nodes.ben.loss", 4] == pytest.approx(4.7)
    assert ("p2p/nodes.ben.loss", 3) not in found, "its result did not come"
    found |= measured  # for which a table has no columns
    assert read_wandb(tmp_path / "wandb") == found
    assert read_trackio(tmp_path / "trackio") == found
    assert read_tensorboard(tmp_path / "board" / "run") == pytest.approx(found)  # which are floats of 32 bits


@pytest.mark.whole
@pytest.mark.e2e
def test_a_wandb_that_does_not_answer_holds_nothing_up_and_the_run_goes_to_files(tmp_path: Path, logs: Logs) -> None:
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY, "WANDB_DIR": str(tmp_path)}
    words = ("--csv", tmp_path / "run.csv", "--wandb-project", "psyche")
    done = run_watch(logs.folder, "--once", *words, **nowhere)
    assert "the run goes to files" in done.stdout
    assert KEY not in done.stdout + done.stderr
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    assert read_wandb(offline) == read_csv(tmp_path / "run.csv") != {}


@pytest.mark.whole
async def test_a_tracker_that_hangs_costs_the_others_nothing(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "STOP_S", 0.1)
    hanging, told = tmp_path / "pipe", list[str]()
    os.mkfifo(hanging)  # opening it waits for a reader, for ever
    watcher = Watcher([LogSource(logs.folder)])
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            for path in (hanging, tmp_path / "run.csv"):
                nursery.start_soon(Tracking("--csv", lambda _, path=path: CsvWriter(path)).run, watcher, told.append)
            await watcher.is_read.wait()
            logs.play(4)
            logs.play(5)  # then the one before it is complete
            while ("train/loss", 5) not in (read_csv(tmp_path / "run.csv") if (tmp_path / "run.csv").exists() else {}):
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    assert told == ["--csv: takes too long to take the last rows; they are left out"]
    assert ("train/loss", 5) in read_csv(tmp_path / "run.csv")
    os.close(os.open(hanging, os.O_RDONLY | os.O_NONBLOCK))  # lets the thread go


async def test_a_tracker_that_fails_is_told_and_ends_alone(tmp_path: Path, logs: Logs) -> None:
    full, told = Path("/dev/full"), list[str]()
    watcher = Watcher([LogSource(logs.folder)])
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            await watcher.is_read.wait()
            watcher.is_ended.set()
            for path in (full, tmp_path / "run.csv"):
                await Tracking("--csv", lambda _, path=path: CsvWriter(path)).run(watcher, told.append)
            nursery.cancel_scope.cancel()
    assert told == ["--csv: No space left on device; no more is written there"]
    assert len(read_csv(tmp_path / "run.csv")) > 10


def test_rounds_that_are_trained_again_come_again() -> None:
    view = RunView("run")
    reader = RowReader(view)

    def play(*steps: int, loss: float = 3.0) -> list[int]:
        for step in steps:
            view.take(Entry(1.0, "server", make(types.RoundOver, step=step, loss=loss)))
        return [row.step for row in reader.read("run")]

    assert play(1, 2, 3) == [1, 2, 3]
    assert play() == []
    assert play(4) == [4]
    assert play(2, 3, loss=2.0) == [2, 3]


def test_what_strangers_say_is_harmless_in_a_table(tmp_path: Path) -> None:
    view = RunView(EVIL)
    view.take(Entry(1.0, EVIL, make(types.ClientStarted, run_id=EVIL)))
    for step, loss in enumerate((nan, 1e308, 800.0), 1):
        huge = {"tokens": 10 ** (400 * (step - 1)), "tokens_per_s": loss, "learning_rate": loss, "seconds": 1e-300}
        view.take(Entry(1.0, EVIL, make(types.Trained, step=step - 1, loss=800.0, seconds=1e308)))
        view.take(Entry(1.0, "server", make(types.RoundOver, step=step, loss=loss, **huge)))
    rows = RowReader(view).read(*name_runs([view]))
    assert [sorted({"train/loss", "train/perplexity", "train/lr"} & {*row.values}) for row in rows] == [
        [], [], ["train/loss", "train/lr"],
    ]  # fmt: skip
    (name,) = rows[-1].members
    assert name.isprintable()
    assert len(name.encode()) <= 48
    assert all(key.replace("/", "").replace(".", "").replace("_", "").isalnum() for key in rows[-1].flatten())
    writer = CsvWriter(tmp_path / "run.csv")
    writer.write(rows)
    writer.close()
    with (tmp_path / "run.csv").open(newline="") as file:
        table = [*csv.reader(file)]
    assert {len(line) for line in table} == {len(table[0])}
    assert {line[3] for line in table[1:]} == {"", f"'{name}"}
    assert all(line[0].startswith("'=cmd()") for line in table[1:])


def test_two_runs_of_one_name_stay_apart(tmp_path: Path) -> None:
    assert name_runs([RunView("a"), RunView("b"), RunView("a")]) == ["a", "b", "a (2)"]
    row = Row("-1", 0, 1, 1, {"train/loss": 2.0}, {})
    writer = CsvWriter(tmp_path / "run.csv")
    writer.write([row, row._replace(run="b")])
    writer.close()
    assert [line.split(",")[0] for line in (tmp_path / "run.csv").read_text().splitlines()] == ["run", "'-1", "b"]


@pytest.mark.parametrize(
    ("option", "module", "extra"),
    [("--wandb-group", "wandb", "wandb"), ("--trackio", "trackio", "trackio"),
     ("--tensorboard", "tensorboardX", "tensorboard")],
)  # fmt: skip
def test_a_missing_extra_is_told_with_the_command_that_brings_it(
    logs: Logs, tmp_path: Path, option: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    output = refuse("watch", logs.folder, option, tmp_path / "x", "--csv", tmp_path / "run.csv").output
    assert f'pip install "psyche-train[{extra}]"' in output
    assert not (tmp_path / "run.csv").exists()
    client = ("client", "train", "--run-id", "run", "--server-addr", "127.0.0.1:1", "--data-dir", tmp_path / "ada")
    testnet = (
        "local-testnet",
        "start",
        "--num-clients",
        1,
        "--config-path",
        "config/demo",
        "--run-dir",
        tmp_path / "t",
    )
    for words in (client, testnet):
        assert extra in refuse(*words, option, "x").output
    assert not (tmp_path / "ada").exists()
    assert not (tmp_path / "t").exists()


def test_what_cannot_be_is_refused_before_anything_is_read(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert "WANDB_API_KEY" in refuse("watch", logs.folder, "--wandb-project", "p").output
    assert "no folder" in refuse("watch", logs.folder, "--csv", tmp_path / "none" / "run.csv").output
    assert "--csv: not with --tui" in refuse("watch", logs.folder, "--tui", "--csv", tmp_path / "run.csv").output
    assert call("watch", logs.folder, "--once", "--csv", tmp_path / "run.csv").exit_code == 0
