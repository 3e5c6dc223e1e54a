"""The page over HTTP: GET alone, and nothing that it answers changes anything.

Strangers' pages in the same browser may try to read it: the names that it is called by, and the origin of requests,
are judged, and its own page may load nothing from elsewhere.
"""

import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from psyche.analysis.run_view import RunView
from psyche.watch.app import Watcher
from psyche.watch.document import (
    Values,
    describe_member,
    describe_rounds,
    describe_run,
    describe_timeline,
    describe_whole,
)
from psyche.watch.feed import Feed
from psyche.watch.saved import STATIC
from psyche.wire.web import (
    App,
    Message,
    Receive,
    Refused,
    Send,
    bind,
    check_caller,
    format_host,
    get_own_names,
    serve_app,
)

FRESH_S: Final = 2.0  # so long an answer stands while nothing new is known
MAX_DRAWN: Final = 256
Metrics = Callable[[Sequence[RunView]], str]
Make = Callable[[RunView, str, float], Any]
Headers = list[tuple[bytes, bytes]]
TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_API: Final = re.compile(
    r"/api/runs/(?P<run>\d{1,4})(?:/(?P<part>rounds|timeline|events|members/(?P<key>[^/]{1,512})))?"
)
_ALLOWED: Final = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
_SAFE: Final[Headers] = [
    (b"content-security-policy", (_ALLOWED + "base-uri 'none'; form-action 'none'; frame-ancestors 'none'").encode()),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]


@asynccontextmanager
async def serve_page(watcher: Watcher, host: str, port: int, metrics: Metrics | None = None) -> AsyncGenerator[str]:
    """Serve the page while the block runs; gives its address.

    Raises:
        OSError: the port is in use, or the host not this machine's.
    """
    listening = bind(host, port)
    async with serve_app(Site(watcher, host, metrics).make_app(), listening):
        yield f"http://{format_host(host)}:{listening.getsockname()[1]}/"


class Site:
    """Answers for the runs of a watcher; `host` is what it is bound to."""

    def __init__(self, watcher: Watcher, host: str, metrics: Metrics | None = None) -> None:
        self._watcher = watcher
        self._names = get_own_names(host)
        self._metrics = metrics
        self._files = {f"/{path.name}": path.read_bytes() for path in STATIC.iterdir()}
        self._files["/"] = self._files["/index.html"]
        self._drawn: dict[tuple[int, str], tuple[int, float, bytes]] = {}
        self._feed = Feed(watcher, self.draw_run)

    def make_app(self) -> App:
        async def app(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close"})
            elif scope["type"] == "http":
                await self._answer(scope, receive, send)

        return app

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._judge(scope["method"], headers)
            found = _API.fullmatch(scope["path"])
            if found and found["part"] == "events":
                number = int(found["run"])
                self._check(number)
                if not self._feed.has_place:
                    raise Refused(503, "as many readers as there may be are connected: close a page, and try again")
                is_lines = "application/x-ndjson" in headers.get("accept", "")
                await send(_start(200, "application/x-ndjson" if is_lines else "text/event-stream"))
                await self._feed.run(number, headers.get("last-event-id", ""), receive, send, is_lines=is_lines)
                return
            kind, body = await self._find(scope, found)
            status = 200
        except Refused as error:
            status, kind, body = error.status, "text/plain", f"{error}\n".encode()
        extra = [(b"allow", b"GET, HEAD")] if status == 405 else []
        await send(_start(status, kind, [(b"content-length", b"%d" % len(body)), *extra]))
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _judge(self, method: str, headers: dict[str, str]) -> None:
        if method not in ("GET", "HEAD"):
            raise Refused(405, "this page is only read: GET and HEAD")
        check_caller(headers, self._names, "this page", "--web-host")

    async def _find(self, scope: Message, found: re.Match[str] | None) -> tuple[str, bytes]:
        path = scope["path"]
        if path in self._files:
            return TYPES[path.rpartition(".")[2] if path != "/" else "html"], self._files[path]
        if path == "/metrics" and self._metrics is not None:
            async with self._watcher.hold_still():
                return "text/plain; version=0.0.4", self._metrics(self._watcher.views).encode()
        if path == "/api/runs":
            bodies = [await self.draw(number, "list", describe_run) for number in range(len(self._watcher.views))]
            return "application/json", b"[" + b",".join(bodies) + b"]"
        if found is None:
            raise Refused(404, "there is no such page; /api/runs lists the runs")
        number, part = int(found["run"]), found["part"] or ""
        self._check(number)
        make = self._choose(part, found["key"], scope["query_string"])
        return "application/json", await self.draw(number, f"{part} {scope['query_string']!r}", make)

    def _choose(self, part: str, key: str | None, query: bytes) -> Make:
        if key is not None:
            return lambda view, _run, _now: _describe_member(view, key)
        if part == "rounds":
            after = _get_step(query)
            return lambda view, _run, _now: describe_rounds(view, after)
        if part == "timeline":
            return lambda view, _run, _now: describe_timeline(view, live=True)
        return describe_whole

    def _check(self, number: int) -> None:
        if number >= len(self._watcher.views):
            raise Refused(404, f"there is no run {number}; /api/runs lists the runs")

    async def draw_run(self, number: int) -> bytes:
        return await self.draw(number, "", describe_whole)

    async def draw(self, number: int, name: str, make: Make) -> bytes:
        """Draw something of a run once for all who ask for it."""
        source = self._watcher.sources[number]
        async with source.still:
            view = source.view
            known, drawn, body = self._drawn.get((number, name), (-1, 0.0, b""))
            if known != view.revision or time.monotonic() - drawn >= FRESH_S:
                body = msgspec.json.encode(make(view, str(number), time.time()))
                if len(self._drawn) >= MAX_DRAWN:
                    self._drawn.clear()
                self._drawn[number, name] = (view.revision, time.monotonic(), body)
            return body


def _describe_member(view: RunView, key: str) -> Values:
    for one in view.get_members():
        if one.key == key:
            return describe_member(view, one)
    raise Refused(404, "there is no such member; the run's own page lists them")


def _start(status: int, kind: str, more: Sequence[tuple[bytes, bytes]] = ()) -> Message:
    kind = kind if "json" in kind or "version" in kind else f"{kind}; charset=utf-8"
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", kind.encode()), *more, *_SAFE],
    }


def _get_step(query: bytes) -> int:
    text = parse_qs(query.decode("latin-1")).get("after", ["0"])[-1]
    if not re.fullmatch(r"\d{1,18}", text):
        raise Refused(400, "after: must be a step, a whole number from 0 on")
    return int(text)
