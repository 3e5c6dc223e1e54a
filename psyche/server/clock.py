"""The run's clock: Unix seconds that never run backwards and never jump."""

import trio


class RunClock:
    """Starts at the wall clock, or at the journal's last record if that is later, and then follows the monotonic clock.

    Setting the wall clock while the server runs has no effect on it (a jump would be a timeout for everybody);
    the next start treats the difference as downtime (K2).
    """

    def __init__(self, unix_s: float, not_before: int) -> None:
        self._offset_s = max(unix_s, float(not_before)) - trio.current_time()

    def now(self) -> int:
        """Return the time in Unix seconds."""
        return int(self._offset_s + trio.current_time())
