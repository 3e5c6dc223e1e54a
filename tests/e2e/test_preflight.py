"""A client that never can take part ends with exit code 1 and its reason, before any join of it is on record."""

import json
import re
import shutil
from pathlib import Path

import pytest
from kits.cluster import open_cluster
from kits.commands import call
from kits.models import write_model_folder
from kits.run_files import MakeRun
from kits.tier import few

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
    named = [
        ("client-1", (["--local-root", str(tmp_path / "root")], "AR7: max_position_embeddings is 16, below")),
        ("client-2", (["--device", "cuda:99"], "device 'cuda:99': this machine has")),
    ]
    cases = dict(few(named))
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        await cluster.start(clients=0)
        for name, (options, _) in cases.items():
            cluster._start(name, [*cluster._client_argv(name), *options], {}).is_ending = True
        assert await cluster.until_ended(*cases) == [1] * len(cases)
        for name, (_, reason) in cases.items():
            (event,) = cluster.find(name, "cannot_take_part")
            assert reason in event["reason"]
            assert f"error: {event['reason']}" in "\n".join(cluster.child(name).get_last_lines(5))
            assert not cluster.find(name, "joined")
        status = await cluster.run_command("run", "info", "--server-addr", cluster.server_address, "--json")
        found = json.loads(status[status.index("{") :])
        assert (found["run_state"], found["epoch"], found["waiting"]) == ("waiting_for_members", 0, 0)
        assert not cluster.find("server", "state_changed")


@pytest.mark.whole
async def test_a_client_with_other_data_than_the_record_s_is_refused_by_the_file_s_name_and_the_others_train(
    make_run: MakeRun, tmp_path: Path
) -> None:
    config = make_run(init_min_clients=2, total_steps=4)
    run = config / "run.toml"
    run.write_text(re.sub(r'Server = "[^"]*"', 'Local = "data.toml"', run.read_text()))
    call("data", "manifest", config, "--hash")
    other = tmp_path / "other"
    shutil.copytree(config, other)
    tokens = bytearray((other / "data" / "tokens.bin").read_bytes())
    tokens[-2] ^= 1
    (other / "data" / "tokens.bin").write_bytes(tokens)
    async with open_cluster(tmp_path / "cluster", config) as cluster:
        cluster.local_roots["client-1"] = other
        await cluster.start(clients=1)
        cluster.nodes["client-1"].is_ending = True
        assert await cluster.until_ended("client-1") == [1]
        (event,) = cluster.find("client-1", "cannot_take_part")
        assert "the data files are not those of the run (config.data_root" in event["reason"]
        assert "tokens.bin has other bytes in its MiB 0; take the run's own files" in event["reason"]
        assert not cluster.find("client-1", "joined")
        for number in (2, 3):
            cluster.start_client(number)
        assert await cluster.until_ended("client-2", "client-3") == [0, 0]
        assert all(cluster.find(name, "trained") for name in ("client-2", "client-3"))
