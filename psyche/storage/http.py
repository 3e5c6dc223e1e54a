"""Ranges of files over HTTP: tries, redirects, deadlines, and what an answer must be before its bytes count."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urljoin

import msgspec
import structlog
import trio

from psyche.errors import StorageError, StorageRefused
from psyche.storage.judging import HostRefused, check_url
from psyche.storage.port import StorageOptions, StoredFile, Take, check_range, cut_range, gather, sort_files

if TYPE_CHECKING:
    import httpcore2

TRIES: Final = 7
MAX_REDIRECTS: Final = 5
MAX_JSON_BYTES: Final = 16 << 20
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 8.0
_LONGEST_ASKED_WAIT_S: Final = 60.0  # by Retry-After
_SILENCE_S: Final = 10.0  # without a byte
_FLOOR_S: Final = 10.0  # of a try's deadline
_SLACK: Final = 4.0  # times what an answer takes at the source's pace: eight answers share the line
_FIRST_PACE: Final = 256 << 10  # bytes a second, before a source has shown its own
_LOWEST_PACE: Final = 16 << 10
_MEASURED_BYTES: Final = 64 << 10  # smaller answers say nothing of the pace
_SMALL_BYTES: Final = 64 << 10  # ranges up to this, as shuffled rows are, cost round trips and hardly a line
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_PASSING: Final = (408, 425, 429)  # busy, like 5xx
_STATUS: Final = {
    401: "not allowed", 403: "not allowed", 404: "not there", 410: "not there", 412: "another version",
    416: "shorter than said",
}  # fmt: skip

Headers = Mapping[str, str]
T = TypeVar("T")
_log: Final = structlog.get_logger("psyche.storage")


class TryFailed(Exception):
    """A try that gave nothing to use.

    `is_refusal`: the error after the last try is a StorageRefused. `is_final`: this try is the last.
    """

    def __init__(self, reason: str, *, wait_s: float = 0.0, is_refusal: bool = False, is_final: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.is_refusal = is_refusal or is_final
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    heads: tuple[Headers, ...]  # of the redirects, then its own; names in lower case
    body: bytes = b""

    @property
    def head(self) -> Headers:
        return self.heads[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    what: str  # as messages name it
    url: str
    method: str = "GET"
    headers: Headers = field(default_factory=dict)
    body: bytes = b""
    min_bytes: int = 0  # of the answer
    max_bytes: int = MAX_JSON_BYTES
    judge: Callable[[Answer], None] = lambda _: None  # raises TryFailed for a head that does not fit
    take: Take | None = None  # gets the body as it arrives, all but its last part


_REDIRECTING: Final = Request(what="", url="", max_bytes=_MEASURED_BYTES)


class HttpSource:
    """The requests to one storage: so many at once, each with tries, redirects and a deadline.

    Small ranges go beside the others: at first so many at once too, then more and more while the source answers.
    """

    def __init__(self, options: StorageOptions) -> None:
        self._options = options
        self._limiter = trio.CapacityLimiter(options.max_concurrent_downloads)
        self._small = trio.CapacityLimiter(options.max_concurrent_downloads)
        self._pace = float(_FIRST_PACE)
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._opening = trio.Lock()

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()

    async def ask(self, request: Request, renew: Callable[[], Request] | None = None) -> Answer:
        """Ask until there is an answer that fits; `renew` makes the request for what is still missing after a try.

        Raises:
            StorageError: no try gave one.
        """
        limiter = self._small if request.max_bytes <= _SMALL_BYTES else self._limiter
        for number in range(TRIES):
            try:
                async with limiter:
                    answer = await self._try(request)
                    self._allow_more()
                    return answer
            except TryFailed as failure:
                self._small.total_tokens = max(self._small.total_tokens // 2, self._limiter.total_tokens)
                if failure.is_final or number == TRIES - 1:
                    error = StorageRefused if failure.is_refusal else StorageError
                    raise error(f"{request.what}: {failure}") from failure.__cause__
                wait_s = min(_FIRST_WAIT_S * 2**number, _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311
                wait_s = max(wait_s, min(failure.wait_s, _LONGEST_ASKED_WAIT_S))
                _log.info("storage_retry", place=request.what, reason=str(failure), wait_s=round(wait_s, 2))
            await trio.sleep(wait_s)
            request = renew() if renew else request
        raise AssertionError

    def _allow_more(self) -> None:
        """Another small range at once for each answer, as long as there are some that wait."""
        if self._small.statistics().tasks_waiting and self._small.total_tokens < self._options.max_small_requests:
            self._small.total_tokens += 1

    async def ask_json(self, request: Request, kind: type[T]) -> tuple[T, Headers]:
        answer = await self.ask(request)
        try:
            return msgspec.json.decode(answer.body, type=kind), answer.head
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StorageError(f"{request.what}: an answer of another form: {error}") from error

    async def _try(self, request: Request) -> Answer:
        pool = await self._open_pool()
        import httpcore2

        began = trio.current_time()
        allowed_s = _FLOOR_S + request.max_bytes * _SLACK / self._pace
        with trio.move_on_after(allowed_s) as scope:
            try:
                answer = await self._follow(request, pool)
            except HostRefused as error:
                raise TryFailed(str(error), is_final=True) from error
            except httpcore2.LocalProtocolError:  # its text may have a token
                raise TryFailed("a header that cannot be sent", is_final=True) from None
            except (
                httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError,
            ) as error:  # fmt: skip
                raise TryFailed(_describe(error)) from error
        if scope.cancelled_caught:
            self._pace = max(self._pace / 2, _LOWEST_PACE)
            raise TryFailed(f"no whole answer within {allowed_s:.0f} s")
        took_s, size_bytes = trio.current_time() - began, request.min_bytes or len(answer.body)
        if size_bytes >= _MEASURED_BYTES:
            self._pace = max(0.8 * self._pace + 0.2 * size_bytes / max(took_s, 0.001), _LOWEST_PACE)
        return answer

    async def _open_pool(self) -> "httpcore2.AsyncConnectionPool":
        """The connections; in a thread, since the packages and the certificates are read only now."""
        async with self._opening:
            if self._pool is None:
                self._pool = await trio.to_thread.run_sync(_make_pool, self._options)
            return self._pool

    async def _follow(self, request: Request, pool: "httpcore2.AsyncConnectionPool") -> Answer:
        """Send a request, and again to where redirects lead; each address is judged anew."""
        url, heads = request.url, ()
        headers: dict[str | bytes, str | bytes] = {
            "accept-encoding": "identity",
            "user-agent": "psyche",
            **request.headers,
        }
        allowed = self._options.allow_private_hosts
        home = check_url(url, allow_private_hosts=allowed)
        for _ in range(MAX_REDIRECTS + 1):
            if check_url(url, allow_private_hosts=allowed) != home:
                headers.pop("authorization", None)
            # The fragment stays here, as with every client.
            async with pool.stream(
                request.method, url.partition("#")[0], headers=headers, content=request.body or None,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write"), _SILENCE_S)},
            ) as response:  # fmt: skip
                heads += (_read_head(response),)
                answer = Answer(response.status, heads)
                if answer.status not in _REDIRECTS or request.method in ("POST", "PUT"):
                    if (request.method, answer.status) != ("PUT", 308):  # Google's word for a part: go on
                        _judge_status(answer)
                    request.judge(answer)
                    if request.method == "HEAD":
                        return answer
                    return replace(answer, body=await _read_body(response, request))
                try:
                    url = urljoin(url, answer.head.get("location", ""))
                except ValueError:
                    raise HostRefused("a redirect to no address") from None
                await _read_body(
                    response, Request(what="", url="", max_bytes=_MEASURED_BYTES)
                )  # so that the connection serves again
        raise TryFailed(f"more than {MAX_REDIRECTS} redirects", is_final=True)


def _make_pool(options: StorageOptions) -> "httpcore2.AsyncConnectionPool":
    from psyche.storage.dialing import make_pool

    return make_pool(options)


def _judge_status(answer: Answer) -> None:
    status = answer.status
    if status in _PASSING or status >= 500:
        text = answer.head.get("retry-after", "")
        wait_s = float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
        raise TryFailed(f"HTTP {status}", wait_s=wait_s)
    if not 200 <= status < 300:
        name = _STATUS.get(status, "")
        raise TryFailed(f"{name} (HTTP {status})" if name else f"HTTP {status}", is_final=True)


def _read_head(response: "httpcore2.Response") -> Headers:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}


async def _read_body(response: "httpcore2.Response", request: Request) -> bytes:
    head = _read_head(response)
    if head.get("content-encoding", "identity") != "identity":
        raise TryFailed("a compressed answer")  # a few bytes could become many
    # Of a body that does not say its length the first parts may be those of a longer one.
    take = request.take if "content-length" in head else None
    body, size_bytes = bytearray(), 0
    async with aclosing(response.aiter_stream()) as parts:
        async for part in parts:
            size_bytes += len(part)
            if size_bytes > request.max_bytes:
                raise TryFailed(f"an answer of more than {request.max_bytes:,} bytes")
            if take is not None and size_bytes < request.max_bytes:
                await take(part)
            else:
                body += part
    if size_bytes < request.min_bytes:
        raise TryFailed(f"an answer of {size_bytes:,} bytes instead of {request.min_bytes:,}")
    return bytes(body)


def _describe(error: BaseException) -> str:
    """The reason, which lies some causes deep: of a certificate, say, under what the connection made of it."""
    kind, reason = type(error).__name__, error
    while reason.__cause__ or reason.__context__:
        reason = reason.__cause__ or reason.__context__ or reason
    text = str(error) or str(reason)
    return f"{kind}: {text}" if text else kind


class HttpStorage(ABC):
    """What the Hub, buckets and single addresses share."""

    def __init__(self, address: str, options: StorageOptions) -> None:
        self.address = address
        self._http = HttpSource(options)
        self._files: tuple[StoredFile, ...] | None = None
        self._listing = trio.Lock()

    @abstractmethod
    async def _list(self) -> list[StoredFile]: ...

    @abstractmethod
    async def _locate(self, file: StoredFile) -> tuple[str, Headers]:
        """Where a file is, and the headers that demand its version."""

    @abstractmethod
    def _is_version(self, file: StoredFile, answer: Answer) -> bool: ...

    async def list_files(self) -> tuple[StoredFile, ...]:
        async with self._listing:
            if self._files is None:
                self._files = await trio.to_thread.run_sync(sort_files, self.address, await self._list())
            return self._files

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        return b"".join(await self.read_parts(file, start, end))

    async def read_parts(self, file: StoredFile, start: int, end: int) -> list[bytes]:
        check_range(self.address, file, start, end)
        return await gather([partial(self._read, file, *one) for one in cut_range(start, end)])

    async def copy(self, file: StoredFile, start: int, end: int, take: Take) -> None:
        """Read part by part as they arrive; after a cut, only what is missing is asked for again."""
        check_range(self.address, file, start, end)
        for one in cut_range(start, end):
            await take(await self._read(file, *one, take))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _read(self, file: StoredFile, start: int, end: int, take: Take | None = None) -> bytes:
        url, headers = await self._locate(file)

        async def pass_on(part: bytes) -> None:
            nonlocal start
            assert take is not None
            await take(part)
            start += len(part)

        def make() -> Request:
            return Request(
                what=f"{self.address}/{file.name}", url=url, headers={**headers, "range": f"bytes={start}-{end - 1}"},
                min_bytes=end - start, max_bytes=end - start, judge=partial(self._judge, file, start, end),
                take=pass_on if take else None,
            )  # fmt: skip

        return (await self._http.ask(make(), make)).body

    def _judge(self, file: StoredFile, start: int, end: int, answer: Answer) -> None:
        if not self._is_version(file, answer):
            raise TryFailed("another version", is_refusal=True)
        if answer.status != 206:
            raise TryFailed(f"HTTP {answer.status} for a range of it")
        wanted = f"bytes {start}-{end - 1}/{file.size_bytes}"
        if answer.head.get("content-range") != wanted:
            raise TryFailed(f"Content-Range {answer.head.get('content-range', 'is missing')}, not {wanted}")
        length = answer.head.get("content-length")
        if length is not None and length != str(end - start):
            raise TryFailed(f"Content-Length {length} for {end - start:,} bytes")
