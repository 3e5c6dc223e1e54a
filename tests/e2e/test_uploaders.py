"""Clients that upload to the Hub, as processes: killed or interrupted in the midst of it (S10, F26).

Seconds are the rule under test: twice an upload's expected time for the next place, five to leave. A machine that has
more to do than cores to do it on is allowed that many times more.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.cluster import DEADLINE_S, Cluster, open_cluster
from kits.leftovers import LEAVE_S, get_allowed_s
from kits.run_files import MakeRun
from kits.storage.faults import FaultyWay, open_way
from kits.storage.hub import TOKEN, HubDouble, open_hub_double

from psyche.client.runtime.weights.uploading import LEAST_EXPECTED_S

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

EXPECTED_S = LEAST_EXPECTED_S + 1.0  # the model is tiny
FILES = {"README.md", "config.json", "model.safetensors"}


@dataclass
class Uploading:
    """A run whose three clients upload, each to a repository of its own and by a way of its own."""

    cluster: Cluster
    hub: HubDouble
    ways: dict[str, FaultyWay]

    def find(self, part: str) -> list[str]:
        """The clients that have asked for an address with this part."""
        return [name for name, way in self.ways.items() if any(part in asked.target for asked in way.asked)]

    async def until_asked(self, part: str) -> str:
        (name,) = await self.cluster.until(f"an upload to ask for {part}", lambda: self.find(part))
        return name

    def list_trees(self, name: str) -> list[set[str]]:
        """The files of each commit in a client's repository."""
        repo = self.hub.repos.get(f"models/owner/{name}")
        return [set(tree) for tree in repo.commits.values() if tree] if repo else []


@asynccontextmanager
async def open_uploading(folder: Path, config: Path, fault: str, only: str) -> AsyncGenerator[Uploading]:
    """Uploads stop where `only` is asked for: the way there has this fault."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(open_hub_double())
        names = [f"client-{number}" for number in range(1, 4)]
        ways = {name: await stack.enter_async_context(open_way(hub.address)) for name in names}
        cluster = await stack.enter_async_context(open_cluster(folder, config))
        cluster.start_server()
        for number, (name, way) in enumerate(ways.items(), 1):
            way.spoil(fault, only=only)
            places = {"HF_ENDPOINT": way.address, "HF_TOKEN": TOKEN, "HUB_REPO": f"owner/{name}"}
            cluster.start_client(number, ALLOW_PRIVATE_HOSTS="1", **places)
        yield Uploading(cluster, hub, ways)


@pytest.mark.parametrize(
    ("fault", "only"),
    [("stalled", "/api/repos/create"), ("stalled", "/upload/"), ("stalled_body", "/commit/")],
    ids=["at the start", "half-way", "near the end"],
)
async def test_where_an_uploader_is_killed_another_has_a_place_on_record_within_twice_its_time(
    fault: str, only: str, make_run: MakeRun, tmp_path: Path
) -> None:
    async with open_uploading(tmp_path, make_run(total_steps=7), fault, only) as run:
        cluster = run.cluster
        await run.until_asked("/api/repos/create")
        began = time.time()
        victim = await run.until_asked(only)
        cluster.kill(victim)
        await cluster.assert_gone(victim)  # the process that was uploading for it too
        for way in run.ways.values():
            way.spoil("")
        others = [name for name in cluster.clients if name != victim]
        allowed_s = get_allowed_s()

        def find() -> list[dict[str, Any]]:
            return [event for name in others for event in cluster.find(name, "checkpoint_shared")]

        found = (await cluster.until("another place on record", find))[0]
        factor = max(allowed_s, get_allowed_s()) / LEAVE_S
        print(f"{victim} killed {cluster.nodes[victim].starts}; another place after {found['t'] - began:.1f} s")
        assert found["t"] - began < 2 * EXPECTED_S * factor
        assert run.list_trees(victim) in ([], [FILES]) or run.list_trees(victim)[0] >= FILES
        assert (run.list_trees(victim) == []) == (only != "/commit/")
        assert any(str(found["path"]).startswith(f"hf://owner/{name}@") for name in others)
        for name in others:
            assert not cluster.find(name, "error"), cluster.describe()
        assert await cluster.until_ended(*others) == [0, 0]


async def test_an_upload_that_hangs_delays_no_round_and_ctrl_c_ends_it_within_five_seconds(
    make_run: MakeRun, tmp_path: Path
) -> None:
    config = make_run(total_steps=5_000, rounds_per_epoch=4)
    async with open_uploading(tmp_path, config, "stalled", "/upload/") as run:
        cluster = run.cluster
        name = await run.until_asked("/upload/")
        began = time.time()
        await cluster.until_round(1, 3)
        assert not cluster.find_all("not_sent", began), cluster.describe()
        assert not cluster.find(name, "checkpoint_shared")
        allowed_s = get_allowed_s()
        cluster.interrupt(name)
        started = trio.current_time()
        with trio.fail_after(allowed_s + DEADLINE_S):
            code = await cluster.child(name).wait()
        took_s = trio.current_time() - started
        await cluster.assert_gone(name)
        print(f"left after {took_s:.2f} s")
        assert code == 130
        assert took_s < max(allowed_s, get_allowed_s())
