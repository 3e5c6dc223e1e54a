"""Repositories of the Hub, on a double that `huggingface_hub` itself takes for the Hub."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from kits.clocks import SteadyClock
from kits.storage.faults import FAULTS, STALLING, open_way
from kits.storage.hub import TOKEN, Answer, HubDouble, open_hub_double
from kits.storage.servers import CONTENT, OPTIONS

from psyche.errors import StorageError, StorageRefused
from psyche.storage.hub import HubStorage, open_hub

FILES = {**CONTENT, "config.json": b'{"x": 1}', "a b%20#?.txt": b"odd"}  # a.bin and deep/b.bin are large: LFS
REPO = "owner/name"


@pytest.fixture
async def hub() -> AsyncGenerator[HubDouble]:
    async with open_hub_double() as hub:
        yield hub


def open_repo(hub: HubDouble, revision: str | None = None, token: str | None = None, kind: str = "model") -> HubStorage:
    options = replace(OPTIONS, hub_endpoint=hub.address, hub_token=token)
    return open_hub(REPO, revision, options, kind="dataset" if kind == "dataset" else "model")


@pytest.mark.parametrize("kind", ["model", "dataset"])
async def test_a_repository_is_listed_and_read_at_its_commit(hub: HubDouble, kind: str) -> None:
    repo = hub.add(REPO, FILES, kind=kind)
    first = repo.refs["main"]
    hub.page = 2
    storage = open_repo(hub, kind=kind)
    files = await storage.list_files()
    assert storage.revision == first
    assert storage.address == f"hf://{'datasets/' if kind == 'dataset' else ''}{REPO}@{first}"
    assert [(file.name, file.size_bytes) for file in files] == sorted((name, len(raw)) for name, raw in FILES.items())
    repo.commit({})  # refs move
    for file in files:
        assert await storage.read(file, 0, file.size_bytes) == FILES[file.name]
    await storage.aclose()


async def test_a_commit_needs_no_question_for_what_it_is(hub: HubDouble) -> None:
    commit = hub.add(REPO, FILES).refs["main"]
    storage = open_repo(hub, commit)
    (file, *_) = await storage.list_files()
    await storage.read(file, 0, 3)
    assert [call.path for call in hub.asked] == [
        f"/api/models/{REPO}/tree/{commit}", f"/{REPO}/resolve/{commit}/a%20b%2520%23%3F.txt",
    ]  # fmt: skip
    await storage.aclose()


async def test_a_private_repository_needs_the_token_which_no_other_host_gets(hub: HubDouble) -> None:
    hub.add(REPO, FILES, is_private=True)
    anonymous = open_repo(hub)
    with pytest.raises(StorageRefused, match=rf"^hf://{REPO}@main: not allowed \(HTTP 401\)"):
        await anonymous.list_files()
    storage = open_repo(hub, token=TOKEN)
    file = next(file for file in await storage.list_files() if file.name == "a.bin")
    hub.asked.clear()
    assert await storage.read(file, 5, 50) == FILES["a.bin"][5:50]
    assert [(call.path.split("/")[1], call.token) for call in hub.asked] == [("owner", TOKEN), ("objects", "")]
    assert hub.asked[1].headers["host"].startswith("localhost:")
    await anonymous.aclose()
    await storage.aclose()


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for fault in FAULTS if fault not in STALLING for name in ("a.bin", "config.json")],
)
async def test_after_a_fault_the_right_bytes_are_read(
    hub: HubDouble, quick_clock: SteadyClock, name: str, fault: str
) -> None:
    hub.add(REPO, FILES)
    async with open_way(hub.address) as way:
        hub.address = way.address
        storage = open_repo(hub)
        file = next(file for file in await storage.list_files() if file.name == name)
        way.spoil(fault, 2, only="/resolve/" if name != "a.bin" or fault == "other_version" else "/objects/")
        assert await storage.read(file, 1, file.size_bytes) == FILES[name][1:]
        assert way.count == 0
        await storage.aclose()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b'{"a": 1}', {}),
        (b"[" * 100_000, {}),
        (b'[{"type": "file", "path": "../x", "size": 1}]', {}),
        (b'[{"type": "file", "path": "x", "size": "1"}]', {}),
        (b'[{"type": "file", "path": "x", "size": -1}]', {}),
        (b"[]", {"link": '<http://127.0.0.2:1/next>; rel="next"'}),
        (b"[]", {"link": '<file:///etc/passwd>; rel="next"'}),
    ],
    ids=["no JSON", "no list", "too deep", "a path out", "size is a text", "size below 0", "another host", "no https"],
)  # fmt: skip
async def test_a_listing_of_another_form_is_an_error(
    body: bytes, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubDouble, "_tree", lambda *_, **__: Answer(200, body, headers))
    async with open_hub_double() as hub:
        hub.add(REPO, FILES)
        storage = open_repo(hub, token=TOKEN)
        with pytest.raises(StorageError, match=f"^hf://{REPO}@"):
            await storage.list_files()
        await storage.aclose()


@pytest.mark.parametrize("repo_id", ["", "a/b/c", "../x", "a/..", "a b", "a/b\n", "ä/b", "a" * 97])
def test_what_is_no_name_of_a_repository_is_refused(repo_id: str) -> None:
    with pytest.raises(StorageRefused, match="is no name of a repository"):
        open_hub(repo_id, None, OPTIONS)


@pytest.mark.parametrize("revision", ["a\nb", "x" * 201, "a/../b"], ids=["a line", "too long", "a path"])
def test_what_is_no_revision_is_refused(revision: str) -> None:
    with pytest.raises(StorageRefused, match="is no name of a revision"):
        open_hub(REPO, revision, OPTIONS)


CLIENT = """
import json, sys
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from pathlib import Path

