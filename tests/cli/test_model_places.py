"""Models are looked at, fetched and uploaded by address, as people do it: `psyche model inspect | pull | push`."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import trio
from kits.commands import call, refuse
from kits.models import write_header, write_model_folder
from kits.storage.hub import TOKEN, HubDouble, open_hub_double
from kits.storage.servers import put_objects, serve_buckets

from psyche.cli.helpers.models import pull_of_run
from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.core.state.state import Checkpoint, CheckpointKind, Coordinator, Mark
from psyche.errors import StorageError
from psyche.modeling.first_weights import compute_first_digest, read_stored_tensors, read_values
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.snapshot import assemble_snapshot, get_file_entries
from psyche.storage.port import StorageOptions
from psyche.testing.builders import build_model
from psyche.wire.crypto import blob_id_of

LARGE = 100_000  # tokens: 26 MB of weights


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[HubDouble]:
    async with open_hub_double() as hub:
        for name, value in {"HF_ENDPOINT": hub.address, "ALLOW_PRIVATE_HOSTS": "1", "HF_TOKEN": TOKEN}.items():
            monkeypatch.setenv(name, value)
        yield hub


@pytest.fixture(scope="module")
def buckets() -> Generator[str]:
    with serve_buckets() as server:
        put_objects(server, "weights", {})
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with values, a card, and what does not belong to it."""
    folder = write_model_folder(tmp_path / "model", num_hidden_layers=2)
    path = folder / "model.safetensors"
    first = min(tensor.offset for tensor in read_stored_tensors(FolderFiles(folder)).values())
    values = np.random.default_rng(1).standard_normal((path.stat().st_size - first) // 4, "<f4")
    path.write_bytes(path.read_bytes()[:first] + values.tobytes())
    (folder / "README.md").write_text("# Mine")
    (folder / "run.py").write_text("evil")
    return folder


async def do(function: Callable[..., Any], *words: object) -> str:
    """Run a command beside the places that this process serves; return what it prints."""
    return str((await trio.to_thread.run_sync(partial(function, "model", *words))).output)


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def add(hub: HubDouble, folder: Path, name: str = "owner/name") -> None:
    hub.add(name, {path.name: path.read_bytes() for path in folder.iterdir()})


async def test_a_model_is_described_by_its_headers_alone(hub: HubDouble, tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model", num_hidden_layers=2, vocab_size=LARGE)
    add(hub, folder)
    (here, there) = [await do(call, "inspect", place) for place in (folder, "owner/name")]
    assert hub.served_bytes < (1 << 20)
    assert here.partition("\n")[2] == there.partition("\n")[2]
    assert "llama, 6,417,568 parameters, 25.7 MB" in there
    assert re.search(r"^model\.layers\.\*\.mlp\.up_proj\.weight +2 +48 x 32 +F32$", there, re.MULTILINE)
    assert "devices of one client divide 99.7 % among 2, 99.7 % among 4, 99.7 % among 8 (compression_chunk 64)" in there
    assert "a run can begin with it" in there


async def test_with_its_values_read_a_model_shows_the_digest_of_a_run_s_first_weights(model: Path) -> None:
    wanted = compute_first_digest(FolderFiles(model), is_exact=True).hex()
    assert f"digest: {wanted}" in await do(call, "inspect", model, "--digest")
    found = json.loads(await do(call, "inspect", model, "--digest", "--json"))
    assert found["digest"] == wanted
    assert all(len(tensor["blob_id"]) == 64 for tensor in found["tensors"])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "no .safetensors file; other formats"),
        (lambda f: (f / "config.json").write_text('{"architectures": []}'), "model_type"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: os.truncate(f / "model.safetensors", 5_000), "cut off"),
    ],
    ids=["pickle", "no architecture", "no config", "cut"],
)
async def test_what_a_run_would_refuse_is_said(model: Path, spoil: Callable[[Path], object], reason: str) -> None:
    spoil(model)
    said = await do(call, "inspect", model)
    assert "a run refuses it: " in said
    assert reason in said


