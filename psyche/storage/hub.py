"""Repositories of the Hugging Face Hub: a revision is resolved once, and from then on its commit is read."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import msgspec
import trio

from psyche.errors import StorageError, StorageRefused
from psyche.storage.http import Answer, Headers, HttpStorage, Request
from psyche.storage.hub_child import Order, Report
from psyche.storage.port import HUB, MAX_FILES, StorageOptions, StoredFile
from psyche.wire.nursery import open_plain_nursery

Kind = Literal["model", "dataset"]
_REPO_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NEXT: Final = re.compile(r'<([^>]*)>; *rel="next"')


class _Commit(msgspec.Struct):
    sha: str


class _Lfs(msgspec.Struct):
    oid: str


class _Entry(msgspec.Struct):
    type: str
    path: str
    oid: str = ""
    size: int = 0
    lfs: _Lfs | None = None


def check_repo_id(repo_id: str) -> None:
    if not _REPO_ID.fullmatch(repo_id) or ".." in repo_id:
        raise StorageRefused(f"{repo_id[:100]!a}: is no name of a repository on the Hub, as owner/name is")


class HubStorage(HttpStorage):
    """A repository at a branch, a tag or a commit; None: `main`. `revision` is the commit once the files are listed:
    refs move, the record does not.

    Raises:
        StorageRefused: there can be no such repository or revision.
    """

    def __init__(self, repo_id: str, revision: str | None, options: StorageOptions, *, kind: Kind = "model") -> None:
        revision = revision or "main"
        check_repo_id(repo_id)
        if len(revision) > 200 or not revision.isprintable() or ".." in revision:
            raise StorageRefused(f"{repo_id}: {revision[:100]!a} is no name of a revision")
        self._repo = f"datasets/{repo_id}" if kind == "dataset" else repo_id
        super().__init__(f"hf://{self._repo}@{revision}", options)
        self.revision = revision
        self._endpoint = options.hub_endpoint
        self._api = f"{options.hub_endpoint}/api/{kind}s/{repo_id}"
        self._headers = {"authorization": f"Bearer {options.hub_token}"} if options.hub_token else {}

    async def _list(self) -> list[StoredFile]:
        if not _COMMIT.fullmatch(self.revision):
            url = f"{self._api}/revision/{quote(self.revision, safe='')}"
            commit, _ = await self._http.ask_json(self._request(url), _Commit)
            if not _COMMIT.fullmatch(commit.sha):
                raise StorageError(f"{self.address}: {commit.sha[:100]!a} is no commit")
            self.revision = commit.sha
            self.address = f"hf://{self._repo}@{commit.sha}"
        files: list[StoredFile] = []
        url: str | None = f"{self._api}/tree/{self.revision}?recursive=true"
        while url is not None and len(files) <= MAX_FILES:
            entries, head = await self._http.ask_json(self._request(url), list[_Entry])
            files += (
                StoredFile(entry.path, entry.size, entry.lfs.oid if entry.lfs else entry.oid)
                for entry in entries
                if entry.type == "file"
            )
            url = self._find_next(head)
        return files

    def _request(self, url: str) -> Request:
        return Request(what=self.address, url=url, headers=self._headers)

    def _find_next(self, head: Headers) -> str | None:
        """The address of a listing's next page, which gets the token as well."""
        found = _NEXT.search(head.get("link", ""))
        if found is not None and not found[1].startswith(f"{self._endpoint}/"):
            raise StorageError(f"{self.address}: the listing goes on at another host")
        return found[1] if found else None

    async def _locate(self, file: StoredFile) -> tuple[str, Headers]:
        await self.list_files()  # the commit
        return f"{self._endpoint}/{self._repo}/resolve/{self.revision}/{quote(file.name)}", self._headers

    def _is_version(self, file: StoredFile, answer: Answer) -> bool:
        """Whether the Hub's own answer is of the commit and the object; where it leads to, tags are others."""
        for head in answer.heads:
            if "x-repo-commit" in head:
                tag = head.get("x-linked-etag") or ("" if "location" in head else head.get("etag", ""))
                return head["x-repo-commit"] == self.revision and tag.strip('W/"') in ("", file.version)
        return False


open_hub: Final = HubStorage


async def push_to_hub(
    folder: Path, repo_id: str, options: StorageOptions, *, message: str, branch: str = "main", kind: Kind = "model",
    is_private: bool = False, progress: Callable[[int], None] = lambda _: None,
) -> str:  # fmt: skip
    """Upload a folder as one commit, on top of whatever others commit meanwhile; return it.

    The same files again make no new commit, and large ones that the Hub has are not sent twice. A new repository is
    public unless `is_private`. A cancelled call ends the process that does it, and so does the end of this one.
    `progress` is told the bytes of weights or rows that are there.

    Raises:
        StorageError: it is not there; StorageRefused: and it would not help to try again.
    """
    order = msgspec.json.encode(Order(str(folder), repo_id, branch, message, kind, is_private)) + b"\n"
    environment = {
        **os.environ, "HF_ENDPOINT": options.hub_endpoint, "HF_TOKEN": options.hub_token or "",
        "HF_HUB_DISABLE_PROGRESS_BARS": "0", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    if options.hub_endpoint != HUB:
        environment["HF_HUB_DISABLE_XET"] = "1"  # what a mirror lacks
    start = partial(
        trio.run_process, [sys.executable, "-m", "psyche.storage.hub_child"], env=environment, check=False,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process, which decides
    )  # fmt: skip
    report = Report()
    async with open_plain_nursery() as nursery:
        process: trio.Process = await nursery.start(start)  # pyright: ignore[reportArgumentType] # takes task_status
        assert process.stdin is not None, "asked for above"
        assert process.stdout is not None, "asked for above"
        with suppress(trio.BrokenResourceError):
            await process.stdin.send_all(order)  # and stays open
        async for line in _read_lines(process.stdout):
            report = _read_report(line)
            progress(report.sent_bytes)
        await process.stdin.aclose()
    if not report.commit:
        error = StorageRefused if report.is_final else StorageError
        reason = report.error or f"the upload ended with exit code {process.returncode}"
        raise error(f"hf://{repo_id}: cannot be uploaded: {reason}")
    return report.commit


async def _read_lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    rest = b""
    while part := await stream.receive_some():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line


def _read_report(line: bytes) -> Report:
    try:
        return msgspec.json.decode(line, type=Report)
    except msgspec.MsgspecError:
        return Report()  # what a library has printed
