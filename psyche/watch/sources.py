"""Where a run is watched from: its event logs, live or finished, or its backend. Each source folds into a `RunView`."""

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Final, Protocol

import trio

from psyche.analysis.run_view import LAST_ROUNDS, RunView
from psyche.backends.port import Administration
from psyche.errors import BackendError, ConfigError, HandshakeError, WireError
from psyche.telemetry.events import Entry, EventTail, find_logs, read_entry
from psyche.wire.backend import Members, NotOwner, RequestRefused

LOOK_S: Final = 0.5  # between two looks at logs
ASK_S: Final = 1.0  # between two questions to a backend: with `ANSWER_S`, a server that is gone shows in 3 s
HISTORY_S: Final = 2.0  # for the run's course, which is asked for again if it does not come
ANSWER_S: Final = 1.4  # a backend that takes longer does not answer, if its last answer took a third at most
MAX_ANSWER_S: Final = 20.0
NEW_LOGS_S: Final = 2.0  # at least, between two looks for logs of further nodes
LOOK_SHARE: Final = 0.002  # of the time, at most, is spent on such looks
EVENTS_AT_ONCE: Final = 20_000
MAX_BUFFER_BYTES: Final = 8 << 20  # of all logs together
MIN_BUFFER_BYTES: Final = 16 << 10


class Source(Protocol):
    """A run that is watched; `every_s` says how often it is worth a look. Who holds `still` may draw the view."""

    every_s: float
    still: trio.Lock

    @property
    def view(self) -> RunView: ...

    async def refresh(self) -> bool:
        """Take what is new, or a part of it; return whether there is more at once.

        Raises:
            PsycheError: it can never be read.
        """
        ...


class LogSource:
    """All event logs at a path: of one node, of a folder of them, or of a testnet's folder.

    The view has the last `keep` rounds; 0: all.
    """

    every_s = LOOK_S

    def __init__(self, path: Path, keep: int = LAST_ROUNDS) -> None:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such file or folder")
        self.view = RunView(path.name or str(path), keep)
        self.still = trio.Lock()  # a thread changes the view
        self._path = path
        self._tails: dict[Path, EventTail] = {}
        self._look_at = float("-inf")  # for logs of further nodes
        self._entries: Iterator[Entry] = iter(())

    async def refresh(self) -> bool:
        async with self.still:
            return await trio.to_thread.run_sync(self.read)

    def read(self) -> bool:
        """Fold in at most `EVENTS_AT_ONCE` events, those of all nodes in order of time; blocks."""
        for _ in range(EVENTS_AT_ONCE):
            entry = next(self._entries, None)
            if entry is None:
                break
            self.view.take(entry)
        else:
            return True
        passed, tails = self.view.passed, self._tails.values()
        passed.torn, passed.missing = sum(one.torn for one in tails), sum(one.missing for one in tails)
        self._find_logs()
        self._entries = self._merge()
        first = next(self._entries, None)
        if first is not None:
            self.view.take(first)
        return first is not None

    def _find_logs(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            for path in find_logs(self._path):
                if path not in self._tails:
                    self._tails[path] = EventTail(path, older=True)
            ended = time.monotonic()
            self._look_at = ended + max(NEW_LOGS_S, (ended - now) / LOOK_SHARE)

    def _merge(self) -> Iterator[Entry]:
        size = max(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES // max(1, len(self._tails)))
        return heapq.merge(*(_read_all(one, size) for one in self._tails.values()), key=itemgetter(0))


def _read_all(tail: EventTail, size_bytes: int) -> Iterator[Entry]:
    while raws := tail.read_raw(size_bytes):
        yield from map(read_entry, tail.decode(raws))


class RunSource:
    """A run at its backend, asked again and again; `shows_members`: also who takes part, if the key may see it."""

    every_s = ASK_S

    def __init__(
        self, administration: Administration, name: str = "", *, shows_members: bool = True,
        say: Callable[[str], None] = lambda _text: None, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.view = RunView(name)
        self.still = trio.Lock()  # nobody but a viewer takes it: the view changes at once
        self.view.name_key = administration.name_key
        self._administration = administration
        self._shows_members = shows_members
        self._say = say
        self._now = now
        self._asked_step = -1
        self._patience_s = float("inf")  # until it has answered

    async def refresh(self) -> bool:
        started = trio.current_time()
        with trio.move_on_after(self._patience_s) as scope:
            step = await self._ask()
            if step is None:
                return False
            self._patience_s = min(MAX_ANSWER_S, max(ANSWER_S, 3 * (trio.current_time() - started)))
            scope.deadline = float("inf")  # the run's course has its own
            if step != self._asked_step:
                await self._ask_history(step)
        if scope.cancelled_caught:
            self._patience_s = min(MAX_ANSWER_S, 2 * self._patience_s)
            self.view.take_problem("the run's backend does not answer; trying again", self._now())
        return False

    async def _ask(self) -> int | None:
        """Take the run as it is; return the steps on record, or None if the backend cannot be reached."""
        view = self.view
        try:
            status = await self._administration.get_status()
            members = await self._get_members()
        except (HandshakeError, RequestRefused):
            raise  # it was heard and refused: the same question gets the same answer
        except (BackendError, WireError) as error:
            if self._patience_s == float("inf"):
                raise
            view.take_problem(str(error), self._now())
            return None
        view.take_status(status, self._now())
        if members is not None:
            view.take_members(members, self._administration.name_key)
        return status.step

    async def _ask_history(self, step: int) -> None:
        """Ask for the run's course: endpoints of a chain may be slow, and older servers tell none."""
        last = self.view.curve.last
        with trio.move_on_after(HISTORY_S), contextlib.suppress(BackendError, WireError):
            after = 0 if last is None or step < self._asked_step else last.step
            self.view.take_history(await self._administration.get_history(after))
            self._asked_step = step

    async def _get_members(self) -> Members | None:
        if not self._shows_members:
            return None
        try:
            return await self._administration.get_members()
        except NotOwner as error:
            self._shows_members = False  # it is told once
            self._say(f"warning: {error}")
            return None
