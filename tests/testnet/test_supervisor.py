"""The testnet keeps its processes in order: starts, restarts, compares, and leaves nothing behind."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.leftovers import is_alive
from kits.models import write_model_folder
from kits.tier import few

from psyche.core.state.state import Checkpoint, CheckpointKind
from psyche.data.corpus import build_demo_corpus
from psyche.errors import ConfigError, PsycheError
from psyche.modeling.trainer.process import HOST_VARIABLE
from psyche.storage.port import StorageOptions
from psyche.telemetry.console import Console
from psyche.telemetry.events import read_lines
from psyche.testnet import supervisor
from psyche.testnet.backends import Prepared
from psyche.testnet.prepare import prepare
from psyche.testnet.settings import TestnetSettings
from psyche.testnet.supervisor import get_backend_argv, get_client_argv, get_owner_argv

DEADLINE_S = 300.0  # only a broken supervisor reaches it
CONFIG = Path(__file__).resolve().parents[2] / "config"

# Stand-ins that behave like the real programs as far as a supervisor sees them.
SERVER = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
try:
    while True:
        listener.accept()[0].close()
except KeyboardInterrupt:
    pass
"""
TRAINERS = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
try:
    time.sleep(600)
except KeyboardInterrupt:
    pass
"""
CLIENT = """
import os, pathlib, sys, time
from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
events, digest, seconds = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
log = EventLog(events, node=events.parent.name)
log.emit(types.ClientStarted(identity=b"", run_id="run", pid=os.getpid()))
log.emit(types.StateChanged(run_state=RunState.ROUND_TRAIN, epoch=0, height=0, step=1, members=3))
if digest == "wait":
    log.emit(types.StateChanged(run_state=RunState.WAITING_FOR_MEMBERS, epoch=1, height=0, step=1, members=0))
log.emit(
    types.Trained(
        epoch=0, height=0, step=1, loss=2.5, tokens=10, seconds=0.1, compute_seconds=0.1, micro_batch_size=1,
        grad_norm=1.0, data_hash=b"",
    )
)
try:
    print("training", flush=True)
    time.sleep(seconds)
except KeyboardInterrupt:
    log.emit(types.ClientEnded(reason="stopped by SIGINT", code=0, cause=types.LeaveCause.STOPPED))
    sys.exit(130)
if digest == "crash":
    print("the reason of the crash", flush=True)
    sys.exit(3)
log.emit(types.Finished(digest=bytes.fromhex(digest), step=11, held=True))
"""


@pytest.fixture
def settings(tmp_path: Path) -> TestnetSettings:
    return TestnetSettings(
        num_clients=3, config_path=CONFIG / "dummy", run_dir=tmp_path / "run", cache_dir=tmp_path / "cache",
        sample=False,
    )  # fmt: skip


def use_stand_ins(monkeypatch: pytest.MonkeyPatch, digests: dict[int, str] | None = None, seconds: float = 0.0) -> None:
    def make_server(prepared: Prepared, _settings: TestnetSettings) -> list[str]:
        return [sys.executable, "-c", SERVER, str(prepared.server_port)]

    def make_client(prepared: Prepared, _settings: TestnetSettings, number: int) -> list[str]:
        events = str(prepared.layout.events_of(f"client-{number}"))
        return [sys.executable, "-c", CLIENT, events, (digests or {}).get(number, "aa"), str(seconds)]

    def make_trainers(socket: Path) -> list[str]:
        return [sys.executable, "-c", TRAINERS, str(socket)]

    monkeypatch.setattr(supervisor, "get_backend_argv", make_server)
    monkeypatch.setattr(supervisor, "get_client_argv", make_client)
    monkeypatch.setattr(supervisor, "get_trainer_host_argv", make_trainers)


def get_pids(run_dir: Path) -> list[int]:
    return [event["pid"] for event in read_lines(run_dir / "events" / "testnet" / "events.jsonl") if "pid" in event]


async def until_training(testnet: supervisor.Testnet, number: int, times: int) -> None:
    """Until a stand-in listens to Ctrl-C, after so many starts."""
    log = testnet.prepared.layout.logs / f"client-{number}.log"
    while not log.exists() or log.read_text().count("training") < times:
        await trio.sleep(0.02)


def make_console() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(stream, live=False), stream


async def run(settings: TestnetSettings, code: int) -> str:
    """Run a testnet to its end; returns what it prints."""
    console, stream = make_console()
    with trio.fail_after(DEADLINE_S):
        assert await supervisor.run_testnet(settings, console) == code
    return stream.getvalue()


@pytest.fixture
def demo(tmp_path: Path) -> TestnetSettings:
    """Settings of a copy of the demo's configuration in `tmp_path / "config"`."""
    config = tmp_path / "config"
    shutil.copytree(CONFIG / "demo", config)
    return TestnetSettings(num_clients=3, config_path=config, run_dir=tmp_path / "run", cache_dir=tmp_path / "c")


