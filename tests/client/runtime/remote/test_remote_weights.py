"""Weights of repositories on record: the digest decides, peers stand in, a killed fetch goes on (S9 to S11, F14)."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from kits.clocks import SteadyClock
from kits.models import write_model_folder
from kits.storage.counting import open_counting_way
from kits.storage.faults import FAULTS, open_way
from kits.storage.hub import HubDouble, open_hub_double
from kits.storage.servers import OPTIONS
from kits.tier import few
from runtime_kit import KEYS, Place, answer_with

from psyche.client.runtime.weights.serving import Offer
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Mark
from psyche.errors import NetworkError
from psyche.modeling.first_weights import WEIGHTS_NAME, compute_first_digest, read_stored_tensors
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.snapshot import read_snapshot_info
from psyche.telemetry.types import WeightSource
from psyche.wire.crypto import BLOB_CHUNK_BYTES


@pytest.fixture
async def hub() -> AsyncGenerator[HubDouble]:
    async with open_hub_double() as hub:
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model_folder(tmp_path / "model")


@pytest.fixture
def place(hub: HubDouble, model: Path, tmp_path: Path) -> Place:
    hub.add("owner/name", {file.name: file.read_bytes() for file in model.iterdir()})
    place = Place(tmp_path / "client", storage=replace(OPTIONS, hub_endpoint=hub.address))
    place.state.model.checkpoint = Checkpoint(CheckpointKind.HUB, "owner/name")
    return place


@pytest.fixture
def quick_clock() -> SteadyClock:
    return SteadyClock(rate=40.0)


def get_digest(model: Path) -> bytes:
    return compute_first_digest(FolderFiles(model), is_exact=True)


@pytest.mark.parametrize("is_known", [True, False], ids=["on record", "not on record"])
async def test_first_weights_come_from_the_repository_where_no_peer_has_them(
    place: Place, model: Path, is_known: bool
) -> None:
    digest = get_digest(model)
    source = await place.fetch(digest if is_known else None)
    info = read_snapshot_info(source.path)
    assert (source.is_snapshot, source.name, info.digest, info.chain) == (True, WeightSource.CONFIGURED, digest, ZERO32)
    assert [path.name for path in place.snapshots.iterdir()] == [source.path.name], "no parts are left"


async def test_a_repository_with_other_weights_than_the_record_s_is_refused(place: Place, model: Path) -> None:
    with pytest.raises(NetworkError, match=r"no peer is connected; hf://owner/name.*the record asks for 01010101"):
        await place.fetch(b"\1" * 32)


async def test_what_the_record_has_left_behind_is_not_read(place: Place, model: Path, hub: HubDouble) -> None:
    place.state.checkpoint = Mark(digest=get_digest(model))
    with pytest.raises(NetworkError, match="no peer is connected"):
        await place.fetch(b"\1" * 32)
    assert not hub.asked


async def share(place: Place) -> bytes:
    """Let a peer have the weights of the repository; their digest."""
    source = await place.fetch(None)
    info = read_snapshot_info(source.path)
    blobs = {blob.blob_id: blob.path.read_bytes() for blob in info.blobs}
    place.network.blobs = blobs
    offer = Offer(manifest=info.manifest, chain=ZERO32, epoch=0, step=0, data_index=0)
    place.network.answers = {KEYS[1]: answer_with(offer)}
    for path in source.path.parent.iterdir():
        path.rename(place.root / path.name)
    return info.digest


@pytest.mark.parametrize("change", ["away", "other values", "other tensors"])
async def test_peers_give_what_the_repository_cannot(
    place: Place, hub: HubDouble, model: Path, tmp_path: Path, change: str
) -> None:
    digest = await share(place)
    other = write_model_folder(tmp_path / "other", **({"intermediate_size": 24} if change == "other tensors" else {}))
    weights = bytearray((other / WEIGHTS_NAME).read_bytes())
    if change == "other values":
        weights[-1] ^= 1
    files = {file.name: file.read_bytes() for file in other.iterdir()} | {WEIGHTS_NAME: bytes(weights)}
    hub.add("owner/name", {} if change == "away" else files)
    source = await place.fetch(digest)
    assert read_snapshot_info(source.path).digest == digest


@pytest.mark.parametrize("fault", few(("other_bytes", *FAULTS)))
async def test_no_fault_before_a_repository_brings_other_weights_and_each_has_its_reason(
    fault: str, place: Place, hub: HubDouble, model: Path, quick_clock: SteadyClock
) -> None:
    """F22: what a client says of a load that failed is this text; once the fault has passed, the load works."""
    digest = get_digest(model)
    async with open_way(hub.address) as way:
        loader = replace(place, storage=replace(OPTIONS, hub_endpoint=way.address)).loader
        # The Hub names the version, and leads to a place for the bytes.
        way.spoil(fault, only="/resolve/" if fault == "other_version" else "/objects/")
        with pytest.raises(NetworkError, match=r"hf://owner/name@\w+(/model.safetensors)?: \w") as caught:
            await loader.fetch(place.state, digest, 1e9)
        assert "signature" not in str(caught.value)
        assert not place.get_digests()
        way.spoil("")
        source = await loader.fetch(place.state, digest, 1e9)
    assert read_snapshot_info(source.path).digest == digest


LARGE = {"hidden_size": 1_024, "vocab_size": 32_768}  # 285 MB


@pytest.mark.parametrize(
    ("sizes", "percent"),
    [
        ({"hidden_size": 256, "vocab_size": 8_192}, 50),
        *(pytest.param(LARGE, percent, marks=pytest.mark.whole) for percent in (1, 50, 99)),
    ],
    ids=["18 MB at 50", "285 MB at 1", "285 MB at 50", "285 MB at 99"],
)
async def test_a_killed_fetch_goes_on_where_it_was(
    place: Place, hub: HubDouble, tmp_path: Path, sizes: dict[str, int], percent: int
) -> None:
    """F14: what has come is not asked for again, but for one MiB in all: buffers on the way to the disk."""
    large = write_model_folder(tmp_path / "large", **sizes)
    hub.add("owner/name", {file.name: file.read_bytes() for file in large.iterdir()})
    size_bytes = (large / WEIGHTS_NAME).stat().st_size
    async with open_counting_way(hub.address) as way:
        place.loader = replace(place, storage=replace(OPTIONS, hub_endpoint=way.address)).loader
        with trio.CancelScope() as scope:  # pyright: ignore[reportCallIssue]
            way.on_sent = lambda: scope.cancel() if way.sent_bytes > size_bytes * percent // 100 else None
            await place.fetch(None)
        assert scope.cancelled_caught
        way.on_sent = lambda: None
        source = await place.fetch(None)
    assert read_snapshot_info(source.path).digest == get_digest(large)
    assert way.sent_bytes < size_bytes + BLOB_CHUNK_BYTES


@pytest.mark.whole
async def test_sixteen_clients_that_join_at_once_ask_the_repository_little(
    hub: HubDouble, model: Path, tmp_path: Path
) -> None:
    """Each asks for the commit and the tree, and then once for each small file, header and piece of a tensor."""
    hub.add("owner/name", {file.name: file.read_bytes() for file in model.iterdir()})
    places = [Place(tmp_path / f"client-{i}", storage=replace(OPTIONS, hub_endpoint=hub.address)) for i in range(16)]
    async with trio.open_nursery() as nursery:
        for place in places:
            place.state.model.checkpoint = Checkpoint(CheckpointKind.HUB, "owner/name")
            nursery.start_soon(place.fetch, get_digest(model))
    assert {digest for place in places for digest in place.get_digests()} == {get_digest(model)}
    ranges = len(read_stored_tensors(FolderFiles(model)))  # each less than a MiB
    asked = [call for call in hub.asked if not call.path.startswith("/objects/")]  # those follow the Hub's answers
    assert len([call for call in asked if call.path.startswith("/api/")]) <= 16 * 3
    assert len(asked) <= 16 * (3 + len([*model.iterdir()]) + ranges)
