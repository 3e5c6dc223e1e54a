"""All clients are killed at once in mid-epoch (F4); two come back with their disks, one with an empty one."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, forget_folder, open_cluster
from kits.run_files import MakeRun

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

CLIENTS = ("client-1", "client-2", "client-3")
ROUNDS = 5  # of an epoch


@dataclass
class Restarts:
    cluster: Cluster
    killed_at: float = 0.0
    codes: list[int] | None = None
    first_key: str = ""


async def run(folder: Path, config: Path) -> Restarts:
    async with open_cluster(folder, config) as cluster:
        found = Restarts(cluster)
        await cluster.start(clients=3)
        await cluster.until_round(epoch=1, height=1)
        for name in CLIENTS:
            found.killed_at = cluster.kill(name)
        await cluster.until_ended(*CLIENTS)
        await cluster.assert_all_gone("client")
        found.first_key = (cluster.data_dir("client-3") / "identity.key").read_text()
        forget_folder(cluster.data_dir("client-3"))
        for number in (1, 2, 3):
            cluster.start_client(number)
        found.codes = await cluster.until_ended(*CLIENTS)
        cluster.interrupt("server")
        await cluster.until_ended("server")
        await cluster.assert_all_gone()
    return found


@pytest.fixture(scope="module")
def restarts(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Restarts:
    # the round in which all died lasts to its limit
    config = make_run(total_steps=16, rounds_per_epoch=ROUNDS, max_round_train_time=20, round_witness_time=5)
    return trio.run(run, tmp_path_factory.mktemp("restarts"), config)


def test_after_all_were_killed_the_run_is_finished_with_equal_weights(restarts: Restarts) -> None:
    assert restarts.codes == [0, 0, 0], restarts.cluster.describe()
    restarts.cluster.assert_equal_weights(*CLIENTS)


def test_at_most_one_epoch_is_lost_when_all_are_killed_at_once(restarts: Restarts) -> None:
    """F4: `certified` names weights that are on their disks."""
    lost = restarts.cluster.find("server", "rollback")
    assert sum(event["was"] - event["step"] for event in lost) <= ROUNDS, restarts.cluster.describe()
    assert all(event["step"] >= 1 + ROUNDS for event in lost), "what the epoch before came to stays"
    steps = [e["step"] for e in restarts.cluster.find("server", "state_changed", restarts.killed_at)]
    assert min(steps) >= 1 + ROUNDS


def test_who_has_its_disk_resumes_from_its_own_snapshot(restarts: Restarts) -> None:
    cluster = restarts.cluster
    for name in ("client-1", "client-2"):
        loaded = cluster.find(name, "model_loaded", restarts.killed_at)
        assert [event["source"] for event in loaded] == ["own snapshot"], cluster.describe()
        written = {event["digest"] for event in cluster.find(name, "snapshot_written") if event["t"] < loaded[0]["t"]}
        assert loaded[0]["digest"] in written


def test_who_comes_with_an_empty_disk_gets_the_weights_from_its_peers(restarts: Restarts) -> None:
    cluster = restarts.cluster
    loaded = cluster.find("client-3", "model_loaded", restarts.killed_at)
    assert [event["source"] for event in loaded] == ["peers"], cluster.describe()
    others = cluster.find("client-1", "model_loaded", restarts.killed_at)
    assert loaded[0]["digest"] == others[0]["digest"]
    key = (cluster.data_dir("client-3") / "identity.key").read_text()
    assert key != restarts.first_key, "to the others it is a newcomer"
    trained = cluster.find("client-3", "result_sent", loaded[0]["t"])
    assert trained, "and it trains"


def test_nobody_signs_for_a_round_in_which_its_former_self_may_have_signed(restarts: Restarts) -> None:
    """M9: until the next Warmup a process that was restarted signs no result."""
    for name in CLIENTS:
        rounds = [(e["epoch"], e["height"]) for e in restarts.cluster.find(name, "result_sent")]
        assert len(rounds) == len(set(rounds)), name
        started = restarts.cluster.find(name, "client_started")[-1]["t"]
        member = restarts.cluster.find(name, "member", started)[0]["t"]
        first = restarts.cluster.find(name, "result_sent", started)[0]["t"]
        assert member < first
