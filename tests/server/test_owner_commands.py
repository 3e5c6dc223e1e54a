"""An owner's commands and somebody on the line: who is not the server is told nothing, and believed in nothing."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.middle import Middle, open_middle
from kits.server import CLIENTS, OWNER, build_record
from live_kit import SERVER, Server, build_file, follow_all, is_training, open_scripts, open_server
from typer.testing import CliRunner

from psyche.backends.tcp.backend import open_backend
from psyche.backends.tcp.owner import TcpAdministration
from psyche.cli.app import app
from psyche.core.state.messages import Join
from psyche.core.state.state import RunState
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.wire.access import OPEN
from psyche.wire.key_file import write_key_file
from psyche.wire.report import SelfReport

OWNERS = frozenset({OWNER.public, SERVER.public})
KEY = CLIENTS[0].public.hex()
COMMANDS = {
    "pause": ("pause",),
    "resume": ("resume",),
    "rates": ("set-future-epoch-rates", "--earning-rate-total-shared", "7"),
    "allow": ("allow", KEY),
    "disallow": ("disallow", KEY),
    "allowed": ("allowed",),
    "collect": ("collect", "--all"),
}


@dataclass
class Line:
    """A server, the line to it that goes through somebody's hands, and the keys of who commands it."""

    server: Server
    middle: Middle
    owner_key: Path

    async def command(self, *arguments: str) -> Any:
        """What a command of the owner comes to, over that line."""
        words = ["run", *arguments, "--server-addr", f"127.0.0.1:{self.middle.port}", "--timeout", "20"]
        return await trio.to_thread.run_sync(partial(CliRunner().invoke, app, words))

    async def get_run_state(self) -> RunState:
        return RunState((await TcpAdministration(self.server.address, OWNER).get_status()).run_state)

    @property
    def state_dir(self) -> tuple[str, str]:
        return "--state-dir", str(self.server.folder)

    @property
    def own_key(self) -> tuple[str, str]:
        return "-i", str(self.owner_key)


@asynccontextmanager
async def open_line(tmp_path: Path) -> AsyncIterator[Line]:
    async with open_server(tmp_path, owners=OWNERS) as server, open_middle(server.port) as middle:
        write_key_file(server.folder / "server.key", SERVER)
        write_key_file(tmp_path / "owner.key", OWNER)
        yield Line(server, middle, tmp_path / "owner.key")


@asynccontextmanager
async def open_false_line(tmp_path: Path) -> AsyncIterator[Line]:
    """At the other end of the line answers a server of somebody else, which does as if it obeyed."""
    async with open_line(tmp_path) as line, trio.open_nursery() as nursery:
        settings = ServerSettings(
            run=build_file(), identity=CLIENTS[7], state_dir=tmp_path / "false", owners=OWNERS, access=OPEN
        )
        bound: BoundServer = await nursery.start(run_server, settings)  # pyright: ignore[reportArgumentType]
        async with open_middle(bound.port) as middle:
            yield Line(line.server, middle, line.owner_key)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_a_command_with_the_server_s_folder_believes_no_other_server(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    async with open_false_line(tmp_path) as line:
        result = await line.command(*command, *line.state_dir)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "another server answers" in result.stderr
        assert "warning" not in result.stderr


async def test_an_owner_s_own_key_comes_with_the_server_s_and_then_no_other_is_believed(tmp_path: Path) -> None:
    async with open_false_line(tmp_path) as line:
        result = await line.command("pause", *line.own_key, "--server-key", SERVER.public.hex())
        assert (result.exit_code, result.stdout) == (1, "")
        assert "another server answers" in result.stderr
        folder = await line.command("pause", *line.own_key, *line.state_dir)
        assert "another server answers" in folder.stderr, "the folder names the server, whoever commands it"


async def test_commands_reach_the_server_that_they_mean_and_say_nothing_to_warn_of(tmp_path: Path) -> None:
    async with open_line(tmp_path) as line:
        paused = await line.command("pause", *line.state_dir)
        assert (paused.exit_code, paused.stderr) == (0, "")
        assert await line.get_run_state() is RunState.PAUSED
        resumed = await line.command("resume", *line.own_key, "--server-key", SERVER.public.hex())
        assert (resumed.exit_code, resumed.stderr) == (0, "")
        assert await line.get_run_state() is RunState.WAITING_FOR_MEMBERS


async def test_a_run_that_is_still_to_pause_says_so_to_who_resumes_it(tmp_path: Path) -> None:
    async with open_line(tmp_path) as line, open_scripts(line.server) as scripts:
        await follow_all(scripts, is_training)
        early = await line.command("resume", *line.state_dir)
        assert (early.exit_code, early.stdout) == (1, "")
        assert early.stderr == "error: the run is not paused: it is training, and there is nothing to resume\n"
        assert (await line.command("pause", *line.state_dir)).exit_code == 0
        refused = await line.command("resume", *line.state_dir)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "The pause takes effect at the end of this epoch" in refused.stderr
        assert "`psyche run info --watch --server-addr " in refused.stderr


async def test_two_keys_that_disagree_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async with open_line(tmp_path) as line:
        result = await line.command("pause", *line.state_dir, "--server-key", KEY)
        assert result.exit_code == 1
        assert f"--server-key {KEY} is not the key of {line.server.folder / 'server.key'}" in result.stderr
        assert line.middle.sessions == []


# the members (K8)


async def test_the_owner_reads_what_a_client_reports_and_its_error_also_after_a_restart(tmp_path: Path) -> None:
    said = SelfReport("ada", "warmup", "the weights of this epoch", error="cannot load the weights: no config.json")
    async with open_line(tmp_path) as line, open_backend(line.server.address, CLIENTS[0]) as backend:
        async with aclosing(backend.states()) as states:
            await anext(states)
            await backend.submit(Join(CLIENTS[0].public), build_record(CLIENTS[0]))
        backend.report(said)
        await wait_for_report(line, said)
        shown = await line.command("info", *line.own_key)
        assert shown.exit_code == 0
        assert "1 client reports an error" in shown.stdout
        assert "ada waits for the weights of this epoch" in shown.stdout
        assert "cannot load the weights: no config.json" in shown.stdout
        assert max(map(len, shown.stdout.splitlines())) <= 80
        for stranger in (await line.command("info"), await line.command("info", "--json")):
            assert stranger.exit_code == 0
            assert "config.json" not in stranger.output
        told = json.loads((await line.command("info", "--json", *line.own_key)).stdout)
        assert told["clients"][0]["report"]["error"] == said.error
        await line.server.stop()
        await line.server.start()
        await wait_for_report(line, said)


async def wait_for_report(line: Line, said: SelfReport) -> None:
    with trio.fail_after(120):
        while True:
            rows = (await TcpAdministration(line.server.address, OWNER).get_members()).members
            if [row.report for row in rows] == [said]:
                return
            await trio.sleep(0.05)


async def test_a_key_without_a_place_is_told_whose_key_shows_the_members(tmp_path: Path) -> None:
    async with open_line(tmp_path) as line:
        write_key_file(tmp_path / "stranger.key", CLIENTS[5])
        shown = await line.command("info", "-i", str(tmp_path / "stranger.key"))
        assert shown.exit_code == 0
        assert "only its owner, its clients and keys that may join it" in shown.stderr
