"""The owner changes a run (P9): by commands, over real sockets, and a server that comes back keeps the change."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from kits.clocks import SteadyClock
from kits.server import CLIENTS, OWNER, START_UNIX, Members, MemoryDisk, RunFile, build_file, build_handler
from live_kit import Server, follow_all, is_training, open_scripts, open_server
from live_kit import build_file as build_quick_file
from typer.testing import CliRunner

from psyche.backends.tcp.owner import TcpAdministration
from psyche.cli.app import app
from psyche.config.load import load_run
from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import Pause, Update
from psyche.core.state.state import RunState
from psyche.errors import ConfigError
from psyche.server.run import open_run
from psyche.wire import backend as wire
from psyche.wire.access import Access
from psyche.wire.key_file import write_key_file

DEMO = Path(__file__).resolve().parents[2] / "config" / "demo" / "run.toml"
OP = b"update-number-01"


def build_longer(file: RunFile, total_steps: int = 50) -> RunFile:
    return replace(file, config=replace(file.config, total_steps=total_steps))


def update_on(disk: MemoryDisk, file: RunFile, update: Update) -> wire.Reply:
    """What a paused run's server answers to an owner's update; the change is in the journal."""
    opened = open_run(disk, file, OWNER.public, "test", lambda: START_UNIX)
    members = Members(build_handler(opened.state, journal=opened.journal))
    if members.run_state is not RunState.PAUSED:
        members.command(Pause(), OP[::-1])
    reply = members.command(update)
    members.handler.journal.flush()
    return reply


def test_p9_a_server_that_comes_back_keeps_what_its_owner_changed() -> None:
    disk, file = MemoryDisk(), build_file()
    longer = build_longer(file)
    assert update_on(disk, file, Update(config=longer.config)).code == ""
    again = open_run(disk, file, OWNER.public, "test", lambda: START_UNIX)
    assert again.state.config.total_steps == 50
    assert again.state.run_state is RunState.PAUSED
    (note,) = again.notes
    assert note.startswith("config.total_steps: the owner has changed this")
    assert open_run(disk, longer, OWNER.public, "test", lambda: START_UNIX).notes == ()


@pytest.mark.parametrize("knows_file", [True, False], ids=["", "a folder of before, which knows no file"])
def test_p9_a_file_that_somebody_edited_is_refused_with_the_way_to_change_the_run(knows_file: bool) -> None:
    disk, file = MemoryDisk(), build_file()
    update_on(disk, file, Update(config=build_longer(file).config))
    if not knows_file:
        disk.remove("run-file.hash")
    with pytest.raises(ConfigError, match=r"config\.total_steps: differs .* `psyche run update-config`"):
        open_run(disk, build_longer(file, 70) if knows_file else file, OWNER.public, "test", lambda: START_UNIX)
    again = open_run(disk, build_longer(file), OWNER.public, "test", lambda: START_UNIX)
    assert again.notes == ()
    with pytest.raises(ConfigError, match=r"config\.total_steps"):  # from here on the longer one is the run's file
        open_run(disk, file, OWNER.public, "test", lambda: START_UNIX)


def test_p9_k3_only_an_owner_changes_the_run_once_and_only_while_it_is_paused() -> None:
    file = build_file()
    members = Members(build_handler(file.build_state()))
    longer = wire.build_submit(Update(config=build_longer(file).config), op_id=OP)
    assert members.ask(CLIENTS[0].public, longer).code == "NotOwner"
    assert members.ask(OWNER.public, longer).code == "CannotUpdate"
    members.command(Pause(), OP[::-1])
    assert members.ask(OWNER.public, longer).code == ""
    nonce = members.handler.state.nonce
    assert members.ask(OWNER.public, longer).code == ""
    assert members.handler.state.nonce == nonce


def test_the_record_is_shown_to_those_who_may_follow_the_run() -> None:
    file = build_file()
    members = Members(build_handler(file.build_state(), access=Access()))
    assert members.ask(CLIENTS[0].public, wire.RecordRequest()).code == "NotAllowed"
    body = members.ask(OWNER.public, wire.RecordRequest()).body
    assert isinstance(body, wire.FullState)
    assert body.nonce == members.handler.state.nonce


async def command(server: Server, folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and all output of a command of `psyche run`."""
    if not (folder / "owner.key").exists():
        write_key_file(folder / "owner.key", OWNER)
    options = ["--server-addr", f"127.0.0.1:{server.port}", "-i", str(folder / "owner.key"), "--timeout", "20"]
    result = await trio.to_thread.run_sync(CliRunner().invoke, app, ["run", *words, *options])
    return result.exit_code, result.output


