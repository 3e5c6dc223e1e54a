"""Every example of every help page, run as it is printed; only the port is another one.

What runs until it is stopped is started, seen to be ready, and interrupted.
"""

import functools
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import typer.main
from kits.chain.box import open_chain_box
from kits.run_files import MODEL, choose_neighbours
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.cli.helpers import checks
from psyche.cli.helpers.target import WALLET
from psyche.testnet.process import Child, stop_all

ROOT: Final = Path(__file__).resolve().parents[2]
READY_S: Final = 300.0  # only a broken command reaches it
POLL_S: Final = 0.2
PORT, DATA_PORT = "19400", "19401"
PAGE_PORT: Final = "--web 8080", "--web 0"
SUBSTITUTION: Final = re.compile(r"\$\((.*?)\)")
PLAN: Final = '[[fault]]\nkind = "kill"\nat_s = 40.0\nwho = ["client-1"]\nfor_s = 5.0\n'
LONG: Final = {  # what runs until it is stopped: what it prints once it does its work, and its exit code after Ctrl-C
    "server run": ("server_listening", 0),
    "client train": ("backend_connected", 130),
    "local-testnet start": ("(server|chain) on 127.0.0.1", 130),  # test_testnet.py sees how one trains
    "run info --watch": ("my-run: ", 0),
    "watch": (r"\d\d:\d\d:\d\d  ", 0),
}

ROOT_COMMAND: Final[Any] = typer.main.get_command(app)


@dataclass(frozen=True)
class Example:
    """One example: the page that has it, its variables, and its words from `psyche` on."""

    page: str
    line: str

    @property
    def name(self) -> str:
        words = self.line[self.line.index("psyche ") :].split()[1:]
        command, names = ROOT_COMMAND, []
        while hasattr(command, "commands"):
            names.append(words.pop(0))
            command = command.commands[names[-1]]
        return " ".join(names)

    @property
    def long(self) -> tuple[str, int] | None:
        """What a command that does not end prints when it is ready, and its exit code."""
        return None if "--once" in self.line else LONG.get(f"{self.name}{' --watch' * ('--watch' in self.line)}")


def find_examples() -> list[Example]:
    found: dict[str, Example] = {}

    def walk(command: Any, path: str) -> None:
        printed = (command.epilog or "").partition("Examples:\n")[2]
        for line in re.sub(r" \\\n +", " ", printed).splitlines():
            found.setdefault(line.partition(" #")[0].strip(), Example(path, line.strip()))
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{path} {name}".strip())

    walk(ROOT_COMMAND, "")
    return list(found.values())


EXAMPLES: Final = find_examples()


def select(*groups: str) -> list[Example]:
    return [one for one in EXAMPLES if one.name.split()[0] in groups and "--rpc" not in one.line]


