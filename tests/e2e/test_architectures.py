"""Whole runs of models of other families: one member is killed and comes back, one joins late, all end alike."""

from pathlib import Path
from typing import Any

import pytest
from kits.cluster import open_cluster
from kits.models import FAMILIES
from kits.run_files import write_model, write_run

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

CLIENTS = ("client-1", "client-2", "client-3")


@pytest.mark.parametrize("family", ["gpt2", "qwen3_moe", "deepseek_v3", "mamba2"])
async def test_three_clients_train_a_model_of_any_family_to_equal_weights(family: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "made", {**FAMILIES[family], "vocab_size": 256})
    config = write_run(tmp_path / "config", model, init_min_clients=2, total_steps=21, rounds_per_epoch=5)
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        await cluster.start(clients=2)
        await cluster.until_round(epoch=0, height=1)
        cluster.start_client(3)
        await cluster.until_round(epoch=1, height=1)
        cluster.kill("client-2")
        await cluster.restart("client-2")
        assert await cluster.until_ended(*CLIENTS) == [0, 0, 0], cluster.describe()
        cluster.interrupt("server")
        await cluster.until_ended("server")
        cluster.assert_equal_weights(*CLIENTS)
        assert cluster.find("server", "state_changed")[-1]["step"] == 21
        assert cluster.find("client-3", "model_loaded"), cluster.describe()
        adapted = {event["change"] for event in cluster.find("client-3", "model_adapted")}
        export = Path(cluster.find("client-1", "exported")[-1]["path"])
    assert bool(adapted) == (family == "gpt2"), adapted
    read_plainly(export)


def read_plainly(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM
    _, report = model.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
