"""A server that may open few files: connections take none of those that its journal needs."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from kits.cluster import Cluster, open_cluster
from kits.run_files import MakeRun

from psyche.testing.builders import build_identity

pytestmark = pytest.mark.e2e
FILES = 64
STANDING = 200


def limit_files(cluster: Cluster, number: int) -> None:
    cluster._prefix["server"] = ["/bin/bash", "-c", f'ulimit -n {number}; exec "$@"', "bash"]


@pytest.mark.whole
async def test_connections_that_only_stand_take_no_file_from_the_journal(make_run: MakeRun, tmp_path: Path) -> None:
    async with open_cluster(tmp_path / "cluster", make_run()) as cluster:
        limit_files(cluster, FILES)
        await cluster.start(clients=0)
        (listening,) = cluster.find("server", "server_listening")
        with ExitStack() as stack:
            for port in (listening["port"], listening["data_port"]):
                for _ in range(STANDING):
                    stack.enter_context(socket.create_connection((cluster.address_of("server"), port)))
            key = build_identity(9).public.hex()
            place = ("--server-addr", cluster.server_address, "--state-dir", str(cluster.data_dir("server")))
            assert "1 key" in await cluster.run_command("run", "allow", key, *place)
            assert cluster.child("server").is_running()
        log = cluster.child("server").output.read_text()
        assert f"this process may open only {FILES} files, so each service has" in log
        assert "Traceback" not in log
        assert "Too many open files" not in log


@pytest.mark.whole
async def test_a_server_that_could_serve_nobody_says_what_it_lacks(make_run: MakeRun, tmp_path: Path) -> None:
    async with open_cluster(tmp_path / "cluster", make_run()) as cluster:
        limit_files(cluster, 40)
        cluster.start_server().is_ending = True
        assert await cluster.until_ended("server") == [1]
        assert "server: this process may open only 40 files; allow more" in cluster.child("server").output.read_text()