@dataclass
class World:
    """A folder in which somebody follows the examples, with a port of their own."""

    folder: Path
    ports: dict[str, str]  # those of the examples, and what stands for them here
    children: list[Child] = field(default_factory=list)

    def put_ports(self, text: str) -> str:
        for number, port in self.ports.items():
            text = text.replace(number, port)
        made = str(next(Path("runs").glob("demo-2*"), "runs/demo"))  # a testnet puts its time behind its name
        return text.replace("runs/demo", made).replace(*PAGE_PORT)

    def call(self, line: str) -> str:
        """Run a command that ends; return what it printed."""
        variables, words = self._read(line)
        done = CliRunner(env=variables).invoke(app, words)
        assert done.exit_code == 0, f"{line}\n{done.output}{done.exception!r}"
        return done.output

    def _read(self, line: str) -> tuple[dict[str, str], list[str]]:
        line = SUBSTITUTION.sub(lambda found: self.call(found[1]).strip(), self.put_ports(line))
        words = shlex.split(line, comments=True)
        start = words.index("psyche")
        return dict(word.split("=", 1) for word in words[:start]), words[start + 1 :]

    def start(self, line: str, ready: str) -> Child:
        """Start a command that runs until it is stopped; return once it is ready."""
        variables, words = self._read(line)
        output = self.folder / f"output-{len(self.children)}.log"
        argv = [sys.executable, "-m", "psyche", *words]
        child = Child(" ".join(words[:2]), argv, output=output, env=variables)
        self.children.append(child)
        deadline = time.monotonic() + READY_S
        while not re.search(ready, output.read_text()):
            assert child.is_running(), f"{line}\n{output.read_text()}"
            assert time.monotonic() < deadline, f"{line}\n{output.read_text()}"
            time.sleep(POLL_S)
        return child

    def interrupt(self, child: Child, code: int) -> None:
        assert trio.run(child.stop, READY_S)
        assert child.returncode == code, "\n".join(child.get_last_lines(20))

    def pause(self, example: Example) -> None:
        """Run the example that pauses the run, and wait for the end of the epoch."""
        self.call(example.line)
        deadline = time.monotonic() + READY_S
        while "paused" not in self.call("psyche run info --server-addr 127.0.0.1:19400"):
            assert time.monotonic() < deadline
            time.sleep(POLL_S)

    def follow(self, example: Example) -> None:
        """Run an example to its end, or until it is ready."""
        if example.long is None:
            self.call(example.line)
            return
        ready, code = example.long
        self.interrupt(self.start(example.line, ready), code)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples name, but for what they make."""
    folder = tmp_path_factory.mktemp("examples") / "made"
    (folder / "src").mkdir(parents=True)
    (folder / "config").symlink_to(ROOT / "config")
    shutil.copy(ROOT / "config" / "profiles" / "home.toml", folder)
    text = (Path(subprocess.__file__)).read_text()
    (folder / "book.txt").write_text(text)
    (folder / "src" / "code.py").write_text(text)
    (folder / "posts.jsonl").write_text('{"body": "a post"}\n{"body": "another one"}\n')
    (folder / "plan.toml").write_text(PLAN)
    write_tiny_model(folder / "tiny")
    return folder


def write_tiny_model(folder: Path) -> None:
    """A model on which a command of many steps takes a second."""
    import json

    from psyche.data.bytes_tokenizer import write_tokenizer
    from psyche.modeling.model import init_model

    folder.mkdir()
    (folder / "made.json").write_text(json.dumps(MODEL | {"max_position_embeddings": 128}))
    write_tokenizer(folder / "tokenizer")
    init_model(folder / "made.json", folder / "model", 7, extra_files=sorted((folder / "tokenizer").iterdir()))


@pytest.fixture
def world(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A run, and what else the examples name."""
    folder = tmp_path / "world"
    shutil.copytree(prepared, folder, symlinks=True)
    monkeypatch.chdir(folder)
    port = choose_neighbours()
    found = World(folder, {DATA_PORT: str(port + 1), PORT: str(port)})
    found.call(
        "psyche init my-run --yes --members 1 --min-members 1 --model tiny/model --data book.txt "
        "--server-addr 127.0.0.1:19400"
    )
    yield found
    trio.run(stop_all, found.children, 10.0)


def test_bash_understands_every_example() -> None:
    text = "\n".join(example.line for example in EXAMPLES)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_group_of_commands_is_followed_by_one_of_these_tests() -> None:
    assert {one.name.split()[0] for one in EXAMPLES} == {
        *ALONE, "distro", "eval", "verify", "trace", "watch", "server", "client", "run", "local-testnet", "auth",
        "rewards", "dev",
    }  # fmt: skip


PROBED: Final = functools.cache(checks._probe)  # torch is loaded for the first example of doctor, not for each
# Of the Hub, buckets, chats, trackers, kept updates, servers of models: the tests of their pages follow them.
ELSEWHERE: Final = (
    "owner/", "https://", "gs://", "hf://", "--chat", "ada/", "pull my-model", "--wandb", "distro show", "model serve",
    "chat http:",
)  # fmt: skip
ALONE: Final = ("doctor", "init", "train", "simulate", "replay", "data", "model")


