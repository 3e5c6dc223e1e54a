"""The certified weights on the Hub or in a bucket, and that place on record (S10)."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import trio
from kits.clocks import SteadyClock
from kits.models import write_model_folder
from kits.storage.faults import FAULTS, open_way
from kits.storage.hub import TOKEN, HubDouble, open_hub_double
from kits.storage.servers import OPTIONS, put_objects, serve_buckets
from kits.storage.sign_in import open_sign_in, write_key
from kits.tier import few
from runtime_kit import CHAIN, KEYS, FakeNetwork, Log, Place
from trio.testing import MockClock

from psyche.client.runtime.app import check_client_settings
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.weights import uploading
from psyche.client.runtime.weights.uploading import Uploader
from psyche.core.committee.elections import compute_uploads, order_uploaders
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Client, ClientState, Mark
from psyche.errors import ConfigError, NetworkError, StorageError, StorageRefused
from psyche.modeling.snapshot import SnapshotInfo, get_tensor_bytes, read_snapshot_info
from psyche.storage import bucket_writer
from psyche.telemetry import types
from psyche.wire.crypto import compute_state_digest
from psyche.wire.ports import SyncReply

# Those that an answer to an upload can have: it has no range and no version.
UPLOAD_FAULTS = [one for one in (*FAULTS, "other_bytes") if one not in (
    "whole", "other_version", "other_range", "other_size", "no_range"
)]  # fmt: skip
READ = """
import sys, json
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM
folder = snapshot_download("owner/weights", revision=sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(folder)
print(json.dumps([folder, str(model.dtype), sum(p.numel() for p in model.parameters())]))
"""


@pytest.fixture
def clock() -> MockClock:
    """Jumps only after a real moment of rest: the disk is used through threads, which the clock cannot see."""
    return MockClock()


@pytest.fixture
async def hub() -> AsyncGenerator[HubDouble]:
    async with open_hub_double() as hub:
        yield hub


@pytest.fixture
async def place(hub: HubDouble, tmp_path: Path) -> Place:
    """A member that has trained the weights of a repository, and may write."""
    model = write_model_folder(tmp_path / "model", vocab_size=8_192)
    hub.add("owner/first", {file.name: file.read_bytes() for file in model.iterdir()})
    place = Place(tmp_path / "client", storage=replace(OPTIONS, hub_endpoint=hub.address, hub_token=TOKEN))
    place.state.model.checkpoint = Checkpoint(CheckpointKind.HUB, "owner/first")
    return place


async def certify(place: Place) -> SnapshotInfo:
    """A snapshot that an epoch has certified: with a chain digest, unlike those that a run begins with."""
    info = read_snapshot_info((await place.fetch(None)).path)
    info = replace(info, chain=CHAIN, digest=compute_state_digest(CHAIN, info.weight_root), step=41)
    place.state.certified = Mark(digest=info.digest)
    return info


def make_uploader(place: Place, **changes: Any) -> Uploader:
    settings = ClientSettings(
        run_id="run", data_dir=place.root, storage=place.storage, **{"hub_repo": "owner/weights", **changes}
    )
    return Uploader(settings, place.network, lambda: place.state, place.log.emit)  # type: ignore[arg-type]


async def test_what_was_uploaded_is_loaded_from_the_record_alone(place: Place, tmp_path: Path) -> None:
    info = await certify(place)
    found = await make_uploader(place).upload(info, 2.5)
    assert found is not None
    assert (found.kind, found.name) == (CheckpointKind.HUB, "owner/weights")
    reader = Place(tmp_path / "reader", storage=replace(place.storage, hub_token=None))
    reader.state.model.checkpoint, reader.state.checkpoint = found, Mark(digest=info.digest)
    source = await reader.fetch(info.digest)
    read = read_snapshot_info(source.path)
    assert (read.digest, read.chain, read.manifest) == (info.digest, CHAIN, info.manifest)


@pytest.mark.whole
@pytest.mark.parametrize("is_known", [True, False], ids=["on record", "not on record"])
async def test_another_run_begins_with_what_was_uploaded(place: Place, tmp_path: Path, is_known: bool) -> None:
    """S11: as first weights they begin a chain of their own, as its owner's side computes their digest."""
    info = await certify(place)
    found = await make_uploader(place).upload(info, None)
    assert found is not None
    reader = Place(tmp_path / "reader", storage=place.storage)
    reader.state.model.checkpoint = found
    first = compute_state_digest(ZERO32, info.weight_root)
    source = await reader.fetch(first if is_known else None)
    assert read_snapshot_info(source.path).digest == first


@pytest.mark.whole
async def test_huggingface_hub_and_transformers_read_what_was_uploaded(
    place: Place, hub: HubDouble, tmp_path: Path
) -> None:
    info = await certify(place)
    uploader = make_uploader(place, upload_dtype="bfloat16")
    found = await uploader.upload(info, 2.5)
    assert found is not None
    await uploader.upload_for_people(info, 2.5)
    assert not (place.root / "uploads").exists(), "what was uploaded is not kept twice"
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    read: dict[str, list[Any]] = {}
    for revision in (str(found.revision), "bfloat16"):
        command = [sys.executable, "-c", READ, revision]
        done = await trio.to_thread.run_sync(
            partial(subprocess.run, command, env=environment, capture_output=True, check=False)
        )
        assert done.returncode == 0, done.stderr.decode()
        read[revision] = json.loads(done.stdout)
    exact, rounded = read.values()
    assert (exact[1], rounded[1]) == ("torch.float32", "torch.bfloat16")
    assert exact[2] == rounded[2] == sum(blob.size_bytes for blob in info.blobs[: len(info.entries)]) // 4
    card = (Path(exact[0]) / "README.md").read_text()
    assert "| loss | 2.5000" in card
    assert info.digest.hex() in card


@pytest.mark.whole
async def test_an_upload_is_repeated_without_effect_and_replaces_other_weights(place: Place, hub: HubDouble) -> None:
    """A restart goes on with it: what the Hub has is not sent again."""
    hub.add("owner/weights", {"model-00001-of-00002.safetensors": b"old", "LICENSE": b"theirs"})
    info = await certify(place)
    first = await make_uploader(place).upload(info, None)
    sent = [call.path for call in hub.asked if call.path.startswith("/upload/")]
    assert await make_uploader(place).upload(info, None) == first
    assert [call.path for call in hub.asked if call.path.startswith("/upload/")] == sent
    tree = hub.repos["models/owner/weights"].commits[str(first and first.revision)]
    assert sorted(tree) == ["LICENSE", "README.md", "config.json", "model.safetensors"]


@pytest.mark.whole
async def test_a_commit_in_between_is_built_upon(place: Place, hub: HubDouble) -> None:
    repo = hub.add("owner/weights", {"LICENSE": b"theirs"})
    info = await certify(place)
    raced: list[str] = []

    def race() -> None:
        if hub.asked[-1].path.endswith("/preupload/main") and not raced:
            raced.append(repo.commit(dict(repo.commits[repo.refs["main"]])))

    hub.on_served = race
    found = await make_uploader(place).upload(info, None)
    assert found is not None
    assert raced
    commits = [json.loads(call.body.splitlines()[0])["value"] for call in hub.asked if "/commit/" in call.path]
    assert commits[-1]["parentCommit"] == raced[0]


async def test_a_token_that_may_not_write_ends_it_and_is_told_nowhere(place: Place) -> None:
    info = await certify(place)
    place.storage = replace(place.storage, hub_token="hf_another")
    with pytest.raises(StorageRefused, match=r"hf://owner/weights: cannot be uploaded: HTTP 401") as caught:
        await make_uploader(place).upload(info, None)
    assert "hf_another" not in str(caught.value)


@pytest.mark.parametrize("end", ["other weights are certified", "others have named a place"])
async def test_an_upload_ends_when_it_is_not_needed_any_more(
    place: Place, end: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    info = await certify(place)

    async def push(*_order: object, **_more: object) -> str:
        if end == "other weights are certified":
            place.state.certified = Mark(digest=CHAIN)
        else:
            place.state.checkpoint = Mark(digest=info.digest)
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(uploading, "push_to_hub", push)
    assert await make_uploader(place).upload(info, None) is None


@pytest.fixture(scope="module")
def buckets() -> Generator[str]:
    with serve_buckets() as server:
        put_objects(server, "weights", {})
        yield server


def list_bucket(server: str) -> dict[str, tuple[str, bytes]]:
    """The objects of the bucket by name: generation and content."""
    objects = f"{server}/storage/v1/b/weights/o"
    found = httpx2.get(objects, trust_env=False).json().get("items", [])
    return {
        one["name"]: (one["generation"], httpx2.get(f"{objects}/{quote(one['name'], safe='')}?alt=media").content)
        for one in found
    }


@pytest.fixture
async def in_bucket(place: Place, buckets: str) -> Place:
    place.storage = replace(place.storage, google_endpoint=buckets)
    return place


@pytest.mark.parametrize("chunk_bytes", [8 << 20, 256 << 10], ids=["at once", "in parts"])
async def test_a_bucket_gets_each_set_once_and_its_list_last(
    in_bucket: Place, buckets: str, tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_writer, "CHUNK_BYTES", chunk_bytes)
    info = await certify(in_bucket)
    options = {"hub_repo": "", "gcs_bucket": "weights", "gcs_prefix": f"of-{chunk_bytes}"}
    assert (256 << 10) < info.blobs[0].size_bytes < (8 << 20)
    found = await make_uploader(in_bucket, **options).upload(info, None)
    folder = f"of-{chunk_bytes}/step-{info.step:010d}-{info.digest.hex()[:8]}"
    assert found == Checkpoint(CheckpointKind.GCS, "weights", folder)
    objects = {name: one for name, one in list_bucket(buckets).items() if name.startswith(folder)}
    listed = json.loads(objects[f"{folder}/manifest.json"][1])["files"]
    assert {f"{folder}/{one['filename']}": str(one["generation"]) for one in listed} == {
        name: generation for name, (generation, _) in objects.items() if not name.endswith("/manifest.json")
    }
    assert await make_uploader(in_bucket, **options).upload(info, 2.5) == found, "another member, or after a restart"
    assert {name: one for name, one in list_bucket(buckets).items() if name.startswith(folder)} == objects
    reader = Place(tmp_path / "reader", storage=replace(in_bucket.storage, hub_token=None))
    assert found is not None
    reader.state.model.checkpoint, reader.state.checkpoint = found, Mark(digest=info.digest)
    read = read_snapshot_info((await reader.fetch(info.digest)).path)
    assert (read.digest, read.chain, read.manifest) == (info.digest, CHAIN, info.manifest)


async def test_weights_that_somebody_has_changed_in_the_bucket_are_not_named(in_bucket: Place, buckets: str) -> None:
    info = await certify(in_bucket)
    name = f"changed/step-{info.step:010d}-{info.digest.hex()[:8]}/model.safetensors"
    put_objects(buckets, "weights", {name: b"others"})
    with pytest.raises(StorageRefused, match=r"model\.safetensors: other bytes are there"):
        await make_uploader(in_bucket, hub_repo="", gcs_bucket="weights", gcs_prefix="changed").upload(info, None)


@pytest.mark.whole
async def test_old_sets_go_from_the_bucket_but_for_those_on_record(in_bucket: Place, buckets: str) -> None:
    info = await certify(in_bucket)
    sets = [f"kept/step-{step:010d}-0000000{step}" for step in range(1, 5)]
    put_objects(buckets, "weights", {f"{one}/model.safetensors": b"x" for one in sets} | {"kept/mine/notes": b"x"})
    in_bucket.state.model.checkpoint = Checkpoint(CheckpointKind.GCS, "weights", sets[0])
    options = {"hub_repo": "", "gcs_bucket": "weights", "gcs_prefix": "kept", "keep_steps": 2}
    await make_uploader(in_bucket, delete_old_steps=False, **options).upload_for_people(info, None)
    assert sum(name.startswith("kept/") for name in list_bucket(buckets)) == 5
    await make_uploader(in_bucket, **options).upload_for_people(info, None)
    left = {name.rpartition("/")[0] for name in list_bucket(buckets) if name.startswith("kept/")}
    assert left == {sets[0], sets[2], sets[3], "kept/mine"}


@pytest.mark.parametrize(
    "killed_after", few([0.5, None, 0.0, 0.85], 2), ids=few(["under way", "not", "at once", "before it is named"], 2)
)
async def test_where_an_uploader_is_killed_the_next_has_a_place_within_twice_its_time(
    place: Place, killed_after: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock
) -> None:
    """S10: the first begins, the next after its time; a place on record ends it for the rest."""
    info = await certify(place)
    expected_s = uploading.LEAST_EXPECTED_S + sum(map(get_tensor_bytes, info.entries)) / uploading.FIRST_PACE
    place.state.clients = [Client(state=ClientState.HEALTHY, p2p=key) for key in KEYS[:4]]
    pushes: list[float] = []

    async def push(*_order: object, **_more: object) -> str:
        pushes.append(trio.current_time() - began)
        await trio.sleep(0.9 * expected_s)
        return "c" * 40

    async def share(key: bytes, scope: trio.CancelScope) -> None:
        network = FakeNetwork(key=key, answers={k: lambda _: SyncReply(found=True) for k in KEYS[:4] if k != key})
        settings = ClientSettings(run_id="run", data_dir=tmp_path / key.hex(), hub_repo="owner/weights")
        uploader = Uploader(settings, network, lambda: place.state, place.log.emit)  # type: ignore[arg-type]
        with scope:
            if await uploader.upload(info, None) is not None:
                place.state.checkpoint = replace(place.state.certified, uploader=0)
                named.append(trio.current_time() - began)

    monkeypatch.setattr(uploading, "push_to_hub", push)
    named: list[float] = []
    order = order_uploaders(KEYS[:4], info.digest)
    scopes = {key: trio.CancelScope() for key in order}  # pyright: ignore[reportCallIssue]
    clock.autojump_threshold = 0.05
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for key, scope in scopes.items():
            nursery.start_soon(share, key, scope)
        if killed_after is not None:
            await trio.sleep(killed_after * expected_s)
            next(iter(scopes.values())).cancel()
    assert len(named) == 1
    assert named[0] < (expected_s if killed_after is None else 2 * expected_s)
    assert sum(at < expected_s for at in pushes) <= 1, "nobody begins before it is their turn"
    assert len(pushes) <= (1 if killed_after is None else 2), "the rest begin nothing"


def test_enough_uploads_are_a_third_of_those_that_can() -> None:
    assert [compute_uploads(n) for n in (1, 3, 5, 6, 47, 48, 256)] == [1, 1, 1, 2, 15, 16, 16]


async def test_a_hub_that_is_away_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    info = await certify(place)
    monkeypatch.setattr(uploading, "LEAST_EXPECTED_S", 0.0)

    async def push(*_order: object, **_more: object) -> str:
        if len(place.log.told) < 2:
            raise StorageError("hf://owner/weights: cannot be uploaded: ConnectError")
        return "c" * 40

    monkeypatch.setattr(uploading, "push_to_hub", push)
    found = await make_uploader(place).upload(info, None)
    assert found == Checkpoint(CheckpointKind.HUB, "owner/weights", "c" * 40)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hub_repo": "no name"}, "--hub-repo 'no name': is no name"),
        ({"hub_repo": f"owner/{'n' * 64}"}, "more than 64 bytes"),
        ({"share_checkpoints": True}, "names one place"),
        ({"gcs_bucket": "weights"}, "names one place"),
        ({"hub_repo": "", "gcs_bucket": "No"}, "--gcs-bucket 'No'"),
        ({"hub_repo": "", "gcs_bucket": "weights", "gcs_prefix": "p" * 40}, "more than 64 bytes"),
        ({"hub_repo": "", "gcs_bucket": "weights", "upload_dtype": "bfloat16"}, "no branches"),
        ({"storage": OPTIONS}, "HF_TOKEN"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_at_the_start(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    values: dict[str, Any] = {"hub_repo": "owner/weights", "storage": replace(OPTIONS, hub_token=TOKEN)}
    check_client_settings(ClientSettings(run_id="run", data_dir=tmp_path, **values))
    with pytest.raises(ConfigError, match=reason):
        check_client_settings(ClientSettings(run_id="run", data_dir=tmp_path, **(values | changes)))


@pytest.fixture
def quick_clock() -> SteadyClock:
    """Sockets and processes are real, so the clock does not jump; waits are short all the same."""
    return SteadyClock(rate=20.0)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["hub", "bucket"])
@pytest.mark.parametrize("fault", few(UPLOAD_FAULTS))
async def test_where_the_way_fails_the_reason_is_told_and_the_next_member_takes_over(
    place: Place, hub: HubDouble, buckets: str, fault: str, kind: str, tmp_path: Path, quick_clock: SteadyClock
) -> None:
    """S10: one place on record ends it for both."""
    info = await certify(place)
    members = KEYS[:2]
    place.state.clients = [Client(state=ClientState.HEALTHY, p2p=key) for key in members]
    first, second = order_uploaders(members, info.digest)
    named: list[bytes] = []
    told = {key: Log() for key in members}
    async with open_way(hub.address if kind == "hub" else buckets) as way:
        way.spoil(fault)

        async def share(key: bytes) -> None:
            address = way.address if key == first else (hub.address if kind == "hub" else buckets)
            endpoint: dict[str, Any] = {f"{'hub' if kind == 'hub' else 'google'}_endpoint": address}
            where: dict[str, Any] = (
                {"hub_repo": f"owner/{key.hex()[:8]}"} if kind == "hub" else {"gcs_bucket": "weights"}
            )
            settings = ClientSettings(
                run_id=f"of-{fault}-{key.hex()[:8]}", data_dir=tmp_path / key.hex(),
                storage=replace(place.storage, **endpoint), **where,
            )  # fmt: skip
            network = FakeNetwork(key=key, answers={k: lambda _: SyncReply(found=True) for k in members if k != key})
            uploader = Uploader(settings, network, lambda: place.state, told[key].emit)  # type: ignore[arg-type]
            if await uploader.upload(info, None) is not None:
                named.append(key)
                place.state.checkpoint = replace(place.state.certified, uploader=0)

        async with trio.open_nursery() as nursery:
            for key in members:
                nursery.start_soon(share, key)
        assert way.asked
    assert named == [second]
    reasons = [event.message for event in told[first].told if isinstance(event, types.Error)]
    assert reasons
    assert all(reason.startswith(("hf://owner/", "gs://weights/", "upload: ")) for reason in reasons)


async def test_a_service_account_uploads_to_a_private_bucket_of_which_others_read_nothing(
    in_bucket: Place, buckets: str, tmp_path: Path
) -> None:
    info = await certify(in_bucket)
    async with open_sign_in() as sign_in, open_way(buckets) as way:
        way.token = "token-1"
        private = replace(in_bucket.storage, google_endpoint=way.address)
        key = write_key(tmp_path / "key.json", token_uri=sign_in.address)
        in_bucket.storage = replace(private, google_credentials=key)
        options = {"hub_repo": "", "gcs_bucket": "weights", "gcs_prefix": "private"}
        found = await make_uploader(in_bucket, **options).upload(info, None)
        assert found is not None
        assert sign_in.claims[0]["scope"] == "https://www.googleapis.com/auth/devstorage.read_write"
        stranger = Place(tmp_path / "stranger", storage=private)
        stranger.state.model.checkpoint, stranger.state.checkpoint = found, Mark(digest=info.digest)
        with pytest.raises(NetworkError, match="not allowed"):
            await stranger.fetch(info.digest)
        way.token = "token-2"  # of the next sign-in
        reader = Place(tmp_path / "reader", storage=in_bucket.storage)
        reader.state = stranger.state
        assert read_snapshot_info((await reader.fetch(info.digest)).path).manifest == info.manifest
