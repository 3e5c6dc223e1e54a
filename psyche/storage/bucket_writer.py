"""Objects put into a Google bucket, each once: what is there already is never replaced."""

import hashlib
import json
import tempfile
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
import trio

from psyche.durable import open_file
from psyche.errors import StorageError, StorageRefused
from psyche.storage.bucket import BucketStorage, Object
from psyche.storage.http import Request
from psyche.storage.port import StoredFile

CHUNK_BYTES: Final = 8 << 20  # of one request; a larger object is sent in several
LIST_NAME: Final = "manifest.json"
_BOUNDARY: Final = "psyche-object"


class BucketWriter(BucketStorage):
    """A folder of a bucket that may be written. Objects are found by MD5, which Google has of each."""

    scope = "https://www.googleapis.com/auth/devstorage.read_write"

    async def put_files(
        self, paths: Sequence[Path], about: Mapping[str, object], *, own: Collection[str] = (),
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Put files that belong together, and last their list `manifest.json`: who reads it finds them whole.

        Of the names in `own` each writer has bytes of its own, so that any will do. `progress` is told the bytes that
        are there.

        Raises:
            StorageError: as `put`; what is there by then stays, and is not sent again.
        """
        files: list[StoredFile] = []
        for path in paths:
            before_bytes = sum(file.size_bytes for file in files)
            files.append(
                await self.put(
                    path.name, path, is_exact=path.name not in own, progress=lambda n, m=before_bytes: progress(m + n)
                )
            )
        listed = [{"filename": f.name, "generation": int(f.version), "size_bytes": f.size_bytes} for f in files]
        raw = json.dumps({"metadata": about, "files": listed}, indent=1).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / LIST_NAME
            await trio.to_thread.run_sync(path.write_bytes, raw)
            await self.put(LIST_NAME, path)

    async def put(
        self, name: str, path: Path, *, is_exact: bool = True, progress: Callable[[int], None] = lambda _: None
    ) -> StoredFile:
        """Make an object of a file, or take the one that is there.

        Raises:
            StorageError: it is not there; StorageRefused: and it would not help to try again, since it may not be
                written, or, with `is_exact`, is there with other bytes.
        """
        size_bytes, md5 = await trio.to_thread.run_sync(_measure, path)
        expected = md5 if is_exact else ""
        found = await self._find_same(name, expected)
        if found is None:
            put = partial(self._put_in_parts, size_bytes=size_bytes, progress=progress)
            try:
                found = await (self._put_at_once if size_bytes <= CHUNK_BYTES else put)(name, path)
            except StorageRefused:  # 412: by now another member has put it, or this one did and did not hear so
                found = await self._find_same(name, expected)
                if found is None:
                    raise
        progress(size_bytes)
        return self._describe(found)

    async def remove(self, file: StoredFile) -> None:
        url = f"{self._objects}/{quote(self._folder + file.name, safe='')}?generation={file.version}"
        what = f"{self.address}/{file.name}"
        await self._http.ask(Request(what=what, url=url, method="DELETE", headers=await self._sign()))

    async def _find_same(self, name: str, md5: str) -> Object | None:
        url = f"{self._objects}/{quote(self._folder + name, safe='')}?fields=name,size,generation,md5Hash"
        request = Request(what=f"{self.address}/{name}", url=url, headers=await self._sign())
        try:
            found, _ = await self._http.ask_json(request, Object)
        except StorageRefused:
            return None
        if md5 and found.md5 != md5:
            raise StorageRefused(f"{self.address}/{name}: other bytes are there, which are not replaced")
        return found

    async def _put_at_once(self, name: str, path: Path) -> Object:
        raw = await trio.to_thread.run_sync(path.read_bytes)
        head = msgspec.json.encode({"name": self._folder + name}).decode()
        body = (
            f"--{_BOUNDARY}\r\ncontent-type: application/json\r\n\r\n{head}\r\n"
            f"--{_BOUNDARY}\r\ncontent-type: application/octet-stream\r\n\r\n"
        ).encode() + raw + f"\r\n--{_BOUNDARY}--\r\n".encode()  # fmt: skip
        headers = {**await self._sign(), "content-type": f"multipart/related; boundary={_BOUNDARY}"}
        url = self._address({"uploadType": "multipart"})
        what = f"{self.address}/{name}"
        request = Request(what=what, url=url, method="POST", headers=headers, body=body)
        return (await self._http.ask_json(request, Object))[0]

    async def _put_in_parts(self, name: str, path: Path, *, size_bytes: int, progress: Callable[[int], None]) -> Object:
        what = f"{self.address}/{name}"
        url = self._address({"uploadType": "resumable", "name": self._folder + name})
        answer = await self._http.ask(Request(what=what, url=url, method="POST", headers=await self._sign()))
        session = answer.head.get("location", "")
        with await trio.to_thread.run_sync(open_file, path) as file:
            for start in range(0, size_bytes, CHUNK_BYTES):
                raw = await trio.to_thread.run_sync(file.read, CHUNK_BYTES)
                span = {"content-range": f"bytes {start}-{start + len(raw) - 1}/{size_bytes}"}
                request = Request(what=what, url=session, method="PUT", headers=span, body=raw)
                answer = await self._http.ask(request)
                progress(start + len(raw))
        try:
            return msgspec.json.decode(answer.body, type=Object)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{what}: an answer of another form: {error}") from error

    def _address(self, query: dict[str, str]) -> str:
        objects = self._objects.replace("/storage/v1/", "/upload/storage/v1/", 1)
        return f"{objects}?{urlencode(query | {'ifGenerationMatch': '0'})}"


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).digest()
        return file.tell(), b64encode(digest).decode()
