"""One run both ways: real processes on loopback, and simulated with the times that were measured there."""

from pathlib import Path

import pytest
import trio
from forecast.calibration import compare_sets, play_measured
from kits.cluster import open_cluster
from kits.run_files import MakeRun

from psyche.analysis.accounts import read_accounts
from psyche.config.load import load_run
from psyche.telemetry.events import Line, read_entry

pytestmark = [pytest.mark.e2e, pytest.mark.whole]
MEMBERS = 3
BATCH = 6
LEAVER, NEWCOMER = 3, 4
BETWEEN_EPOCHS_S = 10  # for a loaded machine: whoever leaves is gone before the next epoch forms


async def run_real(folder: Path, config: Path) -> list[Line]:
    """The real run, in whose second epoch one client is replaced by another; all events by time."""
    async with open_cluster(folder, config) as cluster:
        await cluster.start(clients=MEMBERS)
        await cluster.until_state("cooldown", epoch=0)
        cluster.interrupt(f"client-{LEAVER}")
        cluster.start_client(NEWCOMER)  # the second epoch cannot form without it
        await cluster.until_ended(*(f"client-{number + 1}" for number in range(MEMBERS + 1)))
        cluster.read()
        return sorted((e for node in cluster.nodes.values() for e in node.events), key=lambda event: event["t"])


@pytest.fixture(scope="module")
def runs(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, list[Line]]]:
    """Configuration and events of a real run with overlap and of one without: side by side, for both wait a lot."""
    found: dict[bool, tuple[Path, list[Line]]] = {}

    async def play(overlap: bool) -> None:
        config = make_run(
            init_min_clients=MEMBERS, min_clients=MEMBERS, overlap=overlap, global_batch_size_start=BATCH,
            global_batch_size_end=BATCH, straggler_percent=0, waiting_for_members_extra_time=BETWEEN_EPOCHS_S,
        )  # fmt: skip
        found[overlap] = (config, await run_real(tmp_path_factory.mktemp("real"), config))

    async def play_both() -> None:
        async with trio.open_nursery() as nursery:
            for overlap in (True, False):
                nursery.start_soon(play, overlap)

    trio.run(play_both)  # with a loop of its own, as the simulation has one
    return found


@pytest.mark.parametrize("overlap", [True, False])
def test_a_simulated_run_decides_the_sets_that_the_real_one_decided(
    overlap: bool, runs: dict[bool, tuple[Path, list[Line]]]
) -> None:
    config, events = runs[overlap]
    real = read_accounts(map(read_entry, events))
    simulated = play_measured(load_run(config), real, MEMBERS)
    assert simulated.outcome.violations == []
    sets = dict(real.get_sets())
    assert len(sets) == 12, "steps 1 to 12"
    assert sets[0, 0] != sets[1, 0], "another member"
    assert compare_sets(real, simulated.accounts) == []
    assert [one.place for one in real.rounds] == [one.place for one in simulated.accounts.rounds]
