"""What goes wrong in a run of real processes: the screen, the page in a browser and an alert name it."""

import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.namespaces import Line, NoNamespaces, open_namespaces
from kits.run_files import write_model, write_run
from watch.browser_kit import open_browser, open_tab
from watch.page_kit import run_command
from watch.terminal_kit import Terminal, open_terminal

from psyche.analysis.run_view import RunView
from psyche.analysis.troubles import CAUSES
from psyche.telemetry.events import read_entries

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

ALERT = 'echo "$(date +%s.%N) $PSYCHE_ALERT $PSYCHE_ALERT_STATE $PSYCHE_ALERT_WHO" >> '
DISK_MB = 16
SEEN_S = 60.0
# When each trouble was first seen on the page, also one that is soon over.
RECORD = """() => {
  window.seen = {};
  const note = (one) => { seen[one.innerText.split(" for ")[0]] ??= Date.now(); };
  const look = () => document.querySelectorAll("[role=alert]").forEach(note);
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@dataclass
class Watchers:
    """A watcher of the logs with a page, one of the server without; alerts of both, and the server's screen."""

    cluster: Cluster
    terminal: Terminal
    tab: Any
    told: list[Path]
    drawn: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])  # on the screen, and when

    async def see(self, cause: str, who: str, find_since: Callable[[], float]) -> None:
        """All three name it; tell how long after the moment (Unix seconds) that is found then each did."""
        words = f"{who or 'the run'} {CAUSES[cause]}"
        seen: dict[str, float] = {}

        def look() -> bool:
            found = {f"alert of {path.name}": find(path, cause, who) for path in self.told}
            found["page"] = self.tab.evaluate("seen").get(words, 0.0) / 1e3
            found["screen"] = next((t for t, text in self.drawn if words in text), 0.0)
            seen.update({name: t for name, t in found.items() if t and name not in seen})
            return len(seen) == len(found)

        await self.cluster.until(f"{words}, seen by {[*seen]}", look, SEEN_S)
        since = find_since()
        for name, t in seen.items():
            print(f"{words}: {name} after {t - since:.1f} s")

    async def read_on(self) -> None:
        while True:
            if await trio.to_thread.run_sync(self.terminal.read):
                self.drawn.append((time.time(), self.terminal.text))
                self.terminal.written = self.terminal.written[-1_000:]  # words may come in two parts


def find_known(events: Path, cause: str, who: str) -> float:
    """When the logs first showed it."""
    view = RunView()
    for entry in read_entries(events):
        view.take(entry)
        if any(one[:2] == (cause, who) for one in view.get_troubles(entry.t)):
            return entry.t
    return 0.0


def find(path: Path, cause: str, who: str) -> float:
    lines = [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []
    return next((float(t) for t, *told in lines if told == [cause, "begun", who]), 0.0)


@asynccontextmanager
async def watch(cluster: Cluster, folder: Path, *server: str) -> AsyncIterator[Watchers]:
    """`server`: the options that name it; without them the screen is of the logs too."""
    events, told = cluster.folder / "events", [folder / "logs", *([folder / "server"] if server else [])]
    with ExitStack() as stack:
        address = stack.enter_context(run_command(events, "--alert", f"{ALERT}{told[0]}"))
        if server:
            stack.enter_context(run_command(*server, "--alert", f"{ALERT}{told[1]}"))
        screen = server or (str(events),)
        terminal = stack.enter_context(open_terminal("watch", *screen, "--tui", columns=150, rows=50))
        tab = open_tab(stack.enter_context(open_browser()), address, [])
        tab.evaluate(RECORD)
        async with trio.open_nursery() as nursery:
            watchers = Watchers(cluster, terminal, tab, told)
            nursery.start_soon(watchers.read_on)
            yield watchers
            nursery.cancel_scope.cancel()


@contextmanager
def open_small_disk(path: Path) -> Iterator[Path]:
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def write_long_run(folder: Path, host: str = "127.0.0.1") -> Path:
    return write_run(folder / "config", write_model(folder / "model"), host=host, total_steps=5_000)


async def until_told(cluster: Cluster, name: str, kind: str, words: str = "") -> float:
    """When the server first told of such an event after what was told before."""

    def look() -> float:
        found = [one for one in cluster.find("server", kind) if one.get("name", name) == name]
        return next((float(one["t"]) for one in found if words in str(one)), 0.0)

    return await cluster.until(f"{kind} of {name}", look)


def test_wrong_weights_a_full_disk_a_killed_member_and_a_killed_server_are_named(tmp_path: Path) -> None:
    config = write_long_run(tmp_path)

    async def run() -> None:
        async with open_cluster(tmp_path / "run", config) as cluster:
            cluster.start_server()
            flips = ",".join(f"flip:apply@{call}" for call in range(60, 400))
            for number, faults in ((1, ""), (2, ""), (3, flips)):
                cluster.start_client(number, PSYCHE_TRAINER_FAULT=faults)
            await cluster.until_round(0, 1)
            owner = ("--server-addr", cluster.server_address, "--state-dir", str(cluster.data_dir("server")))
            async with watch(cluster, tmp_path, *owner) as watchers:
                known = await until_told(cluster, "client-3", "error_reported")
                await watchers.see("weights", "client-3", lambda: known)
                fill(disk)
                full = await until_told(cluster, "client-2", "error_reported", "No space left")
                await watchers.see("disk", "client-2", lambda: full)
                now = time.time()
                await cluster.until("client-1 to train", lambda: cluster.find("client-1", "trained", now))
                for cause, who, killed in (("gone", "client-1", "client-1"), ("still", "", "server")):
                    await watchers.see(cause, who, partial(float, cluster.kill(killed)))

    with open_small_disk(tmp_path / "run" / "client-2") as disk:
        trio.run(run)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


def test_a_member_on_a_slow_line_is_named(tmp_path: Path) -> None:
    nodes = {"server": Line(), "client-1": Line(), "client-2": Line(), "client-3": Line(delay_s=2.0)}
    try:
        with open_namespaces(nodes) as machines:
            config = write_long_run(tmp_path, host=machines.addresses["server"])
            trio.run(run_slow, tmp_path, config, machines.prefix, machines.addresses)
    except NoNamespaces as error:
        pytest.skip(f"this machine has no network namespaces: {error}")


async def run_slow(folder: Path, config: Path, prefix: dict[str, list[str]], addresses: dict[str, str]) -> None:
    async with open_cluster(folder / "run", config, prefix=prefix, addresses=addresses) as cluster:
        await cluster.start(clients=3)
        await cluster.until_round(0, 2)
        async with watch(cluster, folder) as watchers:
            await watchers.see("slow", "client-3", lambda: find_known(cluster.folder / "events", "slow", "client-3"))
