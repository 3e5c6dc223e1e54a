"""The run's clock: unix seconds that never run backwards and never jump."""

import trio


class RunClock:
    """Starts at the wall clock, or at the journal's last record if that is later, and then follows the monotonic clock.

    A wall clock that is set forwards or backwards while the server runs moves nothing (a step of it
    would be a time-out for everybody); the next start sees the difference as its gap (K2).
    """

    def __init__(self, unix_s: float, not_before: int) -> None:
        self._offset_s = max(unix_s, float(not_before)) - trio.current_time()

    def now(self) -> int:
        """Unix seconds."""
        return int(self._offset_s + trio.current_time())
