"""The listening port and the addresses of this machine.

libp2p listens with SO_REUSEPORT: two processes on one port would both start, and each would get half of
the connections. Therefore a node locks its port for as long as it lives.
"""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from psyche.core.state.limits import MAX_ADDRESSES
from psyche.errors import NetworkError

FREE_PORT_ATTEMPTS: Final = 32


@contextmanager
def lock_port(ip: str, port: int) -> Iterator[int]:
    """Lock a TCP port of `ip` against other processes of psyche, and check that no other program listens on it."""
    for _ in range(1 if port else FREE_PORT_ATTEMPTS):
        number = port or _probe(ip, 0)
        lock = _try_lock(number)
        if lock is None:
            continue
        try:
            _probe(ip, number)
            yield number
        finally:
            lock.close()
        return
    raise NetworkError(f"port {port}: another process of psyche listens on it; choose another port")


def _try_lock(port: int) -> socket.socket | None:
    """Bind an abstract socket named after the port: it ends with its process and is local to the network namespace."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0psyche-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock


def _probe(ip: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            raise NetworkError(f"listen on {ip} port {port}: {error.strerror}") from error
        return int(probe.getsockname()[1])


def build_address(ip: str, port: int) -> str:
    try:
        version = ipaddress.ip_address(ip).version
    except ValueError as error:
        raise NetworkError(f"listen address {ip!r}: not an IP address") from error
    return f"/ip{version}/{ip}/tcp/{port}"


def get_reachable_addresses(ip: str, port: int) -> tuple[str, ...]:
    """Return the addresses that reach a node listening on `ip`; for "any", this machine's, loopback only if alone."""
    if not ipaddress.ip_address(ip).is_unspecified:
        return (build_address(ip, port),)
    version = ipaddress.ip_address(ip).version
    found = [a for a in get_machine_addresses() if ipaddress.ip_address(a).version == version]
    outside = [a for a in found if not ipaddress.ip_address(a).is_loopback]
    loopback = "127.0.0.1" if version == 4 else "::1"
    return tuple(build_address(a, port) for a in (outside or [loopback])[:MAX_ADDRESSES])


def get_machine_addresses() -> list[str]:
    import ifaddr  # comes with libp2p

    found: list[str] = []
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            text = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            if not ipaddress.ip_address(text).is_link_local:
                found.append(text)
    return found