@pytest.mark.e2e
@pytest.mark.whole
@pytest.mark.parametrize("group", ALONE)
def test_every_example_that_needs_nobody_else_runs_as_printed(
    group: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_probe", PROBED)
    for example in select(group):
        if not any(text in example.line for text in ELSEWHERE):
            world.call(example.line)
    if group == "simulate":
        for example in select("trace"):
            if "run.jsonl" in example.line:
                world.call(example.line)


@pytest.mark.e2e
@pytest.mark.whole
def test_every_example_of_a_server_its_owner_and_clients_runs_as_printed(world: World) -> None:
    (main,) = [one for one in select("server") if "--state-dir server" in one.line]
    for example in select("server"):
        if example is not main:
            world.follow(example)
    server = world.start(main.line, LONG["server run"][0])
    for example in [*select("client"), *select("run")]:
        if example.name in ("client show-identity", "run allow"):
            for name in ("ada", "ben"):
                world.call(f"psyche client show-identity --data-dir {name} --create")
            world.call(example.line)
    follow_clients(world)
    follow_owner(world)
    world.interrupt(server, 0)
    for example in select("trace"):
        if "run.jsonl" not in example.line:
            world.call(example.line)


def follow_clients(world: World) -> None:
    """Ada's client has the weights; the others take them from it."""
    owned = "--server-addr 127.0.0.1:19400"
    world.call(f'psyche run allow "$(psyche client show-identity --run-id my-run)" {owned} --state-dir server')
    world.call(f'psyche run allow "$(psyche client show-identity --data-dir ben)" {owned} --state-dir server')
    for example in select("client"):
        if example.name == "client predownload":
            world.call(example.line)
    examples = [one for one in select("client") if one.name == "client train"]
    (ada,) = [one for one in examples if "--data-dir ada" in one.line]
    ready, code = LONG["client train"]
    clients = [world.start(ada.line, "model_loaded")]
    clients.append(world.start(f"psyche client train --run-id my-run {owned} --data-dir ben", ready))
    for example in [*examples, *select("watch")]:
        if example is not ada and "runs/demo" not in example.line:
            world.follow(example)
    for client in clients:
        world.interrupt(client, code)


def follow_owner(world: World) -> None:
    """In the order of the help; a run's settings change while it is paused."""
    (pause,) = [one for one in select("run") if one.name == "run pause"]
    is_paused = False
    for example in select("run"):
        if example.name in ("run update-config", "run extend") and not is_paused:
            world.pause(pause)
            is_paused = True
        elif example is pause:
            world.pause(pause)
        else:
            world.follow(example)


@pytest.mark.e2e
@pytest.mark.whole
def test_every_example_of_a_local_testnet_runs_as_printed(world: World) -> None:
    """One after another in one folder, as their reader runs them: the demo's weights and tokens are made once."""
    for example in select("local-testnet"):
        world.follow(example)
    for example in select("watch"):
        if "runs/demo" in example.line and not any(text in example.line for text in ELSEWHERE):
            world.follow(example)


# Each command that changes a run on a chain, in an order in which all of them can be carried out; reads come last.
ON_CHAIN: Final = (
    "init", "dev airdrop", "dev mint", "run create", "run update-config", "run resume", "run set-paused", "run pause",
    "auth create", "auth delegate", "auth read", "run can-join", "run list", "run info", "run json-dump-run",
    "run json-info-dump",
    "run json-dump-user", "rewards top-up", "run set-future-epoch-rates", "rewards show", "rewards withdraw",
    "run close", "dev deploy",
)  # fmt: skip
# What only a run with members has: tests/cli/chain follows them there.
WITH_MEMBERS: Final = (
    "run tick",
    "run checkpoint",
    "run explain",
    "rewards claim",
    "rewards close",
    "auth delete",
    "client train",
    "client predownload",
    "model pull",
    "watch",
)


@pytest.mark.e2e
@pytest.mark.whole
def test_every_example_of_a_run_on_a_chain_runs_as_printed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [one for one in EXAMPLES if "--rpc" in one.line]
    assert {one.name for one in examples} <= {*ON_CHAIN, *WITH_MEMBERS}
    world.call("psyche client show-wallet -w ada.json --create")
    file = world.folder / "my-run" / "run.toml"
    file.write_text(re.sub(r"(?m)^Server = .*$", 'Local = "data"', file.read_text()))
    with open_chain_box(world.folder) as box:
        owner, mint = box.fund("owner"), box.put_mint()
        box.put_tokens(mint, owner.pubkey(), 10**9)
        monkeypatch.setenv("WALLET_PRIVATE_KEY_PATH", str(box.get_path("owner")))
        for example in sorted(examples, key=lambda one: [*ON_CHAIN, *WITH_MEMBERS].index(one.name)):
            line = example.line.replace("--rpc localhost", f"--rpc {box.chain.http}").replace(
                WALLET, str(owner.pubkey())
            )
            if example.name == "run create" and "--run-id" not in line:
                line = line.replace("run create", f"run create --treasurer-collateral-mint {mint}")
            if example.name not in WITH_MEMBERS and "--watch" not in line:
                world.call(line)
