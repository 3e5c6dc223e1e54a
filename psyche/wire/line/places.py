"""Places for connections (K7): preferred keys come first; of others, the address with the most connections yields.

A connection is unauthenticated until it has proven a preferred key. Such connections share the general places: when
all are taken, the oldest of the address that holds most of them is closed, so that the address with the most
connections pushes out only its own. Preferred keys take no general place.
"""

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass

import trio

from psyche.wire.line.descriptors import ENOUGH
from psyche.wire.line.pace import PacedStream, get_host


@dataclass(eq=False, slots=True)
class Place:
    """One connection. `close` closes it, given a reason; `key` is None until it is proven."""

    host: str
    close: Callable[[str], None]
    key: bytes | None = None


class Places:
    """The places and the connections that hold them.

    Args:
        general: the limit of unauthenticated connections.
        per_host: the limit of those of one address, if known; less than `general`.
        most: the limit of all connections, for which there are descriptors.
        per_key: the limit of connections of one key, preferred or not.
        get_first: returns the keys that have priority now.
    """

    most = ENOUGH

    def __init__(self, *, general: int, per_host: int, per_key: int, get_first: Callable[[], Container[bytes]]) -> None:
        self.closed = 0
        self._general, self._per_host, self._per_key = general, per_host, per_key
        self._get_first = get_first
        self._open: dict[Place, None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, host: str, close: Callable[[str], None]) -> Place:
        """Give a new connection a place; this may close another connection."""
        place = Place(host, close)
        self._open[place] = None
        self._make_room()
        return place

    def identify(self, place: Place, key: bytes) -> None:
        """Note that a connection has proven its key; of one key's connections only the newest stay."""
        place.key = key
        same = [one for one in self._open if one.key == key]
        for one in same[: max(0, len(same) - self._per_key)]:
            self._end(one, f"more than {self._per_key} connections of one key")

    def leave(self, place: Place) -> None:
        self._open.pop(place, None)

    def _make_room(self) -> None:
        if len(self._open) <= min(self._general, self._per_host, self.most):
            return
        first = self._get_first()
        unknown = [one for one in self._open if one.key is None or one.key not in first]
        hosts = Counter(one.host for one in unknown)
        if not hosts:
            return
        greediest, count = hosts.most_common(1)[0]
        is_full = len(unknown) > self._general or len(self._open) > self.most
        if is_full or (greediest and count > self._per_host):
            oldest = next(one for one in unknown if one.host == greediest)
            where = greediest or "one address"
            self._end(oldest, f"made room for a newer connection: {count} unauthenticated ones at {where}")

    def _end(self, place: Place, reason: str) -> None:
        self.leave(place)
        self.closed += 1
        place.close(reason)


def get_peer_host(stream: trio.abc.Stream) -> str:
    """Return the remote IP address of a TCP connection (for IPv6 its network), or an empty text if there is none."""
    while isinstance(stream, trio.SSLStream | PacedStream):
        stream = stream.transport_stream
    return get_host(stream)