async def test_a_run_whose_clients_agree_ends_with_0_and_leaves_nothing(
    settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_stand_ins(monkeypatch)
    said = await run(settings, 0)
    assert "all 3 clients hold bit-identical weights" in said
    assert said.index("starting the server") < said.index("server on 127.0.0.1"), "nobody looks at an empty screen"
    assert not any(map(is_alive, get_pids(tmp_path / "run")))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["equal"] is True
    assert (tmp_path / "run" / "run.html").exists()


@pytest.mark.parametrize(
    ("of_2", "told"),
    [
        ("bb", ["PROBLEM: the final digests differ"]),
        ("crash", ["the reason of the crash", "PROBLEM: client-2 ended with exit code 3"]),
    ],
)
async def test_a_run_that_goes_wrong_ends_with_1_and_the_reason(
    settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch, of_2: str, told: list[str]
) -> None:
    use_stand_ins(monkeypatch, {2: of_2})
    said = await run(settings, 1)
    assert all(text in said for text in told)


async def test_a_run_whose_last_clients_would_wait_for_ever_ends_with_the_reason(
    settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first two fail, the third waits: no epoch can form without them (M3)."""
    use_stand_ins(monkeypatch, {1: "crash", 2: "crash", 3: "wait"})
    make_waiting = supervisor.get_client_argv

    def make_client(prepared: Prepared, settings: TestnetSettings, number: int) -> list[str]:
        argv = make_waiting(prepared, settings, number)
        return [*argv[:-1], "600"] if number == 3 else argv

    monkeypatch.setattr(supervisor, "get_client_argv", make_client)
    said = await run(settings, 1)
    reason = "2 clients failed, 1 left to wait for members, and an epoch needs 2 (init_min_clients)"
    assert f"the run cannot go on: {reason}" in said
    assert "PROBLEM: client-1 ended with exit code 3" in said
    assert not any(map(is_alive, get_pids(tmp_path / "run")))


async def test_killed_clients_come_back(settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch, seconds=600)
    console, _ = make_console()
    prepared = await prepare(settings, console.print)
    with trio.fail_after(DEADLINE_S):
        async with supervisor.open_testnet(prepared, settings, console) as testnet, trio.open_nursery() as nursery:
            nursery.start_soon(testnet.run_clients)
            for number in (1, 2, 3):
                await until_training(testnet, number, times=1)
            first = testnet.clients[2].pid
            testnet.kill_client(2)
            await until_training(testnet, 2, times=2)
            while "client-2" not in testnet.run.nodes or testnet.run.nodes["client-2"].starts < 2:
                await trio.sleep(0.02)
            assert testnet.clients[2].pid != first
            assert not is_alive(first)
            assert testnet.kills == {2: 1}
            nursery.cancel_scope.cancel()
    assert not any(map(is_alive, get_pids(prepared.layout.root)))
    assert set(testnet.exits.values()) == {130}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (SERVER.replace("listener.accept()[0].close()", "listener.accept(); sys.exit('it is too late')"), "too late"),
        ("import sys; sys.exit('no room on the disk')", "no room on the disk"),
    ],
    ids=["it dies", "it cannot start"],
)
async def test_a_server_that_ends_ends_the_run_with_its_reason(
    program: str, reason: str, settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_ins(monkeypatch, seconds=600)
    broken = [sys.executable, "-c", program]
    monkeypatch.setattr(supervisor, "get_backend_argv", lambda prepared, _: [*broken, str(prepared.server_port)])
    with trio.fail_after(DEADLINE_S), pytest.raises(ExceptionGroup) as raised:
        await supervisor.run_testnet(settings, make_console()[0])
    assert raised.group_contains(PsycheError, match=reason)


@pytest.mark.parametrize("ignored", [False, True], ids=["", "in the background of a script"])
@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
async def test_whatever_ends_the_supervisor_nothing_stays(
    number: signal.Signals, ignored: bool, tmp_path: Path
) -> None:
    program = f"""
import signal, sys, trio, pathlib
if {ignored}: signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
import test_supervisor as t
from _pytest.monkeypatch import MonkeyPatch
from psyche.testnet.settings import TestnetSettings
t.use_stand_ins(MonkeyPatch(), seconds=600)
run_dir = pathlib.Path({str(tmp_path / "run")!r})
settings = TestnetSettings(num_clients=3, config_path=t.CONFIG / "dummy", run_dir=run_dir)
sys.exit(trio.run(t.supervisor.run_testnet, settings, t.Console(live=False)))
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as process:
        try:
            with trio.fail_after(DEADLINE_S):
                while sum(1 for path in (tmp_path / "run" / "logs").glob("client-*.log") if path.stat().st_size) < 3:
                    assert process.poll() is None, "the supervisor runs until it is ended"
                    await trio.sleep(0.02)
            os.kill(process.pid, number)
            code = await trio.to_thread.run_sync(process.wait)
        finally:
            process.kill()
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    pids = get_pids(tmp_path / "run")
    assert len(pids) >= 4
    with trio.fail_after(DEADLINE_S):
        while any(map(is_alive, pids)):
            await trio.sleep(0.02)


async def test_a_run_stops_after_its_minutes_by_pausing(
    settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_ins(monkeypatch, seconds=600)
    settings.minutes = 1e-4
    monkeypatch.setattr(supervisor, "get_owner_argv", lambda *_: [sys.executable, "-c", "pass"])
    monkeypatch.setattr(supervisor, "DRAIN_S", 0.1)
    said = await run(settings, 1)  # the stand-ins have no digest to show
    assert "0.0001 minutes are over: pausing the run" in said


async def test_a_configuration_that_would_wait_for_ever_is_refused_before_anything_is_made(
    settings: TestnetSettings, tmp_path: Path
) -> None:
    settings.num_clients = 1
    with pytest.raises(ConfigError, match="init_min_clients is 2"):
        await prepare(settings, print)
    assert list(tmp_path.iterdir()) == []
    settings.wait_for_all = True
    config = (await prepare(settings, print)).run.config
    assert (config.init_min_clients, config.min_clients) == (1, 1)
    with pytest.raises(ConfigError, match="not empty"):
        await prepare(settings, print)


async def test_what_a_run_needs_is_copied_linked_and_given_free_ports(demo: TestnetSettings, tmp_path: Path) -> None:
    config = demo.config_path
    write_model_folder(config / "model", vocab_size=256, max_position_embeddings=128)
    (config / "standard-library").mkdir(parents=True)
    (config / "standard-library" / "x.bin").write_bytes(bytes(512))
    prepared = await prepare(demo, print)
    copy = prepared.layout.config
    assert (copy / "model").resolve() == config / "model"
    assert (copy / "standard-library").resolve() == config / "standard-library"
    address = prepared.run.model.data_location.address
    assert address.startswith("127.0.0.1:")
    assert address != "127.0.0.1:20001"
    assert prepared.data_config == copy / "data.toml"
    assert (config / "run.toml").read_text() == (CONFIG / "demo" / "run.toml").read_text()
    server = get_backend_argv(prepared, demo)
    assert server[server.index("--server-port") + 1] == str(prepared.server_port)
    client = get_client_argv(prepared, demo, 2)
    assert client[client.index("--node-name") + 1] == "client-2"
    assert get_owner_argv(prepared, demo, "pause")[3:5] == ["run", "pause"]


async def test_a_run_begins_with_a_model_of_the_hub_instead_of_the_file_s(demo: TestnetSettings) -> None:
    (demo.config_path / "standard-library").mkdir()
    (demo.config_path / "standard-library" / "x.bin").write_bytes(bytes(512))
    demo.first_client_checkpoint = "owner/name@v2"
    prepared = await prepare(demo, print)
    assert prepared.run.model.checkpoint == Checkpoint(CheckpointKind.HUB, "owner/name", "v2")
    assert not (prepared.layout.config / "model").exists()
    demo.first_client_checkpoint = "no name"
    with pytest.raises(ConfigError, match=r"--first-client-checkpoint: .*OWNER/NAME@REVISION"):
        await prepare(demo, print)


@pytest.mark.parametrize("is_served", [True, False], ids=["from the server", "from files"])
async def test_a_run_without_data_is_refused_before_anything_is_made(
    demo: TestnetSettings, tmp_path: Path, is_served: bool
) -> None:
    """It must not train on something else: only the demo's data are made, and those go by their own name."""
    config = demo.config_path
    run, data = config / "run.toml", config / "data.toml"
    if is_served:
        data.write_text(data.read_text().replace('"standard-library"', '"my-text"'))
    else:
        run.write_text(run.read_text().replace('Server = "127.0.0.1:20001"', 'Local = "my-text"'))
    with pytest.raises(ConfigError) as error:
        await prepare(demo, print)
    place = config / "my-text"
    assert str(error.value) == (
        f"{data if is_served else run}: no tokens at {place}; make them from your text: "
        f"`psyche data tokenize TEXT --output {place / 'train.bin'}`"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config"]


async def test_the_demo_s_data_are_made_where_they_are_missing(
    demo: TestnetSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche.data.corpus.find_library_sources", lambda: [CONFIG / "demo" / "run.toml"])
    monkeypatch.setattr(build_demo_corpus, "__defaults__", (100, None))
    config = demo.config_path
    write_model_folder(config / "model", vocab_size=256, max_position_embeddings=128)
    prepared = await prepare(demo, print)
    linked = prepared.layout.config / "standard-library"
    assert linked.resolve() == tmp_path / "c" / "standard-library" / "train"
    assert (linked / "corpus.bin").stat().st_size > 1_000
    assert prepared.held_out == tmp_path / "c" / "standard-library" / "held-out" / "corpus.bin"


async def test_clients_use_a_host_of_trainers_that_the_environment_names_and_no_program_ids_of_another_chain(
    settings: TestnetSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "host").touch()
    monkeypatch.setenv(HOST_VARIABLE, str(tmp_path / "host"))
    monkeypatch.setenv("PSYCHE_PROGRAM_IDS", "devnet.toml")
    use_stand_ins(monkeypatch)
    monkeypatch.setattr(supervisor, "get_trainer_host_argv", lambda _socket: pytest.fail("a second one is started"))
    given: list[dict[str, str]] = []

    class SeenChild(supervisor.Child):
        def __init__(self, name: str, argv: Sequence[str], **options: Any) -> None:
            given.append(options.get("env") or {})
            assert "hf_secret" not in argv, "others can read it there"
            super().__init__(name, argv, **options)

    monkeypatch.setattr(supervisor, "Child", SeenChild)
    settings.storage = StorageOptions(hub_token="hf_secret", cache_dir=tmp_path / "c", cache_gb=2)
    await run(settings, 0)
    own = {HOST_VARIABLE: str(tmp_path / "host"), "PSYCHE_PROGRAM_IDS": ""}
    remote = {"HF_TOKEN": "hf_secret", "PSYCHE_CACHE_DIR": str(tmp_path / "c"), "PSYCHE_CACHE_GB": "2"}
    remote |= {"HUB_MAX_CONCURRENT_DOWNLOADS": "8", "ALLOW_PRIVATE_HOSTS": "0"}
    assert given == [remote, *[own | remote] * 3]
    assert (tmp_path / "host").exists()


async def test_a_preparation_that_fails_leaves_no_folder(demo: TestnetSettings, tmp_path: Path) -> None:
    config = demo.config_path
    (config / "model.json").unlink()
    with pytest.raises(ConfigError, match="psyche model init"):
        await prepare(demo, print)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("field", "value", "flag"), [("num_clients", 0, "--num-clients"), ("minutes", 0, "--minutes")])
async def test_settings_that_cannot_be_are_named(settings: TestnetSettings, field: str, value: int, flag: str) -> None:
    setattr(settings, field, value)
    with pytest.raises(ConfigError, match=flag):
        await prepare(settings, print)
