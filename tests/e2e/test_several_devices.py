"""A run of one client with four ranks, and two with one: all hold the same weights, and a lost rank costs no step.

In the second epoch a rank of client-1 is killed. That epoch ends early, for a run that wants three members, and the
next waits for client-1: its four processes may take longer to start than two others need for all epochs.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.leftovers import get_children
from kits.run_files import MakeRun

from psyche.modeling.trainer.process import HOST_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

CLIENTS = ("client-1", "client-2", "client-3")
EPOCHS, ROUNDS = 4, 4


@dataclass
class Run:
    cluster: Cluster
    codes: list[int]
    ranks: int
    killed: float  # when


async def run(folder: Path, config: Path) -> Run:
    async with open_cluster(folder, config) as cluster:
        cluster.start_server()
        cluster.start_client(1, DATA_PARALLELISM="2", TENSOR_PARALLELISM="2", **{HOST_VARIABLE: ""})
        for number in (2, 3):
            cluster.start_client(number)
        begun = await cluster.until(
            "client-1 to train in epoch 1", lambda: cluster.find("client-1", "trained", epoch=1)
        )
        (trainer,) = get_children(cluster.child("client-1").pid)
        ranks = sorted(get_children(trainer))
        os.kill(ranks[-1], signal.SIGKILL)
        codes = await cluster.until_ended(*CLIENTS)
        cluster.interrupt("server")
        await cluster.until_ended("server")
        await cluster.assert_all_gone()
    return Run(cluster, codes, 1 + len(ranks), begun[0]["t"])


@pytest.fixture(scope="module")
def done(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = make_run(
        total_steps=1 + EPOCHS * ROUNDS, rounds_per_epoch=ROUNDS, max_round_train_time=60, round_witness_time=5,
        min_clients=3,
    )  # fmt: skip
    return trio.run(run, tmp_path_factory.mktemp("devices"), config)


def test_a_client_with_four_ranks_ends_with_the_weights_of_those_with_one(done: Run) -> None:
    assert done.codes == [0, 0, 0], done.cluster.describe()
    assert done.ranks == 4
    done.cluster.assert_equal_weights(*CLIENTS)


def test_its_updates_count_like_all_others(done: Run) -> None:
    for name in CLIENTS:
        assert done.cluster.find(name, "result_sent", epoch=0), done.cluster.describe()
    assert not [event for name in CLIENTS for event in done.cluster.find(name, "diverged")]


def test_a_rank_that_is_killed_takes_the_trainer_with_it_and_the_client_is_back_in_the_next_epoch(done: Run) -> None:
    failures = [event for event in done.cluster.find("client-1", "error", done.killed) if "trainer" in event]
    assert [event["trainer"] for event in failures] == ["crashed"], done.cluster.describe()
    assert done.cluster.find("client-1", "model_loaded", failures[0]["t"])
    assert done.cluster.find("client-1", "result_sent", failures[0]["t"])


def test_the_others_lose_no_step(done: Run) -> None:
    assert not done.cluster.find("server", "rollback"), done.cluster.describe()
    begun = done.cluster.find("server", "state_changed", run_state="round_train")
    assert list(dict.fromkeys(event["step"] for event in begun)) == list(range(1, 2 + EPOCHS * ROUNDS))
