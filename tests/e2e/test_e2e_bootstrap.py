"""Clients that find each other without the server's address book: from one address, and from one another."""

import sys
from pathlib import Path

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.run_files import MakeRun

from psyche.testnet.free_port import choose_port
from psyche.wire.crypto import Identity
from psyche.wire.key_file import read_key_file, write_key_file

pytestmark = pytest.mark.e2e

CLIENTS = ("client-1", "client-2", "client-3")
ENTRY = str(Path(__file__).with_name("bookless_client.py"))


class BooklessCluster(Cluster):
    """No client is shown the server's address book; all but the first are given the address of the first."""

    known_port = 0

    def psyche(self, *arguments: object) -> list[str]:
        if arguments[:2] != ("client", "train"):
            return super().psyche(*arguments)
        own = str(arguments[arguments.index("--node-name") + 1])
        more: tuple[object, ...] = ("--bootstrap", self.get_known_address())
        if own == CLIENTS[0]:
            more = ("--bind-p2p-port", self.known_port)
        return [sys.executable, ENTRY, *map(str, (*arguments, *more))]

    def get_known_address(self) -> str:
        key = read_key_file(self.data_dir(CLIENTS[0]) / "identity.key").public
        return f"/ip4/127.0.0.1/tcp/{self.known_port}/p2p/{key.hex()}"


def test_three_clients_without_an_address_book_train_from_one_bootstrap_address(
    make_run: MakeRun, tmp_path: Path
) -> None:
    async def play() -> None:
        config = make_run(total_steps=6)
        async with open_cluster(tmp_path, config, kind=BooklessCluster) as cluster:
            cluster.known_port = choose_port()
            write_key_file(cluster.data_dir(CLIENTS[0]) / "identity.key", Identity(b"\x51" * 32))
            await cluster.start(clients=3)
            assert await cluster.until_ended(*CLIENTS) == [0, 0, 0], cluster.describe()
            assert_all_met(cluster)
            cluster.assert_equal_weights(*CLIENTS)

    trio.run(play)


def assert_all_met(cluster: Cluster) -> None:
    """Clients 2 and 3 were told of client 1 alone, and trained with one another."""
    for name in CLIENTS:
        assert max(event["peers"] for event in cluster.find(name, "network")) == 2, cluster.describe()
        assert {event["from_member"] for event in cluster.find(name, "payload_received")} | {
            event["index"] for event in cluster.find(name, "member")
        } == {0, 1, 2}
