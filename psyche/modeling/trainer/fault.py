"""A test hook: faults that a trainer child injects into itself if its environment requests them.

`PSYCHE_TRAINER_FAULT="oom@3,hang@5,crash:apply@7,oom@9x10,flip:apply@4"`: at the 3rd train call memory runs out
(once, so that a smaller micro-batch succeeds), the 5th hangs, the 7th apply ends the process, at
the 9th train call memory runs out ten times, and before the 4th apply a weight is another one. Calls
are counted from the child's start. `crash:compute@2#1` is for rank 1 of a group, whose calls are those of `shard`.
"""

import os
import re
import time
from collections import Counter, defaultdict
from typing import Final

from psyche.errors import ConfigError

VARIABLE: Final = "PSYCHE_TRAINER_FAULT"
CRASH_STATUS: Final = 70
_FAULT: Final = re.compile(r"(oom|hang|crash|flip)(?::([a-z_]+))?@(\d+)(?:x(\d+))?")


def read_faults(rank: int = 0) -> str:
    """The faults that the environment requests of a rank."""
    parts = [part.strip().partition("#") for part in os.environ.get(VARIABLE, "").split(",")]
    return ",".join(fault for fault, _, of in parts if of == (str(rank) if rank else ""))


class FaultInjector:
    """Injects the requested faults: call `begin` at each call of the trainer and `strike` at each safe point."""

    def __init__(self, text: str) -> None:
        self._faults: defaultdict[tuple[str, int], list[str]] = defaultdict(list)  # what is left, by operation and call
        self._counts: Counter[str] = Counter()
        self._operation = ""
        self.is_flipped = False  # the running call is to find another weight
        for part in filter(None, text.split(",")):
            match = _FAULT.fullmatch(part.strip())
            if match is None:
                raise ConfigError(f"{VARIABLE}: {part!r} must have the form kind[:operation]@call[xtimes]")
            kind, operation, call, times = match.groups()
            self._faults[operation or "train", int(call)] += [kind] * int(times or 1)

    def begin(self, operation: str) -> None:
        self._operation, self.is_flipped = operation, False
        self._counts[operation] += 1

    def strike(self) -> None:
        """Inject the fault that is due: "oom" raises MemoryError, "hang" never returns, "crash" ends the process,
        "flip" is noted.
        """
        due = self._faults[self._operation, self._counts[self._operation]]
        if not due:
            return
        kind = due.pop(0)
        if kind == "crash":
            os._exit(CRASH_STATUS)
        while kind == "hang":
            time.sleep(3600)
        if kind == "flip":
            self.is_flipped = True
            return
        raise MemoryError(f"requested by {VARIABLE}")
