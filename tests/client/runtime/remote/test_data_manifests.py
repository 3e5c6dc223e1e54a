"""Where a client finds the manifest of the run's data, and what it takes from whom (D1)."""

import struct
from pathlib import Path
from typing import Any

import pytest
from runtime_kit import KEYS, FakeNetwork, NoEngine, answer_with

from psyche.client.runtime.data_manifests import DataManifests
from psyche.client.runtime.weights.serving import Serving
from psyche.core.encoding.data_manifest import MAX_DATA_MANIFEST_BYTES, DataFile, decode_data_manifest
from psyche.core.encoding.data_manifest import encode_data_manifest as encode
from psyche.errors import BackendError, DataError
from psyche.wire.crypto import blob_id_of
from psyche.wire.ports import SyncRequest

RAW = encode(2, [DataFile(f"{number}.bin", "", 6, 0, 3, bytes(32)) for number in range(9)], is_hashed=True)
ROOT = blob_id_of(RAW)
MANIFEST = decode_data_manifest(RAW)


class Server:
    """A backend that gives a manifest in parts."""

    def __init__(self, raw: bytes = b"", *, is_away: bool = False) -> None:
        self.raw, self.is_away, self.asked = raw, is_away, 0

    async def ask_data_manifest(self, start: int) -> tuple[int, bytes]:
        self.asked += 1
        if self.is_away:
            raise BackendError("away")
        return len(self.raw), self.raw[start : start + 100]


class Chain:
    ask_data_manifest = None


def build(tmp_path: Path, backend: Any, network: FakeNetwork | None = None) -> tuple[DataManifests, FakeNetwork]:
    network = network or FakeNetwork()
    return DataManifests(network, backend, tmp_path / "kept", tmp_path / "data.manifest"), network  # type: ignore[arg-type]


def build_peers(*answers: bytes) -> FakeNetwork:
    network = FakeNetwork()
    network.answers = {KEYS[number]: answer_with(raw) for number, raw in enumerate(answers)}
    network.blobs = {ROOT: RAW}
    return network


async def test_it_is_taken_from_the_server_kept_and_offered_to_peers_who_hear_its_size(tmp_path: Path) -> None:
    server = Server(RAW)
    manifests, network = build(tmp_path, server)
    assert await manifests.find(ROOT) == MANIFEST
    assert server.asked == -(-len(RAW) // 100)
    assert network.offered == [ROOT]
    serving = Serving(NoEngine(), network, manifests.measure)  # type: ignore[arg-type]
    reply = await serving.answer(KEYS[0], SyncRequest("data", key=ROOT))
    assert reply.items == (struct.pack("<Q", len(RAW)),)
    assert not (await serving.answer(KEYS[0], SyncRequest("data", key=bytes(32)))).found
    again, other_network = build(tmp_path, Chain())
    assert (await again.find(ROOT), other_network.offered) == (MANIFEST, [ROOT]), "after a restart it is still here"


async def test_it_is_taken_from_peers_before_the_server_is_asked_and_a_lie_about_its_size_brings_nothing(
    tmp_path: Path,
) -> None:
    lies = struct.pack("<Q", MAX_DATA_MANIFEST_BYTES + 1), b"no size"
    server = Server(RAW)
    manifests, network = build(tmp_path, server, build_peers(*lies, struct.pack("<Q", len(RAW))))
    assert await manifests.find(ROOT) == MANIFEST
    assert (server.asked, network.sources) == (0, [KEYS[2]])


@pytest.mark.parametrize(
    "backend",
    [Server(), Server(RAW[:-1] + b"x"), Server(RAW, is_away=True), Chain()],
    ids=["it has none", "other bytes", "away", "a chain"],
)
async def test_who_is_given_no_manifest_or_another_has_none_and_offers_none(tmp_path: Path, backend: Any) -> None:
    manifests, network = build(tmp_path, backend)
    assert await manifests.find(ROOT) is None
    assert (network.offered, manifests.measure(ROOT)) == ([], None)


async def test_the_owner_s_file_below_the_local_root_serves_and_another_one_does_not(tmp_path: Path) -> None:
    manifests, network = build(tmp_path, Chain())
    (tmp_path / "data.manifest").write_bytes(RAW + b"x")
    assert await manifests.find(ROOT) is None
    (tmp_path / "data.manifest").write_bytes(RAW)
    assert await manifests.find(ROOT) == MANIFEST
    assert network.offered == [ROOT]


async def test_an_id_of_what_is_no_manifest_is_an_error_that_says_so(tmp_path: Path) -> None:
    manifests, _ = build(tmp_path, Server(b"what is this"))
    with pytest.raises(DataError, match=r"config.data_root: what has this id is no data manifest"):
        await manifests.find(blob_id_of(b"what is this"))
