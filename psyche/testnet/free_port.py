"""Free TCP ports, each given out once."""

import secrets
import socket
from pathlib import Path
from typing import Final

from psyche.errors import PsycheError

ATTEMPTS: Final = 64
FIRST_PORT: Final = 20_000
FEWEST_PORTS: Final = 1_000  # with fewer ports than this, the system's own choice is better
EPHEMERAL_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
MAX_GIVEN: Final = 256  # ports held at a time; the oldest is let go: whoever asked for it has bound it by then
# Each port given out is held by a UDP socket of the same number, which other processes that choose a port cannot bind.
# This does not block TCP.
_given: Final[dict[int, socket.socket]] = {}


def choose_port(host: str = "127.0.0.1", *, wanted: int = 0) -> int:
    """Choose a port that is free now: `wanted` if it is above 0, else one that no `choose_port` has given out.

    If possible the port lies outside the range from which the system assigns ports to connections and to binds of
    port 0, because such a port could be taken before it is bound. If another program still binds it first, the
    later bind reports a clear error.
    """
    if wanted:
        _probe(host, wanted)
        return wanted
    for _ in range(ATTEMPTS):
        try:
            port = _probe(host, _draw_port())
        except PsycheError:
            continue
        if _reserve(host, port):
            return port
    raise PsycheError(f"no free port on {host} in {ATTEMPTS} attempts")


def _draw_port() -> int:
    """Draw a port below the system's range; 0 if there are too few."""
    try:
        first_ephemeral = int(EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    count = first_ephemeral - FIRST_PORT
    return FIRST_PORT + secrets.randbelow(count) if count >= FEWEST_PORTS else 0


def _probe(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PsycheError(
                f"port {port} on {host}: {error.strerror}; choose another, or 0 for a free one"
            ) from error
        return int(probe.getsockname()[1])


def _reserve(host: str, port: int) -> bool:
    if port in _given:
        return False
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        holder.bind((host, port))
    except OSError:
        holder.close()
        return False
    _given[port] = holder
    if len(_given) > MAX_GIVEN:
        _given.pop(next(iter(_given))).close()
    return True