async def test_a_snapshot_of_a_client_is_no_model_to_look_at_or_upload(hub: HubDouble, tmp_path: Path) -> None:
    parts = {blob_id_of(raw): tmp_path / name for name, raw in {"a": bytes(24), "config.json": b"{}"}.items()}
    for path, raw in zip(parts.values(), (bytes(24), b"{}"), strict=True):
        path.write_bytes(raw)
    manifest = encode_manifest(
        [TensorEntry("a", (2, 3), blob_id_of(bytes(24)))], get_file_entries({"config.json": b"{}"})
    )
    assemble_snapshot(
        tmp_path / "one", manifest=manifest, parts=parts, epoch=0, step=1, data_index=0, chain=bytes(32),
        digest=bytes(32),
    )  # fmt: skip
    for words in (("inspect", tmp_path / "one"), ("push", tmp_path / "one", "owner/new")):
        assert "is a snapshot, from which a client goes on" in await do(refuse, *words)
    assert not hub.repos


async def test_a_pulled_model_is_that_of_the_place_without_what_does_not_belong_to_it(
    hub: HubDouble, model: Path, tmp_path: Path
) -> None:
    add(hub, model)
    said = await do(call, "pull", "owner/name", tmp_path / "copy")
    assert said == f"{tmp_path / 'copy'}: from hf://owner/name\n"
    assert read(tmp_path / "copy") == {name: raw for name, raw in read(model).items() if name != "run.py"}
    assert "is not empty" in await do(refuse, "pull", "owner/name", tmp_path / "copy")
    assert "not there" in await do(refuse, "pull", "owner/other", tmp_path / "other")
    assert "is no address" in await do(refuse, "pull", "ftp://owner/name", tmp_path / "other")
    assert not (tmp_path / "other").exists()


