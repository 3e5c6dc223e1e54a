"""One run of three real clients: the server is killed in the middle of a round, later the owner pauses and resumes.

Only one client has the model folder from the start.

The run is made once; each test asks one thing of it.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, find_overlong_waits, open_cluster
from kits.run_files import MakeRun

from psyche.backends.tcp.dial import parse_server
from psyche.backends.tcp.owner import TcpAdministration
from psyche.core.state.messages import Pause
from psyche.modeling.snapshot import list_snapshots
from psyche.wire.key_file import read_key_file

pytestmark = pytest.mark.e2e

CLIENTS = ("client-1", "client-2", "client-3")


@dataclass
class Story:
    """The run after its end, and when what was done to it."""

    cluster: Cluster
    killed_at: float = 0.0
    paused_at: float = 0.0
    resumed_at: float = 0.0
    codes: list[int] | None = None
    server_code: int | None = None


async def tell(folder: Path, config: Path) -> Story:
    async with open_cluster(folder, config) as cluster:
        story = Story(cluster)
        cluster.local_roots = {"client-2": folder, "client-3": folder}
        await cluster.start(clients=3)
        await cluster.until_round(epoch=1, height=1)
        story.killed_at = cluster.kill("server")
        await cluster.until_ended("server")
        cluster.start_server()
        await cluster.until("the server to recover", lambda: cluster.find("server", "server_recovered"))
        await cluster.until_round(epoch=2, height=1)
        story.paused_at = time.time()
        key = read_key_file(cluster.data_dir("server") / "server.key")
        await TcpAdministration(parse_server(cluster.server_address), key).command(Pause())
        paused = await cluster.until_state("paused")
        await cluster.until("all clients to see it", lambda: len(cluster.find_all("wait_started", paused["t"])) >= 3)
        story.resumed_at = time.time()
        await cluster.run_command(
            "run", "resume", "--server-addr", cluster.server_address, "--state-dir", cluster.data_dir("server")
        )
        story.codes = await cluster.until_ended(*CLIENTS)
        cluster.interrupt("server")
        (story.server_code,) = await cluster.until_ended("server")
        await cluster.assert_all_gone()
    return story


@pytest.fixture(scope="module")
def story(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Story:
    config = make_run(total_steps=20, rounds_per_epoch=6)
    return trio.run(tell, tmp_path_factory.mktemp("story"), config)


def test_everybody_leaves_with_exit_code_0(story: Story) -> None:
    assert story.codes == [0, 0, 0], story.cluster.describe()
    assert story.server_code == 0


def test_all_clients_hold_bit_identical_weights_at_the_end(story: Story) -> None:
    digest = story.cluster.assert_equal_weights(*CLIENTS)
    last = {story.cluster.find(name, "applied")[-1]["digest"] for name in CLIENTS}
    assert last == {digest}


def test_clients_without_the_model_folder_got_the_first_weights_from_the_one_that_has_it(story: Story) -> None:
    """S11: the server has put the folder's digest on record."""
    sources = [story.cluster.find(name, "model_loaded")[0]["source"] for name in CLIENTS]
    assert sources == ["configured source", "peers", "peers"]
    digests = {story.cluster.find(name, "warmup_ready")[0]["digest"] for name in CLIENTS}
    assert len(digests) == 1


def test_every_step_is_trained_and_applied_once_by_all_alike(story: Story) -> None:
    steps = [e["step"] for e in story.cluster.find("client-1", "round_started") if not e["drain"]]
    assert steps == list(range(1, 20)), story.cluster.describe()
    applied = [story.cluster.find(name, "applied") for name in CLIENTS]
    sets = [[(e["epoch"], e["height"], tuple(e["members"])) for e in events] for events in applied]
    assert sets[0] == sets[1] == sets[2]
    assert len([members for _, _, members in sets[0] if members]) == 19, "no round came to nothing"
    assert len({(epoch, height) for epoch, height, _ in sets[0]}) == len(sets[0])


def test_no_epoch_is_lost_when_the_server_is_killed_in_the_middle_of_a_round(story: Story) -> None:
    (recovered,) = story.cluster.find("server", "server_recovered")
    assert recovered["run_state"] in ("round_train", "round_witness")
    assert not story.cluster.find_all("rollback")
    assert not story.cluster.find_all("epoch_failed")
    assert not [name for name in CLIENTS if story.cluster.find(name, "dropped")]


def test_clients_of_a_killed_server_stay_members_of_their_epoch(story: Story) -> None:
    """M9: a lost connection of a living process is no restart."""
    for name in CLIENTS:
        assert story.cluster.find(name, "backend_lost", story.killed_at), "it noticed"
        assert len(story.cluster.find(name, "member")) == 4, "once in each epoch"
        assert len(story.cluster.find(name, "client_started")) == 1


def test_a_paused_run_ends_its_epoch_first(story: Story) -> None:
    states = [(e["was"], e["run_state"]) for e in story.cluster.find("server", "state_changed", story.paused_at)]
    paused = [pair for pair in states if pair[1] == "paused"]
    assert paused == [("cooldown", "paused")]
    rounds = story.cluster.find("server", "state_changed", run_state="round_train", epoch=2)
    assert len(rounds) < 8, "it drains at once instead of training all six rounds"


def test_the_digest_at_resume_is_the_digest_at_pause(story: Story) -> None:
    for name in CLIENTS:
        before = [e["digest"] for e in story.cluster.find(name, "applied") if e["t"] < story.resumed_at]
        ready = story.cluster.find(name, "warmup_ready", story.resumed_at)
        assert ready[0]["digest"] == before[-1]


def test_no_wait_is_longer_than_its_named_deadline(story: Story) -> None:
    events = [event for name in CLIENTS for event in story.cluster.nodes[name].events]
    assert len([event for event in events if event["kind"] == "wait_ended"]) > 50
    assert not find_overlong_waits(events)


def test_the_checkpoint_loads_with_plain_transformers_and_its_tokenizer_decodes(story: Story) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = Path(story.cluster.find("client-1", "exported")[-1]["path"])
    model = AutoModelForCausalLM.from_pretrained(export)
    assert str(model.dtype) == "torch.bfloat16"
    assert "| steps | 19 of 19 |" in (export / "README.md").read_text(encoding="utf-8").splitlines()
    tokenizer = AutoTokenizer.from_pretrained(export)
    text = "def größe(self) -> None:\n"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0]) == text
    assert model(input_ids=ids).logits.isfinite().all()
    made = model.generate(ids[:, :8], max_new_tokens=16, do_sample=False)
    assert made.shape[1] > 8
    assert isinstance(tokenizer.decode(made[0]), str)


def test_the_resume_snapshot_of_the_final_weights_is_in_the_data_folder(story: Story) -> None:
    digest = story.cluster.get_final_digests()["client-1"]
    snapshots = list_snapshots(story.cluster.data_dir("client-1") / "resume")
    assert digest in {snapshot.digest.hex() for snapshot in snapshots}
    assert len(snapshots) <= 2, "the certified one and the newest other"
