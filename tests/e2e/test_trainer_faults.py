"""Trainers that fail in real clients (F20, F21): memory runs out, a process dies, a process hangs.

One run of five epochs. `PSYCHE_TRAINER_FAULT` counts the calls of each trainer process; a fault is so
late that the process which takes its place is never asked that often:

- client-2: memory runs out once at the second batch; in the third epoch its trainer dies;
- client-3: in the third epoch its trainer hangs;
- client-1: in the fourth epoch memory runs out whatever the micro-batch: it leaves with a reason.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.leftovers import get_children, get_fork_servers
from kits.run_files import MakeRun

from psyche.modeling.trainer.process import HOST_VARIABLE
from psyche.telemetry.events import Line

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

CLIENTS = ("client-1", "client-2", "client-3")
EPOCHS, ROUNDS = 5, 4
FAULTS = {
    1: f"oom@{3 * ROUNDS + 2}x9",
    2: f"oom@2,crash@{2 * ROUNDS + 3}",
    3: f"hang@{2 * ROUNDS + 2}",
}


@dataclass
class Faults:
    cluster: Cluster
    codes: list[int] | None = None
    children: dict[str, list[str]] = field(default_factory=dict)  # states of trainers, once a new one was there


async def run(folder: Path, config: Path) -> Faults:
    async with open_cluster(folder, config) as cluster:
        found = Faults(cluster)
        cluster.start_server()
        for number, fault in FAULTS.items():
            own = {HOST_VARIABLE: ""} if number == 2 else {}  # its trainer is its own child, not forked by the host
            cluster.start_client(number, PSYCHE_TRAINER_FAULT=fault, **own)
        for name in ("client-2", "client-3", "client-1"):
            await cluster.until(f"the fault of {name}", lambda name=name: get_failures(cluster, name))
            await cluster.until(f"{name} to have a new trainer", lambda name=name: is_back(cluster, name))
            parents = [cluster.child(name).pid, *get_fork_servers()]
            found.children[name] = [state for parent in parents for state in get_children(parent).values()]
        found.codes = await cluster.until_ended(*CLIENTS)
        cluster.interrupt("server")
        await cluster.until_ended("server")
        await cluster.assert_all_gone()
    return found


def get_failures(cluster: Cluster, name: str) -> list[Line]:
    return [event for event in cluster.find(name, "error") if "trainer" in event]


def is_back(cluster: Cluster, name: str) -> bool:
    """Whether the client has weights again after its trainer was lost, or the run is over."""
    lost = get_failures(cluster, name)[0]["t"]
    return bool(cluster.find(name, "model_loaded", lost) or cluster.find(name, "finished", lost))


@pytest.fixture(scope="module")
def faults(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Faults:
    config = make_run(
        total_steps=1 + EPOCHS * ROUNDS, rounds_per_epoch=ROUNDS, max_round_train_time=20, round_witness_time=5
    )
    return trio.run(run, tmp_path_factory.mktemp("faults"), config)


def test_the_run_is_finished_and_all_hold_the_same_weights_whatever_the_trainers_did(faults: Faults) -> None:
    assert faults.codes == [0, 0, 0], faults.cluster.describe()
    faults.cluster.assert_equal_weights(*CLIENTS)


def test_memory_that_runs_out_once_halves_the_micro_batch_and_costs_no_round(faults: Faults) -> None:
    trained = faults.cluster.find("client-2", "trained", epoch=0)
    sizes = [event["micro_batch_size"] for event in trained]
    assert sizes == [4, 2, 2, 2], faults.cluster.describe()
    assert not faults.cluster.find("client-2", "not_sent", epoch=0)


def test_memory_that_is_never_enough_is_a_clean_leave_with_a_reason(faults: Faults) -> None:
    (failure,) = get_failures(faults.cluster, "client-1")
    assert failure["trainer"] == "out_of_memory"
    assert "one sequence of 32 tokens" in failure["message"]
    left = faults.cluster.find("client-1", "left_epoch", failure["t"])
    assert left, faults.cluster.describe()
    assert left[0]["cause"] == "trainer_lost"


def test_a_trainer_that_dies_is_replaced_and_its_client_takes_part_again(faults: Faults) -> None:
    failures = get_failures(faults.cluster, "client-2")
    assert [event["trainer"] for event in failures] == ["crashed"], faults.cluster.describe()
    assert "exit status 70" in failures[0]["message"]
    assert faults.cluster.find("client-2", "model_loaded", failures[0]["t"])
    assert faults.cluster.find("client-2", "result_sent", failures[0]["t"], epoch=EPOCHS - 1)


def test_a_trainer_that_hangs_is_noticed_by_its_silence(faults: Faults) -> None:
    failures = get_failures(faults.cluster, "client-3")
    assert [event["trainer"] for event in failures] == ["hung"], faults.cluster.describe()
    assert "no sign of life within" in failures[0]["message"]


def test_the_others_go_on_while_a_trainer_is_away(faults: Faults) -> None:
    """Every round is applied by whoever is there; nothing has to be done again."""
    assert not faults.cluster.find("server", "rollback"), faults.cluster.describe()
    begun = faults.cluster.find("server", "state_changed", run_state="round_train")
    steps = list(dict.fromkeys(event["step"] for event in begun))
    assert steps == list(range(1, 2 + EPOCHS * ROUNDS))
    applied = {(e["epoch"], e["height"]) for e in faults.cluster.find_all("applied") if e["count"]}
    # in the third epoch two trainers of three may go in the same round, which then may be void (C4)
    assert len(applied) >= EPOCHS * ROUNDS - 1, "at most one round came to nothing"


def test_no_dead_trainer_stays_as_a_zombie(faults: Faults) -> None:
    states = [state for found in faults.children.values() for state in found]
    assert len(states) > len(CLIENTS), "looked at while the clients were running"
    assert "Z" not in states, faults.children
