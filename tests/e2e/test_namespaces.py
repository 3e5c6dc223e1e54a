"""Server and clients each on a machine of its own: a network namespace each, on lines with delay and loss.

Their loopback interfaces stay down, so that nothing can go another way. Needs root and iproute2.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.namespaces import Line, Namespaces, NoNamespaces, open_namespaces
from kits.run_files import MakeRun

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

HOME = Line(delay_s=0.02, loss=0.005)
NODES = {"server": Line(), "client-1": HOME, "client-2": HOME, "client-3": HOME}
SEND = (
    "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind((sys.argv[1], 0)); print('up', flush=True)"
)
SEND += "; [s.sendto(b'%d' % n, (sys.argv[2], 4000)) for n in range(300)]"
RECEIVE = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind((sys.argv[1], 4000)); s.settimeout(3)"
RECEIVE += """
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 20)  # SO_RCVBUFFORCE: by default 256 packets fill it
print('up', flush=True)
sys.stdin.readline()
got = []
try:
    while True:
        got.append(int(s.recv(64)))
except TimeoutError:
    print(*got)
"""


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    try:
        with open_namespaces(NODES) as made:
            yield made
    except NoNamespaces as error:
        pytest.skip(f"this machine has no network namespaces: {error}")


def start(namespaces: Namespaces, node: str, program: str, *to: str) -> "subprocess.Popen[str]":
    command = [*namespaces.prefix[node], sys.executable, "-c", program, namespaces.addresses[node], *to]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_packets_keep_their_order_and_some_are_lost(namespaces: Namespaces) -> None:
    """Two lines of 0.5 % each: of 300 packets none is lost in one of twenty runs, and all but never more than 15.

    The receiver reads only when all were sent, as one does that gets no processor.
    """
    with start(namespaces, "client-2", RECEIVE) as receiver:
        with start(namespaces, "client-1", SEND, namespaces.addresses["client-2"]) as sender:
            assert sender.wait(60) == 0
        got = [int(word) for word in receiver.communicate("read\n", timeout=60)[0].split()]
    assert got == sorted(set(got))
    assert 285 <= len(got) <= 300


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