async def test_an_owner_extends_a_paused_run_and_it_trains_to_its_new_end(tmp_path: Path, clock: SteadyClock) -> None:
    file = build_quick_file(rounds_per_epoch=2)
    async with open_server(tmp_path, file) as server, open_scripts(server) as scripts:
        await follow_all(scripts, is_training)
        code, said = await command(server, tmp_path, "extend", "--total-steps", "8")
        assert code == 1
        assert "`psyche run pause --server-addr " in said
        await command(server, tmp_path, "pause")
        await follow_all(scripts, lambda s: s.run_state is RunState.PAUSED)
        code, said = await command(server, tmp_path, "extend", "--total-steps", "8", "--dry-run")
        assert (code, "nothing was sent" in said) == (0, True)
        assert "key now then config.total_steps 5 -> 8 nothing was sent" in " ".join(said.split())
        backend = TcpAdministration(server.address, OWNER)
        assert (await backend.get_record()).config.total_steps == 5
        code, said = await command(server, tmp_path, "extend", "--total-steps", "8")
        assert (code, "nothing was sent: this is no terminal" in said) == (1, True)
        assert (await backend.get_record()).config.total_steps == 5
        code, said = await command(server, tmp_path, "extend", "--total-steps", "8", "--yes")
        assert code == 0
        assert "of 8" in said
        assert "write total_steps = 8 in your run.toml" in said
        await server.stop()
        await server.start()
        assert (await backend.get_record()).config.total_steps == 8
        await command(server, tmp_path, "resume")
        await follow_all(scripts, lambda s: s.run_state is RunState.FINISHED)
        record = await backend.get_record()
        assert (record.progress.step, record.config.total_steps) == (8, 8)
        code, said = await command(server, tmp_path, "extend", "--total-steps", "9")
        assert code == 1
        assert f"step = 8 and epoch_start_data_index = {record.progress.epoch_start_data_index}" in said


async def test_an_owner_gives_a_run_the_settings_of_a_file(tmp_path: Path, clock: SteadyClock) -> None:
    path = tmp_path / "run.toml"
    path.write_text(DEMO.read_text().replace('run_id = "demo"', 'run_id = "test-run"'))
    assert load_run(path).run_id == "test-run"
    async with open_server(tmp_path) as server:
        await command(server, tmp_path, "pause")
        code, said = await command(server, tmp_path, "update-config", "--yes", "--state", str(path))
        assert code == 0, said
        assert "config.total_steps" in said
        record, file = await TcpAdministration(server.address, OWNER).get_record(), load_run(path)
        assert (record.config, record.metadata, record.run_state) == (file.config, file.metadata, RunState.PAUSED)
        code, said = await command(server, tmp_path, "update-config", "--yes", "--state", str(path))
        assert (code, said.count("nothing changes: the run has these settings already")) == (0, 1)
        assert encode_state(await TcpAdministration(server.address, OWNER).get_record()) == encode_state(record)
        code, said = await command(server, tmp_path, "update-config", "--yes", "--restart-from-step", "3")
        assert (code, said.count("the run trains on from step 3")) == (0, 1)
        assert (await TcpAdministration(server.address, OWNER).get_record()).progress.step == 3


async def test_p9_a_server_comes_back_with_any_file_that_was_sent_to_it(tmp_path: Path) -> None:
    first = build_quick_file()
    sent, last = (build_longer(first, steps) for steps in (60, 70))
    async with open_server(tmp_path, first) as server:
        backend = TcpAdministration(server.address, OWNER)
        await backend.command(Pause())
        for file in (sent, last):
            await backend.command(Update(config=file.config))
        await server.stop()
    state_dir = tmp_path / "state"
    async with open_server(tmp_path, sent) as server:
        assert (await TcpAdministration(server.address, OWNER).get_record()).config.total_steps == 70
        await server.stop()
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=r"total_steps"), flatten_subgroups=True):
        async with open_server(tmp_path, build_longer(first, 65)):
            pass
    assert len((state_dir / "run-file.hash").read_bytes()) == 3 * 32
