"""A member names a place for the weights, and then a model lies there that nobody can train (AR1, S10)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.cluster import Cluster, open_cluster
from kits.models import write_model_folder
from kits.run_files import MakeRun
from kits.storage.hub import TOKEN, Blob, HubDouble, Repo, Tree, open_hub_double

from psyche.modeling.first_weights import WEIGHTS_NAME

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

LIAR = "client-3"


def name_code(tree: Tree, _folder: Path) -> None:
    config = json.loads(tree["config.json"].raw) | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    tree["config.json"] = Blob(json.dumps(config).encode(), is_lfs=False)


def swap_model(tree: Tree, folder: Path) -> None:
    for path in folder.iterdir():
        tree[path.name] = Blob(path.read_bytes(), tree[path.name].is_lfs if path.name in tree else False)


def cut_weights(tree: Tree, _folder: Path) -> None:
    weights = tree[WEIGHTS_NAME]
    tree[WEIGHTS_NAME] = Blob(weights.raw[:-1], weights.is_lfs)


class Spoiled(dict[str, Repo]):
    """The repositories of another Hub, each commit's files changed below its id."""

    def __init__(self, hub: HubDouble, spoil: Callable[[Tree, Path], None], folder: Path) -> None:
        super().__init__()
        self._hub, self._spoil, self._folder = hub, spoil, folder

    def get(self, key: str, default: Any = None) -> Any:
        if (repo := self._hub.repos.get(key)) is None:
            return default
        commits = {oid: dict(tree) for oid, tree in repo.commits.items()}
        for tree in commits.values():
            if WEIGHTS_NAME in tree:
                self._spoil(tree, self._folder)
        return Repo(repo.is_private, commits, repo.refs)


def start(cluster: Cluster, number: int, hub: HubDouble, **more: str) -> None:
    cluster.start_client(number, ALLOW_PRIVATE_HOSTS="1", HF_ENDPOINT=hub.address, HF_TOKEN=TOKEN, **more)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(name_code, "AR1"), (swap_model, "the record asks for"), (cut_weights, "cut off")],
    ids=["code of its own", "other tensors", "cut weights"],
)
async def test_a_model_that_nobody_can_train_at_a_member_s_place_keeps_nobody_from_joining(
    spoil: Callable[[Tree, Path], None], reason: str, make_run: MakeRun, tmp_path: Path
) -> None:
    config = make_run(total_steps=30, rounds_per_epoch=5, init_min_clients=3, cooldown_time=60)
    run = config / "run.toml"  # Cooldown waits for the place
    run.write_text(run.read_text().replace("max_seq_len = 32", "max_seq_len = 32\ncooldown_sources = 1"))
    async with (
        open_hub_double() as hub,
        open_hub_double() as liar,
        open_cluster(tmp_path / "cluster", config) as cluster,
    ):
        cluster.start_server()
        start(cluster, 1, hub)
        start(cluster, 2, hub)
        start(cluster, 3, hub, HUB_REPO=f"owner/{LIAR}")
        await cluster.until("a place on record", lambda: cluster.find(LIAR, "checkpoint_shared"))
        write_model_folder(tmp_path / "other", intermediate_size=4_096)
        liar.repos = Spoiled(hub, spoil, tmp_path / "other")
        (tmp_path / "nothing").mkdir()
        cluster.local_roots["client-4"] = tmp_path / "nothing"
        start(cluster, 4, liar)
        await cluster.until("the newcomer to train", lambda: cluster.find("client-4", "trained"))
        names = [f"client-{number}" for number in range(1, 5)]
        assert await cluster.until_ended(*names) == [0, 0, 0, 0]
        assert any(LIAR in call.path for call in liar.asked), "the newcomer looked there"
        assert cluster.find("client-4", "model_loaded")[0]["source"] == "peers"
        assert reason in cluster.find("client-4", "place_failed")[0]["reason"]
        assert not cluster.find_all("dropped"), "nobody's Warmup waited for it"
        cluster.assert_equal_weights(*names)
