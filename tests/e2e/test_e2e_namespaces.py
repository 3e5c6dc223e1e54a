"""Server and clients each on a machine of its own, as far as the kernel can pretend: a network namespace each.

The namespaces hang on a bridge and have addresses in 10/8; their loopback interfaces stay down, so
that nothing can go another way. Needs root and iproute2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

import pytest
import trio
from e2e_kit import Cluster, MakeRun, open_cluster

pytestmark = pytest.mark.e2e

NAMES = ("server", "client-1", "client-2", "client-3")


@dataclass
class Namespaces:
    """Namespace and address by node."""

    program: str
    names: dict[str, str]
    addresses: dict[str, str]

    @property
    def prefix(self) -> dict[str, list[str]]:
        """What is put before a node's command line."""
        return {node: [self.program, "netns", "exec", name] for node, name in self.names.items()}


def run_ip(program: str, *arguments: str) -> None:
    subprocess.run([program, *arguments], check=True, capture_output=True, text=True, timeout=60)


@contextmanager
def open_namespaces(program: str) -> Iterator[Namespaces]:
    """Four namespaces on a bridge; gone when the block ends.

    Raises:
        subprocess.CalledProcessError: the machine does not allow it.
    """
    tag = f"{SystemRandom().randrange(16**5):05x}"
    bridge, network = f"psy{tag}", f"10.{83 + os.getpid() % 100}.{SystemRandom().randrange(256)}"
    names = {node: f"psy-{tag}-{node}" for node in NAMES}
    addresses = {node: f"{network}.{number}" for number, node in enumerate(NAMES, 1)}
    made: list[str] = []
    try:
        run_ip(program, "link", "add", bridge, "type", "bridge")
        run_ip(program, "link", "set", bridge, "up")
        for number, node in enumerate(NAMES):
            run_ip(program, "netns", "add", names[node])
            made.append(names[node])
            outer, inside = f"{bridge}{number}", ["-n", names[node]]
            run_ip(program, "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", names[node])
            run_ip(program, "link", "set", outer, "master", bridge, "up")
            run_ip(program, *inside, "addr", "add", f"{addresses[node]}/24", "dev", "eth0")
            run_ip(program, *inside, "link", "set", "eth0", "up")
        yield Namespaces(program, names, addresses)
    finally:
        for name in made:
            subprocess.run([program, "netns", "del", name], check=False, capture_output=True, timeout=60)
        subprocess.run([program, "link", "del", bridge], check=False, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    program = shutil.which("ip")
    if program is None:
        pytest.skip("iproute2 is not installed: there is no `ip` to make network namespaces with")
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    try:
        with open_namespaces(program) as made:
            yield made
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine forbids network namespaces: {' '.join(error.cmd)}: {error.stderr.strip()}")


async def run(folder: Path, config: Path, namespaces: Namespaces) -> tuple[Cluster, list[int]]:
    async with open_cluster(folder, config, prefix=namespaces.prefix, addresses=namespaces.addresses) as cluster:
        await cluster.start(clients=3)
        codes = await cluster.until_ended(*cluster.clients)
        cluster.interrupt("server")
        codes += await cluster.until_ended("server")
        await cluster.assert_all_gone()
    return cluster, codes


def test_a_run_over_addresses_that_are_not_loopback_ends_with_equal_weights(
    make_run: MakeRun, namespaces: Namespaces, tmp_path: Path
) -> None:
    config = make_run(host=namespaces.addresses["server"], total_steps=5, rounds_per_epoch=4)
    cluster, codes = trio.run(run, tmp_path, config, namespaces)
    assert codes == [0] * 4, cluster.describe()
    cluster.assert_equal_weights()
    (listening,) = cluster.find("server", "server_listening")
    assert listening["host"] == namespaces.addresses["server"]
    for name in cluster.clients:
        sent = [event["bytes_sent"] for event in cluster.find(name, "network")]
        assert max(sent) > 0, "payloads went from namespace to namespace"
        applied = [e for e in cluster.find(name, "applied") if e["count"]]
        assert len(applied) == 4