api, repo, folder = HfApi(), "owner/fresh", Path(sys.argv[1])
def add(name, raw): return CommitOperationAdd(name, raw)
found = {"url": str(api.create_repo(repo)), "again": str(api.create_repo(repo, exist_ok=True))}
old = api.repo_info(repo).sha
files = [add("big.bin", b"x" * 50_000), add("README.md", b"---\\n---\\nhi")]
first = api.create_commit(repo, files, commit_message="1")
try:
    api.create_commit(repo, [add("lost.txt", b"1")], commit_message="2", parent_commit=old)
except HfHubHTTPError as error:
    found["stale"] = error.response.status_code
api.create_branch(repo, branch="bf16", revision=first.oid)
api.create_commit(repo, [add("only.txt", b"1")], commit_message="3", revision="bf16", parent_commit=first.oid)
api.delete_file("README.md", repo)
found["main"] = sorted(file.path for file in api.list_repo_tree(repo, recursive=True) if hasattr(file, "size"))
found["paths"] = [file.size for file in api.get_paths_info(repo, ["big.bin", "none"])]
found["downloaded"] = sorted(p.name for p in Path(snapshot_download(repo, revision="bf16", local_dir=folder)).iterdir())
found["big"] = Path(hf_hub_download(repo, "big.bin", revision=first.oid)).stat().st_size
print(json.dumps(found | {"first": first.oid}))
"""


async def test_huggingface_hub_takes_the_double_for_the_hub(hub: HubDouble, tmp_path: Path) -> None:
    variables = {
        "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", CLIENT, str(tmp_path / "got")]
    done = await trio.run_process(command, env=os.environ | variables, capture_stdout=True)
    found = json.loads(done.stdout)
    assert found["url"] == found["again"] == f"{hub.address}/owner/fresh"
    assert found["stale"] == 412
    assert (found["main"], found["paths"], found["big"]) == (["big.bin"], [50_000], 50_000)
    assert {"README.md", "big.bin", "only.txt"} <= set(found["downloaded"])
    storage = open_hub("owner/fresh", found["first"], replace(OPTIONS, hub_endpoint=hub.address))
    assert [file.name for file in await storage.list_files()] == ["README.md", "big.bin"]
    await storage.aclose()
