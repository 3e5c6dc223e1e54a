"""A client that never can take part ends with exit code 1 and its reason, before any join of it is on record."""

import json
from pathlib import Path

import pytest
from kits.cluster import open_cluster
from kits.models import write_model_folder
from kits.run_files import MakeRun

pytestmark = pytest.mark.e2e


async def test_nobody_waits_for_a_client_that_never_can_take_part(make_run: MakeRun, tmp_path: Path) -> None:
    """The server lacks the model, so that the record does not say which one it is (S11)."""
    config = make_run(init_min_clients=1)
    (config / "model").unlink()
    write_model_folder(
        tmp_path / "root" / "model",
        vocab_size=256,
        max_position_embeddings=16,
        rope_scaling={"rope_type": "dynamic", "factor": 2.0},
    )
    cases = {
        "client-1": (["--local-root", str(tmp_path / "root")], "AR7: max_position_embeddings is 16, below"),
        "client-2": (["--device", "cuda:99"], "device 'cuda:99': this machine has"),
    }
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        await cluster.start(clients=0)
        for name, (options, _) in cases.items():
            cluster._start(name, [*cluster._client_argv(name), *options], {}).is_ending = True
        assert await cluster.until_ended(*cases) == [1, 1]
        for name, (_, reason) in cases.items():
            (event,) = cluster.find(name, "cannot_take_part")
            assert reason in event["reason"]
            assert f"error: {event['reason']}" in "\n".join(cluster.child(name).get_last_lines(5))
            assert not cluster.find(name, "joined")
        status = await cluster.run_command("run", "info", "--server-addr", cluster.server_address, "--json")
        found = json.loads(status[status.index("{") :])
        assert (found["run_state"], found["epoch"], found["waiting"]) == ("waiting_for_members", 0, 0)
        assert not cluster.find("server", "state_changed")
