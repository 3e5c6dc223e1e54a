"""Real runs in which a model is bad: one that a hostile member shows, and the run's own (AR1 to AR7)."""

import shutil
from pathlib import Path

import pytest
from kits.cluster import Cluster, open_cluster
from kits.hostile.lying_client import GATE
from kits.run_files import MakeRun
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

LATE, LIAR, NEWCOMER = NAMES = ("client-1", "client-2", "client-3")
LARGE = 3e38  # a float32, which no sum of such is
ENDLESS_S = 3_600  # a Warmup that anybody waits in outlasts the test


@pytest.mark.parametrize("kind", ["code", "tensors", "values"])
async def test_a_member_that_shows_another_model_is_refused_and_keeps_nobody_from_training(
    kind: str, make_run: MakeRun, tmp_path: Path
) -> None:
    """The right weights come to the newcomer only after the wrong ones."""
    config, gate = make_run(warmup_time=ENDLESS_S), tmp_path / "gate"
    (tmp_path / "nothing").mkdir()
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        cluster.local_roots[NEWCOMER] = tmp_path / "nothing"
        cluster.start_server()
        cluster.start_liar(1, "late", **{GATE: str(gate)})
        cluster.start_liar(2, kind)
        cluster.start_client(3)
        if kind == "values":
            await cluster.until("the newcomer to fetch", lambda: cluster.find(NEWCOMER, "model_fetch"))
        else:
            await cluster.until("a refusal", lambda: cluster.find(NEWCOMER, "source_refused"))
        assert not cluster.find(NEWCOMER, "model_loaded")
        gate.touch()
        assert await cluster.until_ended(*NAMES) == [0, 0, 0], cluster.describe()
        assert [event["source"] for event in cluster.find(NEWCOMER, "model_loaded")] == ["peers"]
        assert cluster.find(NEWCOMER, "result_sent", epoch=0), "in the Warmup of the first epoch"
        assert not cluster.find_all("dropped")
        cluster.assert_equal_weights(*NAMES)
    if kind != "values":
        assert_refused_once(cluster)


def assert_refused_once(cluster: Cluster) -> None:
    (refused,) = cluster.find(NEWCOMER, "source_refused")
    assert refused["peer"] == cluster.find(LIAR, "client_started")[0]["identity"]
    assert refused["reason"] == "showed a manifest that does not give the digest"


async def test_weights_that_fail_the_trial_end_each_client_by_the_rule_and_no_warmup_waits_for_them(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Headers show nothing, nor do the numbers, which are finite; the server has put their digest on record."""
    config = make_run(warmup_time=ENDLESS_S, init_min_clients=2)
    spoil(config / "model", "model.norm.weight")
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        await cluster.start(clients=2)
        for name in cluster.clients:
            cluster.nodes[name].is_ending = True
        assert await cluster.until_ended(*cluster.clients) == [1, 1]
        await cluster.until_state("warmup")
        await cluster.until("the Warmup to end", lambda: has_ended(cluster))
        for name in cluster.clients:
            (ended,) = cluster.find(name, "client_ended")
            assert (ended["code"], ended["cause"]) == (1, "unusable_model")
            assert "AR6: the model gives logits that are NaN or infinite" in ended["reason"]
            assert cluster.find(name, "withdrew", epoch=0)
        assert not cluster.find("server", "state_changed", run_state="round_train")


def spoil(folder: Path, name: str) -> None:
    shared = folder.resolve()
    folder.unlink()
    shutil.copytree(shared, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name][:] = LARGE
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def has_ended(cluster: Cluster) -> bool:
    return cluster.find("server", "state_changed")[-1]["run_state"] != "warmup"
