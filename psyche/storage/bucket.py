"""Google's buckets by their JSON API: public ones, and private ones as a service account."""

import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, urlencode

import msgspec
import trio

from psyche.durable import read_file
from psyche.errors import StorageRefused
from psyche.storage.http import Answer, Headers, HttpSource, HttpStorage, Request
from psyche.storage.port import MAX_FILES, StorageOptions, StoredFile, check_name, gather

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_S: Final = 3_600  # the longest that Google gives
_EARLY_S: Final = 300  # a new token before the old one ends
_MAX_KEY_BYTES: Final = 64 << 10

_Number = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,18}$")]


class Object(msgspec.Struct):
    name: str
    size: _Number
    generation: _Number
    md5: str = msgspec.field(default="", name="md5Hash")  # base64, where it was asked for


class _Page(msgspec.Struct):
    items: list[Object] = []
    next_page: str = msgspec.field(default="", name="nextPageToken")


class _Key(msgspec.Struct):
    """The file that Google gives for a service account."""

    type: str
    client_email: str
    private_key: str
    private_key_id: str
    token_uri: str


class _Token(msgspec.Struct):
    access_token: str


class BucketStorage(HttpStorage):
    """The objects below a folder of a bucket; "": all of it.

    `generations`: these objects alone, by name below the folder, each of that generation ("": the newest one); the
    bucket is then not listed, which not everybody may do.

    Raises:
        StorageRefused: there can be no such bucket or folder.
    """

    scope = "https://www.googleapis.com/auth/devstorage.read_only"

    def __init__(
        self, bucket: str, prefix: str, options: StorageOptions, *, generations: Mapping[str, str] | None = None
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise StorageRefused(f"{bucket[:100]!a}: is no name of a bucket")
        folder = f"{prefix.strip('/')}/".lstrip("/")
        if folder:
            check_name(f"gs://{bucket}", folder[:-1])
        super().__init__(f"gs://{bucket}/{folder}".rstrip("/"), options)
        self._folder = folder
        self._objects = f"{options.google_endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        self._generations = generations
        credentials = options.google_credentials
        self._account = ServiceAccount(credentials, self._http, self.scope) if credentials else None

    async def _list(self) -> list[StoredFile]:
        if self._generations is not None:
            return await gather([partial(self._find, *one) for one in self._generations.items()])
        files: list[StoredFile] = []
        query = {"prefix": self._folder, "fields": "items(name,size,generation),nextPageToken"}
        while len(files) <= MAX_FILES:
            request = Request(what=self.address, url=f"{self._objects}?{urlencode(query)}", headers=await self._sign())
            page, _ = await self._http.ask_json(request, _Page)
            # A name that ends with "/" stands for a folder.
            files += (self._describe(one) for one in page.items if not one.name.endswith("/"))
            if not page.next_page:
                break
            query["pageToken"] = page.next_page
        return files

    async def _find(self, name: str, generation: str) -> StoredFile:
        query = {"fields": "name,size,generation"} | ({"generation": generation} if generation else {})
        url = f"{self._objects}/{quote(self._folder + name, safe='')}?{urlencode(query)}"
        request = Request(what=f"{self.address}/{name}", url=url, headers=await self._sign())
        return self._describe((await self._http.ask_json(request, Object))[0])

    def _describe(self, one: Object) -> StoredFile:
        if not one.name.startswith(self._folder):
            raise StorageRefused(f"{self.address}: {one.name[:100]!a} is not below it")
        return StoredFile(one.name.removeprefix(self._folder), int(one.size), one.generation)

    async def _locate(self, file: StoredFile) -> tuple[str, Headers]:
        name = quote(self._folder + file.name, safe="")
        return f"{self._objects}/{name}?alt=media&generation={quote(file.version)}", await self._sign()

    def _is_version(self, file: StoredFile, answer: Answer) -> bool:
        return answer.head.get("x-goog-generation") == file.version

    async def _sign(self) -> Headers:
        return {} if self._account is None else {"authorization": f"Bearer {await self._account.get_token()}"}


open_bucket: Final = BucketStorage


class ServiceAccount:
    """Who signs in: a token for an hour by a signed statement (RFC 7523), without Google's own packages."""

    def __init__(self, path: Path, http: HttpSource, scope: str) -> None:
        self._path = path
        self._scope = scope
        self._http = http
        self._lock = trio.Lock()
        self._token = ""
        self._end_unix = 0.0

    async def get_token(self) -> str:
        """Get a token that is good for some minutes.

        Raises:
            StorageError: the file is no key of a service account, or Google does not take it.
        """
        async with self._lock:
            now = time.time()
            if now > self._end_unix - _EARLY_S:
                key = await trio.to_thread.run_sync(self._read_key)
                body = urlencode({"grant_type": _GRANT, "assertion": self._make_statement(key, int(now))}).encode()
                headers = {"content-type": "application/x-www-form-urlencoded"}
                what = f"sign-in of {key.client_email} ({self._path})"
                request = Request(what=what, url=key.token_uri, method="POST", headers=headers, body=body)
                token, _ = await self._http.ask_json(request, _Token)
                self._token, self._end_unix = token.access_token, now + _TOKEN_S
            return self._token

    def _read_key(self) -> _Key:
        try:
            key = msgspec.json.decode(read_file(self._path, _MAX_KEY_BYTES), type=_Key)
        except OSError as error:
            raise StorageRefused(f"{self._path}: {error.strerror}") from error
        except msgspec.MsgspecError:  # its text is not shown: the file holds a secret
            raise StorageRefused(f"{self._path}: must be the JSON key of a service account") from None
        if key.type != "service_account":
            raise StorageRefused(f"{self._path}: must be the key of a service account, is of type {key.type[:50]!a}")
        return key

    def _make_statement(self, key: _Key, now_unix: int) -> str:
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            private = load_pem_private_key(key.private_key.encode(), None)
        except ValueError:
            private = None
        if not isinstance(private, RSAPrivateKey):
            raise StorageRefused(f"{self._path}: its private_key must be an RSA key in PEM")
        head = {"alg": "RS256", "typ": "JWT", "kid": key.private_key_id}
        times = {"iat": now_unix, "exp": now_unix + _TOKEN_S}
        claims = {"iss": key.client_email, "scope": self._scope, "aud": key.token_uri, **times}
        text = b".".join(_encode(msgspec.json.encode(part)) for part in (head, claims))
        return b".".join((text, _encode(private.sign(text, PKCS1v15(), SHA256())))).decode()


def _encode(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")
