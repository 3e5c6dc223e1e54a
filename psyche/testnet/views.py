"""How a testnet is seen beside its console: a page, experiment trackers, and a screen or panes on its terminal."""

import os
import shlex
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from psyche.testnet.backends import LocalBackend, Prepared
from psyche.testnet.companion import LEAVE_S, WATCH, has_terminal, open_screen, open_watch
from psyche.testnet.process import Child
from psyche.testnet.settings import TestnetSettings, get_node_name
from psyche.watch.app import ConsoleView
from psyche.wire.nursery import open_plain_nursery

PANES: Final = 6  # of a window: more have no lines left on a usual terminal
POLL_S: Final = 0.2
TRACKING_S: Final = 20.0  # for the last rows, at the end
MARK: Final = "page: "  # before the address
PAGE_LINES: Final = 100


@asynccontextmanager
async def open_views(
    backend: LocalBackend, prepared: Prepared, settings: TestnetSettings, view: ConsoleView
) -> AsyncGenerator[None]:
    layout = prepared.layout
    async with open_plain_nursery() as nursery, AsyncExitStack() as stack:
        web = [] if settings.web is None else [f"--web={settings.web}"]
        if words := [*web, *settings.tracking]:
            output, leave_s = layout.logs / "watch.log", TRACKING_S if settings.tracking else LEAVE_S
            page = await stack.enter_async_context(open_watch([layout.events, *words], output, leave_s))
            if web:
                nursery.start_soon(_tell_address, page, view)
        if settings.tmux or settings.tui:
            if not has_terminal():
                view.say("there is no terminal for a screen: lines are printed instead")
            elif settings.tui:
                words = [*WATCH, str(layout.events), *backend.get_owner_options(prepared), "--tui"]
                await stack.enter_async_context(open_screen(words, view.console))
            else:
                nodes = [backend.name, *(get_node_name(number + 1) for number in range(settings.num_clients))]
                await stack.enter_async_context(open_screen(get_tmux_argv(layout.logs, nodes), view.console))
        yield
        nursery.cancel_scope.cancel()


async def _tell_address(page: Child, view: ConsoleView) -> None:
    while page.is_running():
        found = next((line for line in page.get_last_lines(PAGE_LINES) if line.startswith(MARK)), None)
        if found is not None:
            view.address = found.removeprefix(MARK)
            view.say(found)
            return
        await trio.sleep(POLL_S)
    view.say(f"there is no page: {' '.join(page.get_last_lines(1))}")


def get_tmux_argv(logs: Path, nodes: Sequence[str]) -> list[str]:
    """Panes that show what each node prints, in a session that ends with its terminal and with this process."""
    own = os.getpid()
    argv = [shutil.which("tmux") or "tmux", "-L", f"psyche-{own}", "-f", os.devnull, "start-server"]
    for name, value in (("destroy-unattached", "on"), ("mouse", "on"), ("status-right", " Ctrl-C ends the testnet ")):
        argv += [";", "set-option", "-g", name, value]
    argv += [";", "bind-key", "-n", "C-c", "run-shell", f"kill -INT {own}"]
    for number, node in enumerate(nodes):
        how = "new-session" if not number else "split-window" if number % PANES else "new-window"
        argv += [";", how, shlex.join(["tail", f"--pid={own}", "-n", "+1", "-F", str(logs / f"{node}.log")])]
        argv += [";", "select-layout", "tiled", ";", "select-pane", "-T", node]
        argv += [";", "set-option", "-w", "pane-border-status", "top"]
    return argv
