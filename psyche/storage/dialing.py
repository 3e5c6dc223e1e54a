"""Connections to the very addresses that were judged, whatever a name resolves to next (B21)."""

import socket
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import httpcore2
import httpx2
import trio

from psyche.storage.judging import HostRefused, is_public
from psyche.storage.port import StorageOptions

if TYPE_CHECKING:
    import ssl

_CONNECT_S: Final = 5.0  # to one of a name's addresses
_KEEP_ALIVE_S: Final = 60.0


class JudgedDialer(httpcore2.AsyncNetworkBackend):
    """Resolves a host by itself, judges all of its addresses, and connects to one of just these."""

    def __init__(self, *, allow_private_hosts: bool) -> None:
        self._dialer: Any = httpcore2.TrioBackend()
        self._allow_private_hosts = allow_private_hosts

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not self._allow_private_hosts and not all(map(is_public, addresses)):
            raise HostRefused(f"{host} is not a public address")
        wait_s = min(timeout or _CONNECT_S, _CONNECT_S)
        for address in addresses[:-1]:
            try:
                return await self._dialer.connect_tcp(address, port, wait_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._dialer.connect_tcp(addresses[-1], port, wait_s, local_address, socket_options)


@cache
def _make_ssl_context() -> "ssl.SSLContext":
    return httpx2.create_ssl_context()


def make_pool(options: StorageOptions) -> httpcore2.AsyncConnectionPool:
    """Connections for so many requests at once, small ones too; proxies of the environment have no part in it."""
    return httpcore2.AsyncConnectionPool(
        ssl_context=_make_ssl_context(),
        max_connections=options.max_concurrent_downloads + options.max_small_requests,
        max_keepalive_connections=options.max_small_requests,
        keepalive_expiry=_KEEP_ALIVE_S,
        network_backend=JudgedDialer(allow_private_hosts=options.allow_private_hosts),
    )
