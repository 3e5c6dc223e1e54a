"""Members measure a task together while they train: one is killed half-way, or has its model on two devices."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from kits.cluster import Cluster, open_cluster
from kits.run_files import MakeRun
from kits.storage.tasks import make_row, to_parquet, write_data

from psyche.client.runtime.evals.evaluating import SECRET
from psyche.client.runtime.settings import KEY_NAME
from psyche.evals.division import is_repeated
from psyche.modeling.trainer.process import HOST_VARIABLE
from psyche.telemetry.events import Line
from psyche.wire.crypto import blake3_hash
from psyche.wire.key_file import read_key_file

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

DOCUMENTS, BLOCKS, MEMBERS = 640, 20, 4
SURVIVORS = ("client-1", "client-2", "client-3")


def start(cluster: Cluster, data: Path) -> None:
    cluster.start_server()
    for number in range(1, MEMBERS + 1):
        cluster.start_client(
            number, EVAL_TASKS="piqa", EVAL_TASK_DATA=str(data), EVAL_TASK_MAX_DOCS=str(DOCUMENTS),
            PROMPT_TASK="true",
        )  # fmt: skip


def find_final(cluster: Cluster, names: tuple[str, ...], digest: object) -> list[Line]:
    """The final scores on these weights, once all have one: blocks are done only until others are certified."""
    found = [cluster.find(name, "eval_score", final=True, digest=digest) for name in names]
    return [ones[-1] for ones in found] if all(found) else []


def find_secret(cluster: Cluster, name: object) -> bytes:
    return blake3_hash(read_key_file(cluster.data_dir(str(name)) / KEY_NAME).sign(SECRET))


def list_collisions(cluster: Cluster, done: list[Line]) -> list[Line]:
    """Blocks done again by members whose secrets do not draw them."""
    first = {one["block"]: one for one in sorted(done, key=lambda one: -one["t"])}
    again = [one for one in done if one is not first[one["block"]]]
    secrets = {one["node"]: find_secret(cluster, one["node"]) for one in again}

    def is_drawn(one: Line) -> bool:
        digest, task = bytes.fromhex(one["digest"]), bytes.fromhex(cluster.find_all("eval_started")[0]["task_hash"])
        return is_repeated(secrets[one["node"]], digest, task, one["block"])

    return [one for one in again if not is_drawn(one)]


def find_half(cluster: Cluster, since: float) -> list[Line]:
    """What is done since a moment, once it is nearly half of the blocks."""
    done = cluster.find_all("eval_scored", since)
    return done if len({one["block"] for one in done}) >= BLOCKS // 2 - 2 else []


async def test_each_block_is_done_once_but_for_repeats_and_a_dead_members_part_is_taken_over(
    make_run: MakeRun, tmp_path: Path
) -> None:
    config = make_run(rounds_per_epoch=6, total_steps=40, init_min_clients=MEMBERS, cooldown_time=60)
    about = json.loads((config / "model" / "config.json").read_text())
    (config / "model" / "config.json").write_text(json.dumps(about | {"max_position_embeddings": 512}))
    data = write_data(tmp_path / "tasks", DOCUMENTS, words=4)
    everybody = (*SURVIVORS, "client-4")
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        start(cluster, data)
        since = (await cluster.until_state("cooldown", epoch=0))["t"] + 1.0
        digest = (await cluster.until("a block", lambda: cluster.find_all("eval_scored", since)))[0]["digest"]
        scores = await cluster.until("a score of all", lambda: find_final(cluster, everybody, digest))
        assert {(one["digest"], one["documents"], one["value"]) for one in scores} == {
            (digest, DOCUMENTS, scores[0]["value"])
        }
        done = cluster.find_all("eval_scored", digest=digest)
        assert {one["block"] for one in done} == set(range(BLOCKS))
        assert len(list_collisions(cluster, done)) <= 1, "at most where two have met"
        assert max(Counter(one["node"] for one in done).values()) <= len(done) / 3 + 1
        texts = {(one["prompt"], one["text"], one["member"]) for one in cluster.find_all("eval_text", digest=digest)}
        assert len(texts) == 1
        assert len(cluster.find_all("eval_text", digest=digest)) == MEMBERS
        since = (await cluster.until_state("cooldown", epoch=1))["t"] + 1.0
        half = await cluster.until("half of the next blocks", lambda: find_half(cluster, since))
        cluster.kill("client-4")
        later = await cluster.until("a score", lambda: find_final(cluster, SURVIVORS, half[0]["digest"]))
        assert {(one["percent"], one["documents"]) for one in later} == {(100, DOCUMENTS)}
        assert not cluster.find("server", "state_changed", epoch=2), "within the epoch"
        assert not cluster.find_all("eval_disputed")
        assert not cluster.find_all("diverged")


async def test_a_member_on_two_devices_scores_between_the_rounds_and_trains_as_the_others_do(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Its trainer has no copy of the certified weights: it scores while it has them themselves."""
    config = make_run(
        rounds_per_epoch=4, total_steps=9, init_min_clients=2, min_clients=2, cooldown_time=10, max_round_train_time=60
    )
    file = tmp_path / "tasks" / "ybisk" / "piqa" / "plain_text" / "validation" / "0000.parquet"
    file.parent.mkdir(parents=True)  # with more than they can do
    file.write_bytes(to_parquet([make_row("piqa", number, Random(number), 4) for number in range(20_000)]))
    asks = {"EVAL_TASKS": "piqa", "EVAL_TASK_DATA": str(tmp_path / "tasks")}
    async with open_cluster(tmp_path / "cluster", config) as cluster:

        async def until_scored(phase: str, since: float) -> Line:
            return (
                await cluster.until(
                    f"client-1 to score in {phase}", lambda: cluster.find("client-1", "eval_scored", since)
                )
            )[0]

        cluster.start_server()
        cluster.start_client(1, DATA_PARALLELISM="2", **{HOST_VARIABLE: ""}, **asks)
        cluster.start_client(2, **asks)
        cooldown = await cluster.until_state("cooldown", epoch=0)
        first = await until_scored("Cooldown", cooldown["t"])
        cluster.interrupt("client-2")
        waiting = await cluster.until_state("waiting_for_members", epoch=1)
        await until_scored("the wait for members", waiting["t"])
        await cluster.until_ended("client-2")
        cluster.start_client(2, **asks)
        warmup = await cluster.until_state("warmup", epoch=1)
        await until_scored("Warmup", warmup["t"])
        begun = await cluster.until_state("round_train", epoch=1)
        cooldown = await cluster.until_state("cooldown", epoch=1)
        applied = cluster.find("client-1", "applied", begun["t"])[0]["t"]
        scored = cluster.find("client-1", "eval_scored", applied)
        assert {one["digest"] for one in scored} <= {first["digest"]}, cluster.describe()
        assert [one for one in scored if applied + 5 < one["t"] < cooldown["t"]] == []
        assert await cluster.until_ended("client-1", "client-2") == [0, 0], cluster.describe()
        cluster.assert_equal_weights("client-1", "client-2")
        assert len(cluster.find("client-1", "result_sent", begun["t"], epoch=1)) == 4
        for kind in ("diverged", "eval_disputed", "evals_off", "error"):
            assert not cluster.find("client-1", kind), cluster.describe()