async def test_after_ctrl_c_a_pull_goes_on_where_it_was(hub: HubDouble, tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model", vocab_size=LARGE)
    add(hub, folder)
    command = [sys.executable, "-m", "psyche", "model", "pull", "owner/name", str(tmp_path / "copy")]
    process = await trio.lowlevel.open_process(command, stderr=subprocess.DEVNULL)

    def interrupt() -> None:
        if hub.served_bytes > (17 << 20):  # the first 8 MiB are kept, and more are on their way
            process.send_signal(signal.SIGINT)

    hub.on_served = interrupt
    assert await process.wait() == 130
    assert not (tmp_path / "copy").exists()
    hub.on_served, hub.served_bytes = lambda: None, 0
    await do(call, "pull", "owner/name", tmp_path / "copy")
    assert hub.served_bytes <= (folder / "model.safetensors").stat().st_size - (8 << 20) + (1 << 20)
    assert read(tmp_path / "copy") == read(folder)
    assert not list(tmp_path.glob(".copy*"))


async def test_a_pull_of_other_bytes_than_the_hub_s_hash_says_is_refused(
    hub: HubDouble, model: Path, tmp_path: Path
) -> None:
    add(hub, model)
    (tree,) = hub.repos["models/owner/name"].commits.values()
    tree["model.safetensors"].sha256 = "0" * 64
    assert "has other bytes than its hash says" in await do(refuse, "pull", "owner/name", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def build_record(source: Checkpoint, digest: bytes) -> Coordinator:
    state = Coordinator(run_id="run", model=build_model(checkpoint=source))
    state.certified = state.checkpoint = Mark(digest=digest)
    return state


async def test_of_a_run_only_the_weights_on_record_are_pulled(hub: HubDouble, model: Path, tmp_path: Path) -> None:
    add(hub, model)
    options = StorageOptions(allow_private_hosts=True, hub_endpoint=hub.address)
    hub_place = Checkpoint(CheckpointKind.HUB, "owner/name")
    right = compute_first_digest(FolderFiles(model), is_exact=True)

    async def pull(source: Checkpoint, digest: bytes, name: str) -> str:
        state, ignored = build_record(source, digest), lambda *_: None
        return await trio.to_thread.run_sync(pull_of_run, state, tmp_path / name, options, ignored, ignored)

    assert await pull(hub_place, right, "copy") == "hf://owner/name"
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    with pytest.raises(StorageError, match=r"owner/name: gives .*, the record asks for 0101"):
        await pull(hub_place, b"\1" * 32, "wrong")
    with pytest.raises(StorageError, match="no repository or bucket on record gives"):
        await pull(Checkpoint(CheckpointKind.LOCAL, "model"), right, "wrong")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "model"]


@pytest.mark.whole
async def test_a_pushed_model_is_one_commit_and_a_branch_for_people(
    hub: HubDouble, model: Path, tmp_path: Path
) -> None:
    (model / "README.md").unlink()
    said = await do(call, "push", model, "owner/new", "--upload-dtype", "bfloat16")
    repo = hub.repos["models/owner/new"]
    assert f"hf://owner/new@{repo.refs['main']}\nhf://owner/new@{repo.refs['bfloat16']}\n" in said
    assert "note: run.py: not uploaded" in said
    exact = {name: blob.raw for name, blob in repo.commits[repo.refs["main"]].items()}
    assert exact.pop("README.md").startswith(b"---")
    assert exact == {name: (model / name).read_bytes() for name in ("config.json", "model.safetensors")}
    await do(call, "pull", "owner/new@bfloat16", tmp_path / "rounded")
    files, rounded = FolderFiles(model), FolderFiles(tmp_path / "rounded")
    for name, tensor in read_stored_tensors(rounded).items():
        assert tensor.dtype == "BF16"
        wanted = np.frombuffer(b"".join(read_values(files, name, read_stored_tensors(files)[name])), "<f4")
        found = np.frombuffer(b"".join(read_values(rounded, name, tensor)), "<f4")
        assert np.allclose(found, wanted, rtol=2**-8, atol=0)
    sent = [one.path for one in hub.asked if one.method == "PUT"]
    await do(call, "push", model, "owner/new")
    assert [one.path for one in hub.asked if one.method == "PUT"] == sent, "what the Hub has is not sent twice"
    assert not list(tmp_path.glob(".rounded*"))


@pytest.mark.whole
async def test_a_private_model_never_comes_to_a_repository_that_is_public(
    hub: HubDouble, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await do(call, "push", model, "owner/new", "--private", "--upload-dtype", "bfloat16")
    assert hub.repos["models/owner/new"].is_private
    public = hub.add("owner/open", {})
    assert "it is there already, and public" in await do(refuse, "push", model, "owner/open", "--private")
    assert len(public.commits) == 1
    await do(call, "pull", "owner/new", tmp_path / "copy")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "401" in await do(refuse, "pull", "owner/new", tmp_path / "other")


async def test_a_model_pushed_to_a_bucket_is_listed_last_and_replaces_nothing(
    buckets: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", buckets)
    monkeypatch.setenv("ALLOW_PRIVATE_HOSTS", "1")
    for _ in range(2):
        assert "gs://weights/mine\n" in await do(call, "push", model, "gs://weights/mine")
    objects = f"{buckets}/storage/v1/b/weights/o"
    listed = httpx2.get(f"{objects}/mine%2Fmanifest.json?alt=media", trust_env=False).json()["files"]
    assert [one["filename"] for one in listed] == ["README.md", "config.json", "model.safetensors"]
    await do(call, "pull", "gs://weights/mine", tmp_path / "copy")
    assert read(tmp_path / "copy") == {name: raw for name, raw in read(model).items() if name != "run.py"}
    write_header(model / "model.safetensors", json.loads((model / "config.json").read_text()))
    assert "other bytes are there, which are not replaced" in await do(refuse, "push", model, "gs://weights/mine")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("none", "owner/name"), "there is no such folder"),
        ((".", "owner/name"), "set HF_TOKEN"),
        ((".", f"owner/name@{'a' * 40}", "--hf-token", "t"), "is a commit"),
        ((".", "gs://bucket"), "name a folder of the bucket"),
        ((".", "gs://bucket/folder", "--private"), "leave --private out"),
        ((".", "gs://bucket/folder", "--upload-dtype", "bfloat16"), "a bucket has no branches"),
        ((".", "gs://bucket/folder"), "no config.json|model.safetensors.index.json"),
    ],
)
async def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(
    words: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    said = await do(refuse, "push", *words)
    assert any(part in said for part in reason.split("|")), said
