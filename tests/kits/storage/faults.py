"""A way to a server of files on which a test spoils answers."""

import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import trio

Stream = trio.SocketStream | trio.SSLStream
# After them a source that asks again has the right bytes. `other_bytes` is not among them: no head tells.
FAULTS: Final = (
    "dead", "stalled", "stalled_body", "busy", "unavailable", "cut", "late", "slow", "whole", "other_version",
    "other_range", "other_size", "no_range", "wrong_length", "short", "long", "endless", "compressed",
)  # fmt: skip
STALLING: Final = ("stalled", "stalled_body", "late", "slow")  # those that cost a deadline
_ENDLESS_BYTES: Final = 64 << 20
_TROUBLE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@dataclass
class Asked:
    """A request that came by."""

    method: str
    target: str
    headers: dict[str, str]


@dataclass
class FaultyWay:
    """The way to a server.

    `fault` spoils the next `count` requests whose target has `only` in it: those without an end with None. "redirect"
    leads to `location`, in which {} is the target. With `token`, requests that do not bear it are refused.
    """

    server_port: int
    address: str = ""
    fault: str = ""
    count: int | None = None
    only: str = ""
    location: str = ""
    token: str = ""
    asked: list[Asked] = field(default_factory=list)
    most_at_once: int = 0
    connections: int = 0
    _now: int = 0

    def spoil(self, fault: str, count: int | None = None, *, only: str = "", location: str = "") -> None:
        self.fault, self.count, self.only, self.location = fault, count, only, location

    async def handle(self, client: Stream) -> None:
        self.connections += 1
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            with suppress(*_TROUBLE):
                await self._handle(client)
        finally:
            self._now -= 1
            with trio.CancelScope(shield=True):  # pyright: ignore[reportCallIssue]
                await trio.aclose_forcefully(client)

    async def _handle(self, client: Stream) -> None:
        raw = await _read_request(client)
        if not raw:
            return
        lines = raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        self.asked.append(Asked(method, target, headers))
        fault = self._take_fault(target)
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            fault = "refused"
        if fault == "dead":
            return
        if fault == "stalled":
            await trio.sleep_forever()
        if fault == "late":
            await trio.sleep(600.0)
        canned = {
            "busy": "429 Too Many Requests\r\nretry-after: 2",
            "unavailable": "503 Service Unavailable",
            "refused": "401 Unauthorized",
            "redirect": f"302 Found\r\nlocation: {self.location.replace('{}', target)}",
        }
        if fault in canned:
            head = f"HTTP/1.1 {canned[fault]}\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
            await client.send_all(head.encode() + (b"" if method == "HEAD" else b"wait"))
        else:
            await self._pass(client, raw, fault, is_head=method == "HEAD")

    def _take_fault(self, target: str) -> str:
        if not self.fault or self.only not in target or self.count == 0:
            return ""
        if self.count is not None:
            self.count -= 1
        return self.fault

    async def _pass(self, client: Stream, raw: bytes, fault: str, *, is_head: bool) -> None:
        raw = raw.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
        if fault == "whole":
            raw = re.sub(rb"\r\n(if-)?range: [^\r]*", b"", raw, flags=re.IGNORECASE)
        async with await trio.open_tcp_stream("127.0.0.1", self.server_port) as server:
            await server.send_all(raw)
            answer = b"".join([part async for part in server])
        head, _, body = answer.partition(b"\r\n\r\n")
        head, body = _spoil(fault, head, body)
        await client.send_all(head + b"\r\n\r\n")
        if is_head:
            return
        if fault in ("cut", "stalled_body"):
            await client.send_all(body[: len(body) // 2])
            if fault == "stalled_body":
                await trio.sleep_forever()
        elif fault == "slow":
            for i in range(len(body)):
                await client.send_all(body[i : i + 1])
                await trio.sleep(5.0)
        elif fault == "endless":
            for _ in range(_ENDLESS_BYTES >> 16):
                await client.send_all(bytes(1 << 16))
        else:
            await client.send_all(body)


# Pattern and replacement for the head of an answer.
_HEADS: Final = {
    "other_version": (r"(\r\n(etag|x-goog-generation|x-repo-commit)): [^\r]*", r'\1: "7"'),
    "other_range": (r"content-range: bytes \d+", "content-range: bytes 77"),
    "other_size": (r"(content-range: bytes [^/]*)/\d+", r"\1/77"),
    "no_range": (r"content-range", "content-what"),
    "wrong_length": (r"(content-length): \d+", r"\1: 3"),
    "long": (r"content-length", "content-what"),
    "endless": (r"content-length", "content-what"),
    "compressed": ("$", "\r\ncontent-encoding: gzip"),
}


def _spoil(fault: str, head: bytes, body: bytes) -> tuple[bytes, bytes]:
    pattern, replacement = _HEADS.get(fault, ("$^", ""))
    if fault == "short":
        body = body[:-2]  # the last byte of some answers in JSON is a line feed, which nobody misses
        pattern, replacement = r"(content-length): \d+", rf"\1: {len(body)}"
    elif fault == "long":
        body += b"more"
    elif fault == "other_bytes":
        body = bytes(byte ^ 1 for byte in body)
    return re.sub(pattern.encode(), replacement.encode(), head, flags=re.IGNORECASE), body


async def _read_request(client: Stream) -> bytes:
    raw = b""
    while b"\r\n\r\n" not in raw:
        part = await client.receive_some(1 << 16)
        if not part:
            return b""
        raw += part
    found = re.search(rb"\r\ncontent-length: (\d+)", raw, re.IGNORECASE)
    whole = raw.index(b"\r\n\r\n") + 4 + (int(found[1]) if found else 0)
    while len(raw) < whole:
        raw += await client.receive_some(1 << 16)
    return raw


@asynccontextmanager
async def open_way(server: str, tls: ssl.SSLContext | None = None) -> AsyncGenerator[FaultyWay]:
    """Open a way to a server; with `tls`, one of https."""
    port = urlsplit(server).port
    assert port is not None
    way = FaultyWay(port)

    async def handle(client: trio.SocketStream) -> None:
        await way.handle(client if tls is None else trio.SSLStream(client, tls, server_side=True))

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        own_port = listeners[0].socket.getsockname()[1]
        way.address = f"{'http' if tls is None else 'https'}://127.0.0.1:{own_port}"
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield way
        nursery.cancel_scope.cancel()
