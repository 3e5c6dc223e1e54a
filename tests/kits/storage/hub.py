"""A double of the Hugging Face Hub, as far as `huggingface_hub` asks it for repositories, uploads and downloads."""

import base64
import hashlib
import json
import re
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from psyche.wire.web import Message, Receive, Send, serve_app

TOKEN: Final = "hf_writer"
_LFS_BYTES: Final = 10 << 10  # the Hub decides by the name too


class Refusal(Exception):
    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(status)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Call:
    """A request, read."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def origin(self, host: str | None = None) -> str:
        """The address that was asked, also through something in between."""
        name, _, port = self.headers["host"].rpartition(":")
        return f"http://{host or name}:{port}"


@dataclass
class Blob:
    raw: bytes
    is_lfs: bool

    @cached_property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\x00" % len(self.raw) + self.raw).hexdigest()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()

    def describe(self, path: str) -> dict[str, Any]:
        lfs = {"lfs": {"oid": self.sha256, "size": len(self.raw), "pointerSize": 130}} if self.is_lfs else {}
        return {"type": "file", "oid": self.oid, "size": len(self.raw), "path": path, **lfs}


Tree = dict[str, Blob]


@dataclass
class Repo:
    is_private: bool = False
    commits: dict[str, Tree] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)  # branch or tag -> commit

    def commit(self, tree: Tree, branch: str = "main") -> str:
        text = f"{len(self.commits)} {branch} {[(path, blob.oid) for path, blob in sorted(tree.items())]}"
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = tree
        self.refs[branch] = oid
        return oid

    def resolve(self, revision: str) -> str:
        revision = self.refs.get(revision, revision)
        if revision not in self.commits:
            raise Refusal(404, "RevisionNotFound")
        return revision


class HubDouble:
    """The Hub. `asked` has the calls as they came; `page` is how many files a page of a listing has."""

    def __init__(self) -> None:
        self.address = ""
        self.repos: dict[str, Repo] = {}  # "models/owner/name", "datasets/owner/name"
        self.objects: dict[str, bytes] = {}  # uploaded, by SHA-256
        self.asked: list[Call] = []
        self.page = 1_000
        self.served_bytes = 0
        self.on_served: Callable[[], None] = lambda: None  # called after each answer
        api, revision = r"/api/(?P<repo>\w+/[^/]+/[^/]+)", r"(?P<revision>[^/]+)"
        repo = r"/(?P<repo>(?:datasets/)?[^/]+/[^/]+)"
        self._routes: list[tuple[str, re.Pattern[str], Callable[..., Answer]]] = [
            (method, re.compile(pattern), answer)
            for method, pattern, answer in (
                ("POST", r"/api/repos/create", self._create),
                ("POST", r"/api/validate-yaml", lambda call: _make_json({"errors": [], "warnings": []})),
                ("GET", rf"{api}(?:/revision/{revision})?", self._info),
                ("GET", rf"{api}/tree/{revision}", self._tree),
                ("POST", rf"{api}/paths-info/{revision}", self._paths),
                ("POST", rf"{api}/preupload/{revision}", self._preupload),
                ("POST", rf"{api}/commit/{revision}", self._commit),
                ("POST", rf"{api}/branch/(?P<branch>[^/]+)", self._branch),
                ("POST", rf"{repo}\.git/info/lfs/objects/batch", self._batch),
                ("PUT", r"/upload/(?P<oid>\w+)", self._upload),
                ("GET", r"/objects/(?P<oid>\w+)", self._object),
                ("GET", rf"{repo}/resolve/{revision}/(?P<path>.+)", self._resolve),
            )
        ]  # fmt: skip

    def add(self, repo_id: str, files: dict[str, bytes], *, kind: str = "model", is_private: bool = False) -> Repo:
        repo = self.repos[f"{kind}s/{repo_id}"] = Repo(is_private)
        repo.commit({path: Blob(raw, len(raw) > _LFS_BYTES) for path, raw in files.items()})
        return repo

    async def app(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, message = bytearray(), await receive()
        body += message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["raw_path"].decode()
        call = Call(scope["method"], path, parse_qs(scope["query_string"].decode()), headers, bytes(body))
        self.asked.append(call)
        try:
            answer = self._answer(call)
        except Refusal as refusal:
            answer = Answer(refusal.status, b"{}", {"x-error-code": refusal.code} if refusal.code else {})
        length = {} if "content-length" in answer.headers else {"content-length": str(len(answer.body))}
        head = [(name.encode(), value.encode()) for name, value in (answer.headers | length).items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": head})
        await send({"type": "http.response.body", "body": b"" if call.method == "HEAD" else answer.body})
        self.served_bytes += len(answer.body)
        self.on_served()

    def _answer(self, call: Call) -> Answer:
        method = "GET" if call.method == "HEAD" else call.method
        for wanted, pattern, answer in self._routes:
            found = pattern.fullmatch(call.path)
            if found is not None and wanted == method:
                return answer(call, **{name: unquote(part) for name, part in found.groupdict().items() if part})
        raise Refusal(404)

    def _get(self, call: Call, repo: str) -> Repo:
        key = repo if repo.startswith(("models/", "datasets/")) else f"models/{repo}"
        found = self.repos.get(key)
        is_reader = call.method in ("GET", "HEAD") or "/paths-info/" in call.path
        if call.token != TOKEN and (found is None or found.is_private or not is_reader):
            raise Refusal(401, "RepoNotFound")
        if found is None:
            raise Refusal(404, "RepoNotFound")
        return found

    def _create(self, call: Call) -> Answer:
        asked = json.loads(call.body)
        if call.token != TOKEN:
            raise Refusal(401)
        repo_id, kind = f"{asked['organization']}/{asked['name']}", asked.get("type", "model")
        url = f"{call.origin()}/{'datasets/' if kind == 'dataset' else ''}{repo_id}"
        if f"{kind}s/{repo_id}" in self.repos:
            return _make_json({"url": url, "error": "exists"}, 409)
        self.add(repo_id, {}, kind=kind, is_private=bool(asked.get("private") or asked.get("visibility") == "private"))
        return _make_json({"url": url})

    def _info(self, call: Call, repo: str, revision: str = "main") -> Answer:
        found = self._get(call, repo)
        commit = found.resolve(revision)
        siblings = [{"rfilename": path} for path in found.commits[commit]]
        return _make_json(
            {"id": repo.partition("/")[2], "sha": commit, "siblings": siblings, "private": found.is_private}
        )

    def _tree(self, call: Call, repo: str, revision: str) -> Answer:
        found = self._get(call, repo)
        tree = sorted(found.commits[found.resolve(revision)].items())
        start = int(call.query.get("cursor", ["0"])[0])
        entries = [blob.describe(path) for path, blob in tree[start : start + self.page]]
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "deep"}] if start == 0 else []
        following = f"{call.origin()}{call.path}?recursive=true&cursor={start + self.page}"
        more = {"link": f'<{following}>; rel="next"'} if start + self.page < len(tree) else {}
        return _make_json(entries, 200, more)

    def _paths(self, call: Call, repo: str, revision: str) -> Answer:
        found = self._get(call, repo)
        tree = found.commits[found.resolve(revision)]
        wanted = parse_qs(call.body.decode()).get("paths", [])
        return _make_json([tree[path].describe(path) for path in wanted if path in tree])

    def _preupload(self, call: Call, repo: str, revision: str) -> Answer:
        found = self._get(call, repo)
        tree = found.commits[found.resolve(revision)]
        asked = json.loads(call.body)["files"]
        modes = {one["path"]: "lfs" if one["size"] > _LFS_BYTES else "regular" for one in asked}
        files: list[dict[str, Any]] = [
            {"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()
        ]
        for one in files:
            if (blob := tree.get(one["path"])) is not None:  # what has not changed is left out of a commit
                one["oid"] = blob.sha256 if blob.is_lfs else blob.oid
        return _make_json({"files": files})

    def _batch(self, call: Call, repo: str) -> Answer:
        self._get(call, repo)
        objects = json.loads(call.body)["objects"]
        for one in objects:
            if one["oid"] not in self.objects:
                one["actions"] = {"upload": {"href": f"{call.origin()}/upload/{one['oid']}"}}
        return _make_json({"transfer": "basic", "objects": objects})

    def _upload(self, call: Call, oid: str) -> Answer:
        if hashlib.sha256(call.body).hexdigest() != oid:
            raise Refusal(400)
        self.objects[oid] = call.body
        return Answer()

    def _commit(self, call: Call, repo: str, revision: str) -> Answer:
        found = self._get(call, repo)
        head = found.resolve(revision)
        tree = dict(found.commits[head])
        for line in call.body.splitlines():
            one = json.loads(line)
            value = one["value"]
            match one["key"]:
                case "header":
                    if value.get("parentCommit") not in (None, head):
                        raise Refusal(412)
                case "file":
                    tree[value["path"]] = Blob(base64.b64decode(value["content"]), is_lfs=False)
                case "lfsFile":
                    if value["oid"] not in self.objects:
                        raise Refusal(400)
                    tree[value["path"]] = Blob(self.objects[value["oid"]], is_lfs=True)
                case "deletedFile":
                    del tree[value["path"]]
                case "deletedFolder":
                    tree = {path: blob for path, blob in tree.items() if not path.startswith(value["path"] + "/")}
                case key:
                    raise AssertionError(key)
        oid = found.commit(tree, revision)
        url = f"{call.origin()}/{repo.removeprefix('models/')}/commit/{oid}"
        return _make_json({"commitUrl": url, "commitOid": oid, "hookOutput": ""})

    def _branch(self, call: Call, repo: str, branch: str) -> Answer:
        found = self._get(call, repo)
        if branch in found.refs:
            raise Refusal(409)
        found.refs[branch] = found.resolve(json.loads(call.body or b"{}").get("startingPoint", "main"))
        return Answer(body=b"{}")

    def _resolve(self, call: Call, repo: str, revision: str, path: str) -> Answer:
        found = self._get(call, repo)
        commit = found.resolve(revision)
        blob = found.commits[commit].get(path)
        if blob is None:
            raise Refusal(404, "EntryNotFound")
        head = {"x-repo-commit": commit}
        if not blob.is_lfs:
            return _serve(call, blob.raw, head | {"etag": f'"{blob.oid}"'})
        self.objects[blob.sha256] = blob.raw
        where = f"{call.origin('localhost')}/objects/{blob.sha256}?signature=secret"  # another host, as a CDN is
        linked = {"x-linked-etag": f'"{blob.sha256}"', "x-linked-size": str(len(blob.raw)), "location": where}
        return Answer(302, b"Found", head | linked)

    def _object(self, call: Call, oid: str) -> Answer:
        if call.token or call.query.get("signature") != ["secret"]:
            raise Refusal(400)  # as places with signed addresses do
        return _serve(call, self.objects[oid], {"etag": '"of-the-cdn"'})


def _make_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"content-type": "application/json"} | (headers or {}))


def _serve(call: Call, raw: bytes, headers: dict[str, str]) -> Answer:
    if call.method == "HEAD":
        return Answer(200, b"", headers | {"content-length": str(len(raw))})
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
    if found is None:
        return Answer(200, raw, headers)
    start, end = int(found[1]), min(int(found[2] or len(raw)), len(raw) - 1)
    return Answer(206, raw[start : end + 1], headers | {"content-range": f"bytes {start}-{end}/{len(raw)}"})


@asynccontextmanager
async def open_hub_double() -> AsyncGenerator[HubDouble]:
    """Serve a Hub without repositories on a port of this machine."""
    hub = HubDouble()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    hub.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with serve_app(hub.app, listening):
        yield hub
