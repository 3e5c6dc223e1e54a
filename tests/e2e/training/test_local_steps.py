"""A run with local steps and overlap, in which one client restarts and one joins: all end with the same weights."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.run_files import LOCAL_STEPS, MakeRun

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

ROUNDS, EPOCH, STEPS = 30, 10, 4
FIRST = ("client-1", "client-2", "client-3")
NEWCOMER = "client-4"


async def run(folder: Path, config: Path) -> Cluster:
    async with open_cluster(folder, config) as cluster:
        await cluster.start(clients=3)
        await cluster.until_round(epoch=1, height=1)
        cluster.kill("client-3")
        await cluster.until_ended("client-3")
        cluster.start_client(3)
        cluster.start_client(4)
        codes = await cluster.until_ended(*FIRST, NEWCOMER)
        assert codes[:2] == [0, 0], cluster.describe()
        cluster.interrupt("server")
        await cluster.until_ended("server")
        await cluster.assert_all_gone()
        cluster.read()
    return cluster


@pytest.fixture(scope="module")
def cluster(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    config = make_run(
        optimizer=LOCAL_STEPS, total_steps=ROUNDS + 1, rounds_per_epoch=EPOCH, global_batch_size_start=48,
        global_batch_size_end=48, max_round_train_time=20, round_witness_time=5, init_min_clients=2,
        waiting_for_members_extra_time=5, cooldown_time=2,
    )  # fmt: skip
    return trio.run(run, tmp_path_factory.mktemp("local"), config)


def test_all_four_end_with_equal_weights(cluster: Cluster) -> None:
    cluster.assert_equal_weights(*FIRST, NEWCOMER)


def test_no_client_ever_had_weights_other_than_the_agreed_ones(cluster: Cluster) -> None:
    assert not cluster.find_all("diverged"), cluster.describe()
    assert all(event["agreed"] for event in cluster.find_all("digest"))


def test_every_round_after_an_epochs_first_merges_what_has_arrived_of_the_round_before(cluster: Cluster) -> None:
    done = cluster.find("client-1", "inner_steps_done")
    assert len(done) >= ROUNDS // 2, cluster.describe()
    assert {event["inner_steps"] for event in done} == {STEPS}
    assert all(not event["merged"] for event in done if event["height"] == 0)
    # a client that was too late for a round has no own result of it
    merged = [after["merged"] for before, after in pairwise(done) if after["height"] == before["height"] + 1]
    assert all(merged), "the own result at least"
    assert max(map(len, merged)) >= 2, "and those of others"


def test_who_restarts_and_who_joins_train_with_the_others(cluster: Cluster) -> None:
    restarted = cluster.find("client-3", "client_started")[-1]["t"]
    loaded = cluster.find("client-3", "model_loaded", restarted)[-1]
    assert cluster.find("client-3", "result_sent", loaded["t"]), cluster.describe()
    assert cluster.find(NEWCOMER, "result_sent"), cluster.describe()
    assert cluster.find(NEWCOMER, "model_loaded")[-1]["source"] != "own snapshot"


def test_the_loss_falls(cluster: Cluster) -> None:
    losses = [event["loss"] for event in cluster.find("client-1", "trained")]
    assert losses[-1] < losses[0] - 1.0, losses
