"""What a connection may cost the server, with the reason for each."""

from typing import Final

MAX_CONNECTIONS: Final = 768  # 256 members, and strangers and visitors twice as many, the oldest of which make room
HANDSHAKE_TIMEOUT_S: Final = 10.0  # handshake and hello together are two round trips
IDLE_TIMEOUT_S: Final = 30.0  # a client pings every 5 s: six lost in a row are a dead connection
SEND_TIMEOUT_S: Final = 10.0  # who does not take 64 KiB within this is too slow to follow a run
GOODBYE_TIMEOUT_S: Final = 1.0
MAX_REPLIES: Final = 128  # answers that a client has not read yet
REQUESTS_PER_S: Final = 20.0  # a round asks for about five
REQUEST_BURST: Final = 128.0  # a reconnecting client resends at most 64
TICK_S: Final = 0.5


class TokenBucket:
    """How fast requests may come: `burst` at once, `per_s` in the long run. `now` is in seconds."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at = burst, now

    def take(self, now: float) -> bool:
        """Use one token; false where there is none."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
