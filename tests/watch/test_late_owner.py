"""An owner who begins to watch after a thousand rounds, or after a restart, while no member can be reached."""

from functools import partial
from pathlib import Path

import pytest
from kits.clocks import SteadyClock
from server.live_kit import RATE, Server, build_file, follow_all, open_scripts, open_server

from psyche.analysis.run_view import RunView
from psyche.backends.tcp.owner import TcpAdministration
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.testing.builders import build_identity
from psyche.watch.sources import RunSource

ROUNDS = 1_000


@pytest.fixture
def clock() -> SteadyClock:
    return SteadyClock(RATE)


async def watch_once(server: Server) -> RunView:
    source = RunSource(TcpAdministration(server.address, build_identity("late"), 60.0 * RATE), shows_members=False)
    await source.refresh()
    return source.view


@pytest.mark.whole
async def test_whoever_begins_to_watch_after_a_thousand_rounds_sees_the_whole_curve(
    tmp_path: Path, clock: SteadyClock
) -> None:
    log = EventLog(tmp_path / "events.jsonl", node="server", max_bytes=200_000)  # which rotates
    file = build_file(total_steps=2 * ROUNDS, rounds_per_epoch=200)
    read = partial(log.read_kind, types.RoundOver)
    async with open_server(tmp_path, file, read_history=read, sink=log) as server:
        async with open_scripts(server) as scripts:
            await follow_all(scripts, lambda state: state.progress.step > ROUNDS)
        late = await watch_once(server)  # the members are gone
        await server.stop()
        await server.start()
        again = await watch_once(server)
    for view in (late, again):
        assert [point.step for point in view.curve] == list(range(2, view.step + 1))
        assert view.step > ROUNDS
    assert [*late.curve] == [*again.curve]
