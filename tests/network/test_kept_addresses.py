"""Address records on disk: who starts again finds its peers although nobody tells it where they are (N5)."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from network_kit import PLAN, RUN, until_met

from psyche.core.state.limits import MAX_ADDRESSES, MAX_CLIENTS
from psyche.network.addresses.kept import FILE_NAME, MAX_FILE_BYTES, KeptAddresses
from psyche.network.base import BaseNode
from psyche.network.limits import NetworkLimits
from psyche.network.node import open_node
from psyche.testing.builders import build_identity
from psyche.testnet.free_port import choose_port
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.peer_address import PeerAddress

QUICK = NetworkLimits(hello_s=5.0, redial_first_s=0.2, redial_longest_s=1.0, wanted_after_s=0.1)
SOON = 4_000_000_000
ADDRESS = "/ip4/10.0.0.1/tcp/4001"


def build_record(number: int, expires_unix: int = SOON, count: int = 1) -> AddressRecord:
    return sign_address_record(build_identity(number), [ADDRESS] * count, expires_unix)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "network" / FILE_NAME


# --- the file


@given(st.sets(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, MAX_ADDRESSES), st.integers(1, 1 << 62))
def test_what_is_kept_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], count: int, expires: int
) -> None:
    file = tmp_path_factory.mktemp("kept") / FILE_NAME
    records = {build_record(number, expires, count) for number in numbers}
    KeptAddresses(file).save(tuple(records))
    assert set(KeptAddresses(file).load()) == records


def test_without_a_file_nothing_is_known_and_nothing_is_said(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert KeptAddresses(file).load() == ()
    assert not caplog.records


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (b"", "truncated"),
        (b"\xff" * 40, "invalid|malformed|MessagePack|Expected"),
        (msgspec.msgpack.encode([2, []]), "Invalid enum value 2"),
        (msgspec.msgpack.encode([1, [build_record(1)] * (MAX_CLIENTS + 1)]), "Expected `array` of length <= 256"),
        (bytes(MAX_FILE_BYTES + 1), f"more than {MAX_FILE_BYTES:,} bytes"),
        (b"\x93\x01\x90" + b"\x91" * 100_000, "recursion|truncated"),
    ],
    ids=["empty", "no msgpack", "another version", "too many records", "too large", "deeply nested"],
)
def test_a_damaged_file_is_named_with_the_rule_and_costs_nothing_else(
    file: Path, caplog: pytest.LogCaptureFixture, raw: bytes, rule: str
) -> None:
    file.parent.mkdir()
    file.write_bytes(raw)
    kept = KeptAddresses(file)
    assert kept.load() == ()
    (said,) = caplog.records
    assert str(file) in said.getMessage()
    assert any(part in said.getMessage() for part in rule.split("|")), said.getMessage()
    kept.save([build_record(1)])
    assert kept.load() == (build_record(1),)


def test_a_forged_record_is_left_out_and_the_others_stay(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    forged = replace(build_record(1), addresses=("/ip4/6.6.6.6/tcp/1",))
    KeptAddresses(file).save([forged, build_record(2)])
    assert KeptAddresses(file).load() == (build_record(2),)
    assert "signature" in caplog.text
    assert forged.p2p.hex()[:16] in caplog.text


def test_of_too_many_records_the_newest_are_kept(file: Path) -> None:
    records = [build_record(number, SOON + number) for number in range(MAX_CLIENTS + 3)]
    KeptAddresses(file).save(records)
    assert set(KeptAddresses(file).load()) == set(records[3:])
    assert file.stat().st_size <= MAX_FILE_BYTES


def test_what_has_not_changed_is_not_written_again_nor_replaced_by_nothing(file: Path) -> None:
    kept = KeptAddresses(file)
    kept.save([build_record(1), build_record(2)])
    kept.save([])
    assert set(kept.load()) == {build_record(1), build_record(2)}
    file.unlink()
    kept.save([build_record(2), build_record(1)])
    assert not file.exists()


def test_a_disk_that_refuses_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "network").write_text("a file where a folder belongs")
    kept = KeptAddresses(tmp_path / "network" / FILE_NAME)
    for number in (1, 2):
        kept.save([build_record(number)])
    (said,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "not kept for the next start" in said.getMessage()


# --- the node


def allow(*nodes: BaseNode) -> None:
    for node in nodes:
        node.set_plan(RUN, PLAN)
        node.set_allowed(frozenset(one.key for one in nodes))


@asynccontextmanager
async def open_pair(folder: Path, port: int) -> AsyncIterator[tuple[BaseNode, BaseNode]]:
    async with (
        open_node(build_identity(2), "127.0.0.1", port, folder / "peer", limits=QUICK) as peer,
        open_node(build_identity(1), "127.0.0.1", 0, folder / "node", limits=QUICK) as node,
    ):
        allow(node, peer)
        yield node, peer


async def test_a_node_that_starts_again_finds_a_peer_that_nobody_names(tmp_path: Path) -> None:
    """On a chain nobody keeps a book, and the bootstrap node may be away for good."""
    port = choose_port()
    async with open_pair(tmp_path, port) as (node, peer):
        node.set_bootstrap([PeerAddress(peer.key, peer.address_record().addresses[0])])
        await until_met(node, peer)
    (tmp_path / "peer" / FILE_NAME).unlink()  # so that it does not dial
    async with open_pair(tmp_path, port) as (node, peer):
        await until_met(node, peer)


async def test_a_kept_address_is_dialed_only_while_its_key_has_a_place(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    async with open_node(build_identity(2), "127.0.0.1", 0, tmp_path / "peer", limits=QUICK) as peer:
        KeptAddresses(folder / FILE_NAME).save([peer.address_record()])
        async with open_node(build_identity(1), "127.0.0.1", 0, folder, limits=QUICK) as node:
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset({node.key}))
            await trio.sleep(0.5)
            assert node.peers.get(peer.key) is None
            assert node.peers.get_known() == ()
            allow(node, peer)
            await until_met(node, peer)


async def test_a_newer_record_takes_the_place_of_a_kept_one(tmp_path: Path) -> None:
    folder, soon = tmp_path / "node", 3_600
    async with open_node(build_identity(2), "127.0.0.1", 0, tmp_path / "peer", limits=QUICK) as peer:
        old = replace(peer.address_record(), addresses=(ADDRESS,))
        now = old.expires_unix - 24 * 3_600
        KeptAddresses(folder / FILE_NAME).save([build_record(2, now + soon)])
        async with open_node(build_identity(1), "127.0.0.1", 0, folder, limits=QUICK) as node:
            allow(node, peer)
            peer.set_addresses([node.address_record()])
            await until_met(node, peer)
    (kept,) = KeptAddresses(folder / FILE_NAME).load()
    assert kept.addresses == peer.address_record().addresses


async def test_an_expired_record_is_neither_dialed_nor_kept_again(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    KeptAddresses(folder / FILE_NAME).save([build_record(2, 1_000)])
    async with open_node(build_identity(1), "127.0.0.1", 0, folder, limits=QUICK) as node:
        node.set_plan(RUN, PLAN)
        node.set_allowed(frozenset({node.key, build_identity(2).public}))
        await trio.sleep(0.5)
        assert node.peers.get_known() == ()
        assert not node.peers.dialer.get(build_identity(2).public)
