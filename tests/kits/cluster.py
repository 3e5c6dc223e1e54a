"""Real runs for tests: a server and clients as processes, driven and watched through their event logs.

    async with open_cluster(folder, config) as cluster:
        await cluster.start(clients=3)
        await cluster.until_round(epoch=1, height=1)
        cluster.kill("server")

A test asserts on events, never on a clock. Every wait ends at a deadline that only a
broken run reaches, with the last events of each node in its message. However the block ends, no
process survives it.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import trio

from kits.leftovers import MARK, POLL_S, assert_none_of, assert_nothing_left, get_hosted_trainers, get_processes
from psyche.telemetry import types
from psyche.telemetry.events import EventTail, Line, read_event
from psyche.testnet.free_port import choose_port
from psyche.testnet.process import Child, describe_exit_status

T = TypeVar("T")

DEADLINE_S: Final = 300.0  # of one wait: enough for a machine with ten times the work it can do; seconds on a quiet one
SHOWN_EVENTS: Final = 14
SHOWN_LINES: Final = 6
QUIET: Final = frozenset({"network", "payload_received", "model_fetch"})  # left out of a failure's message
LATE_S: Final = 5.0  # how late a loaded machine may notice that a wait is over
WITHOUT_DEADLINE: Final = frozenset(
    {
        types.Wait.MORE_MEMBERS,
        types.Wait.FORMATION,
        types.Wait.OWNER,
        types.Wait.NEXT_EPOCH,
        types.Wait.BACKEND,
        types.Wait.PERMISSION,
    }
)


@dataclass(slots=True)
class Node:
    """One node: its running process, its events so far, and the exit codes of its former processes."""

    name: str
    tail: EventTail
    child: Child | None = None
    events: list[Line] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    starts: int = 0
    is_ending: bool = False  # we killed or interrupted it: any exit code is fine

    def read(self) -> None:
        while found := self.tail.read():
            self.events += found

    def describe(self) -> str:
        state = "never started" if self.child is None else "running"
        if self.child is not None and not self.child.is_running():
            state = describe_exit_status(self.codes[-1] if self.codes else None)
        shown = [event for event in self.events if event["kind"] not in QUIET][-SHOWN_EVENTS:]
        lines = [f"{self.name}: {state}, started {self.starts} times"]
        lines += [f"    {_format_event(event)}" for event in shown]
        if self.child is not None:
            lines += [f"    > {line[:300]}" for line in self.child.get_last_lines(SHOWN_LINES)]
        return "\n".join(lines)


def _format_event(event: Line) -> str:
    fields = {name: value for name, value in event.items() if name not in ("t", "node", "kind")}
    clock = time.strftime("%H:%M:%S", time.localtime(event["t"]))
    return f"{clock}{event['t'] % 1:.2f} {event['kind']} {json.dumps(fields)[:240]}"


def matches(event: Line, kind: str, fields: Mapping[str, object]) -> bool:
    """Whether an event is of this kind and its fields have these values."""
    return event["kind"] == kind and all(event.get(name) == value for name, value in fields.items())


def find_overlong_waits(lines: Iterable[Line]) -> list[Line]:
    """Waits that ended later than their deadline, and waits without a deadline that need one."""
    found: list[Line] = []
    for line in lines:
        event = read_event(line)
        if not isinstance(event, types.WaitEnded):
            continue
        if event.until is None and event.wait not in WITHOUT_DEADLINE:
            found.append(line)
        if event.until is not None and line["t"] > event.until + LATE_S:
            found.append(line)
    return found


class Cluster:
    """A server named "server" and clients named "client-1" and so on.

    `prefix` is put before a node's command line, such as `ip netns exec NAME`; `addresses` are where the
    nodes listen, loopback where none is given.
    """

    def __init__(
        self,
        folder: Path,
        config: Path,
        *,
        prefix: Mapping[str, Sequence[str]] | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.config = config
        self.token = uuid4().hex
        self.port = choose_port()
        self.nodes: dict[str, Node] = {}
        self._prefix = dict(prefix or {})
        self._addresses = dict(addresses or {})
        self.local_roots: dict[str, Path] = {}  # of clients that lack the run's model folder

    # --- command lines, as a user would type them ------------------------------------------------

    def address_of(self, name: str) -> str:
        return self._addresses.get(name, "127.0.0.1")

    @property
    def server_address(self) -> str:
        return f"{self.address_of('server')}:{self.port}"

    def psyche(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "psyche", *map(str, arguments)]

    def data_dir(self, name: str) -> Path:
        return self.folder / name

    def checkpoints(self, name: str) -> Path:
        return self.data_dir(name) / "checkpoints"

    def _server_argv(self) -> list[str]:
        return self.psyche(
            "server", "run", "--state", self.config / "run.toml", "--server-port", self.port,
            "--bind-ip", self.address_of("server"), "--state-dir", self.data_dir("server"),
            "--events-dir", self.folder / "events",
        )  # fmt: skip

    def _client_argv(self, name: str) -> list[str]:
        return self.psyche(
            "client", "train", "--run-id", "e2e", "--server-addr", self.server_address,
            "--bind-p2p-interface", self.address_of(name), "--node-name", name, "--data-dir", self.data_dir(name),
            "--checkpoint-dir", self.checkpoints(name), "--local-root", self.local_roots.get(name, self.config),
            "--events-dir", self.folder / "events", "--device", "cpu", "--threads", 1, "--micro-batch-size", 4,
        )  # fmt: skip

    # --- starting and ending ----------------------------------------------------------------------

    def _start(self, name: str, argv: list[str], env: Mapping[str, str]) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, EventTail(self.folder / "events" / name / "events.jsonl"))
        node.starts += 1
        node.is_ending = False
        mark = {MARK: f"{self.token}/{name}/{node.starts}"}
        output = self.folder / "logs" / f"{name}.log"
        node.child = Child(name, [*self._prefix.get(name, ()), *argv], output=output, env={**env, **mark})
        return node

    def start_server(self) -> Node:
        """Start the server; it keeps its port and state folder over restarts."""
        return self._start("server", self._server_argv(), {})

    def start_client(self, number: int, **env: str) -> Node:
        """Start client `number`; keywords are added to its environment."""
        name = f"client-{number}"
        return self._start(name, self._client_argv(name), env)

    def start_cheat(self, number: int, kind: str) -> Node:
        """Start client `number` with a trainer that cheats (`cheating_client`)."""
        return self._start_program("cheating_client.py", number, kind, {})

    def start_liar(self, number: int, kind: str, **env: str) -> Node:
        """Start client `number`, which shows peers another model than the run's (`lying_client`)."""
        return self._start_program("lying_client.py", number, kind, env)

    def _start_program(self, program: str, number: int, kind: str, env: Mapping[str, str]) -> Node:
        name = f"client-{number}"
        argv = self._client_argv(name)
        return self._start(name, [argv[0], str(Path(__file__).parent / "hostile" / program), kind, *argv[3:]], env)

    async def start(self, clients: int) -> None:
        self.start_server()
        for number in range(1, clients + 1):
            self.start_client(number)
        await self.until("the server to listen", lambda: self.find("server", "server_listening"))

    def child(self, name: str) -> Child:
        child = self.nodes[name].child
        assert child is not None, f"{name} was never started"
        return child

    def kill(self, name: str) -> float:
        """SIGKILL a node; return when, in unix seconds."""
        self.nodes[name].is_ending = True
        self.child(name).kill()
        return time.time()

    def interrupt(self, name: str) -> float:
        """SIGINT a node's process only; return when, in unix seconds."""
        self.nodes[name].is_ending = True
        now = time.time()
        self.child(name).send(signal.SIGINT)
        return now

    async def until_ended(self, *names: str) -> list[int]:
        await self.until(f"{', '.join(names)} to end", lambda: not any(self.child(n).is_running() for n in names))
        return [await self.child(name).wait() for name in names]

    async def restart(self, name: str) -> Node:
        self.kill(name)
        await self.until_ended(name)
        return self.start_server() if name == "server" else self.start_client(int(name.rpartition("-")[2]))

    async def run_command(self, *arguments: object) -> str:
        name = f"command-{uuid4().hex[:8]}"
        argv = [*self._prefix.get("server", ()), *self.psyche(*arguments)]
        child = Child(name, argv, output=self.folder / "logs" / name, env={MARK: f"{self.token}/{name}/1"})
        try:
            with trio.move_on_after(DEADLINE_S):
                await child.wait()
        finally:
            await child.end()
        text = "\n".join(child.get_last_lines(100))
        assert child.returncode == 0, f"psyche {arguments}: {describe_exit_status(child.returncode)}\n{text}"
        return text

    async def assert_gone(self, name: str) -> None:
        """Assert that a node's newest process and all processes that it started are gone."""
        node = self.nodes[name]
        await assert_nothing_left(f"{self.token}/{name}/{node.starts}")
        node.read()
        trainers = [event["pid"] for event in self.find(name, "trainer_started")]
        await assert_none_of(trainers)

    async def assert_all_gone(self, name: str = "") -> None:
        """Assert that all processes of nodes with this name prefix are gone, and all trainers."""
        await assert_nothing_left(f"{self.token}/{name}")
        await assert_none_of(get_hosted_trainers())

    async def close(self) -> None:
        for node in self.nodes.values():
            if node.child is not None:
                await node.child.end()
        for pid in get_processes(self.token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- events -----------------------------------------------------------------------------------

    def read(self) -> None:
        for node in self.nodes.values():
            node.read()

    def find(self, name: str, kind: str, since: float = 0.0, **fields: object) -> list[Line]:
        """A node's events of a kind since a moment, oldest first, whose fields have these values."""
        return [e for e in self.nodes[name].events if e["t"] >= since and matches(e, kind, fields)]

    def find_all(self, kind: str, since: float = 0.0, **fields: object) -> list[Line]:
        return [event for name in self.nodes for event in self.find(name, kind, since, **fields)]

    @property
    def clients(self) -> list[str]:
        return sorted(name for name in self.nodes if name != "server")

    async def until(self, what: str, condition: Callable[[], T], timeout_s: float = DEADLINE_S) -> T:
        """Wait until `condition` is true; return its value.

        Raises:
            AssertionError: it did not become true, or a node failed meanwhile; with each node's last events.
        """
        deadline = trio.current_time() + timeout_s
        while True:
            self.read()
            if found := condition():
                return found
            await self._check_nodes(what)
            if trio.current_time() > deadline:
                raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}\n{self.describe()}")
            await trio.sleep(POLL_S)

    async def _check_nodes(self, what: str) -> None:
        for node in self.nodes.values():
            if node.child is None or node.child.is_running() or len(node.codes) == node.starts:
                continue
            is_ending = node.is_ending  # of this process; meanwhile another task may start the next one
            code = await node.child.wait()
            node.codes.append(code)
            node.read()
            if code != 0 and not is_ending:
                text = f"{node.name} ended: {describe_exit_status(code)}, while waiting for {what}"
                raise AssertionError(f"{text}\n{self.describe()}")

    async def until_round(self, epoch: int, height: int, since: float = 0.0) -> Line:
        """Wait until the server has begun to train this round, or a later one of the epoch."""

        def find() -> list[Line]:
            begun = self.find("server", "state_changed", since, run_state="round_train", epoch=epoch)
            return [event for event in begun if event["height"] >= height]

        return (await self.until(f"epoch {epoch}, round {height}", find))[-1]

    async def until_state(self, run_state: str, since: float = 0.0, **fields: object) -> Line:
        found = await self.until(
            f"the run to be {run_state} {fields or ''}",
            lambda: self.find("server", "state_changed", since, run_state=run_state, **fields),
        )
        return found[-1]

    def describe(self) -> str:
        self.read()
        return "\n".join(node.describe() for node in self.nodes.values())

    # --- what most runs are judged by -------------------------------------------------------------

    def get_final_digests(self, *names: str) -> dict[str, str]:
        digests: dict[str, str] = {}
        for name in names or self.clients:
            finished = self.find(name, "finished")
            digests[name] = str(finished[-1]["digest"]) if finished and finished[-1]["held"] else "none"
        return digests

    def assert_equal_weights(self, *names: str) -> str:
        """Assert that all clients finished with the same digest and the same exported bytes; return the digest."""
        digests = self.get_final_digests(*names)
        assert len(set(digests.values())) == 1, f"{digests}\n{self.describe()}"
        (digest,) = set(digests.values())
        assert digest != "none", self.describe()
        exports = {name: self.find(name, "exported") for name in digests}
        missing = [name for name, found in exports.items() if not found]
        assert not missing, f"{missing} exported nothing\n{self.describe()}"
        weights = {(Path(found[-1]["path"]) / "model.safetensors").read_bytes() for found in exports.values()}
        assert len(weights) == 1, "equal digests, but other exported bytes"
        return digest


@asynccontextmanager
async def open_cluster(
    folder: Path,
    config: Path,
    *,
    prefix: Mapping[str, Sequence[str]] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster; when the block ends, however it ends, all its processes are stopped."""
    cluster = Cluster(folder, config, prefix=prefix, addresses=addresses)
    try:
        yield cluster
    finally:
        with trio.CancelScope(shield=True):  # pyright: ignore[reportCallIssue]
            await cluster.close()
        cluster.read()


def forget_folder(folder: Path) -> None:
    """Delete a node's folder, as if the machine had a new disk."""
    shutil.rmtree(folder)
