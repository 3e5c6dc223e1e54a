"""What changes in a run, told as it comes to whoever reads: as server-sent events, or as lines of JSON."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from psyche.analysis.run_view import RunView
from psyche.watch.app import Watcher
from psyche.watch.document import describe_line
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.web import Receive, Send

MAX_READERS: Final = 64
MAX_BATCH_BYTES: Final = 1_000_000  # of one reader; older lines than fit are lost to it, and it is told
HEARTBEAT_S: Final = 10.0
PACE_S: Final = 0.5  # between two batches


class Feed:
    """Readers keep nothing here but the number of the last line that they took: the lines are the run's own."""

    def __init__(self, watcher: Watcher, draw_run: Callable[[int], Awaitable[bytes]]) -> None:
        self._watcher = watcher
        self._draw_run = draw_run
        self._readers = 0

    @property
    def has_place(self) -> bool:
        return self._readers < MAX_READERS

    async def run(self, number: int, last: str, receive: Receive, send: Send, *, is_lines: bool) -> None:
        """Tell a reader of run `number` until it goes; `last` is the id of the last line it had."""
        self._readers += 1
        try:
            async with open_plain_nursery() as nursery:
                first = int(last) if re.fullmatch(r"[0-9]{1,18}", last) else 0
                nursery.start_soon(self._tell, number, first, send, is_lines)
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()
        finally:
            self._readers -= 1

    async def _tell(self, number: int, last: int, send: Send, is_lines: bool) -> None:
        view, told, spoken = self._watcher.views[number], -1, trio.current_time()
        while True:
            body = b""
            if view.revision != told:
                told = view.revision
                run = _frame("run", await self._draw_run(number), None, is_lines)
                async with self._watcher.sources[number].still:
                    last, body = make_batch(view, run, last, is_lines=is_lines)
            elif trio.current_time() - spoken >= HEARTBEAT_S:
                body = b'{"event":"heartbeat"}\n' if is_lines else b": heartbeat\n\n"
            if body:
                # Waits for a reader that is slow; meanwhile the run goes on, and what it missed is found by number.
                await send({"type": "http.response.body", "body": body, "more_body": True})
                spoken = trio.current_time()
                await trio.sleep(PACE_S)
            with trio.move_on_after(HEARTBEAT_S):
                await self._watcher.wait_change()


def make_batch(view: RunView, run: bytes, last: int, *, is_lines: bool) -> tuple[int, bytes]:
    """The run, and the lines after `last` as far as they fit, the newest first; and the number of the newest."""
    lines = view.get_lines(last)
    if not lines and last and not view.get_lines(last - 1):  # it counts from before this watcher began
        last, lines = 0, view.get_lines()
    size, kept = len(run), list[bytes]()
    for one in reversed(lines):
        framed = _frame("line", msgspec.json.encode(describe_line(one)), one.number, is_lines)
        size += len(framed)
        if size > MAX_BATCH_BYTES:
            break
        kept.append(framed)
    newest = lines[-1].number if lines else last
    lost = newest - last - len(kept) if last else 0  # who comes for the first time has lost nothing
    told = [_frame("lost", msgspec.json.encode({"lines": lost}), None, is_lines)] if lost else []
    return newest, b"".join([run, *told, *reversed(kept)])


def _frame(event: str, data: bytes, number: int | None, is_lines: bool) -> bytes:
    if is_lines:
        head = b"" if number is None else b'"id":%d,' % number
        return b'{"event":"%s",%s"data":%s}\n' % (event.encode(), head, data)
    head = b"" if number is None else b"id: %d\n" % number
    return b"event: %s\n%sdata: %s\n\n" % (event.encode(), head, data)
