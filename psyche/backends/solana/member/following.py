"""Following the run's record on all endpoints at once: what is shown, by whom it is believed, and how far it got."""

import math
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from psyche import __version__
from psyche.backends.solana.member.link import Reading
from psyche.backends.solana.member.logic import find_own_slot
from psyche.backends.solana.member.view import Choice, RecordView, get_kept_phase
from psyche.backends.solana.rpc.run_link import RpcLink
from psyche.backends.waits import NamedWaits, Progress
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Coordinator, RunState
from psyche.durable import make_folder, read_file, replace_file
from psyche.errors import BackendError, ChainReplaced, PsycheError, RunClosed, VersionMismatch
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.wire.nursery import open_plain_nursery

MAX_SLOT_FILE_BYTES: Final = 64


class MinimumSlot:
    """How far a client has followed the run (M9). This one keeps nothing: for clients that never start again."""

    def read(self) -> int:
        return 0

    def write(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class MinimumSlotFile(MinimumSlot):
    """Keeps the slot in a file; one for each account, since another chain counts other slots."""

    path: Path

    def read(self) -> int:
        try:
            return int(read_file(self.path, MAX_SLOT_FILE_BYTES))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise BackendError(
                f"{self.path}: cannot be read as a slot ({error}); remove it once the run is past the round in which "
                "this client ended"
            ) from error

    def write(self, slot: int) -> None:
        try:
            make_folder(self.path.parent)
            replace_file(self.path, b"%d" % slot, self.path.with_name(f".{self.path.name}-new"))
        except OSError as error:
            raise BackendError(
                f"{self.path}: cannot be written ({error.strerror}); until it can, a restart of this client may go "
                "back behind the slot that it has seen"
            ) from error


def check_version(state: Coordinator) -> None:
    """Check that this program has the version that the run's owner wants; an empty one, or `latest`, is any."""
    if state.client_version not in ("", "latest", __version__) and state.run_state is not RunState.FINISHED:
        raise VersionMismatch(
            f"run {state.run_id!r} wants clients of version {state.client_version}, and this is {__version__}: install "
            "that version (in a checkout: `git pull`, then `bash scripts/install`) and start this client again"
        )


FORK_S: Final = 15.0  # in this time each endpoint is asked again at least once
SILENCE_S: Final = 20.0  # endpoints are asked every few seconds, even if the account does not change


@dataclass(frozen=True, slots=True)
class ChainPlatform:
    """The client's interface to its machine."""

    rng: random.Random = field(default_factory=random.SystemRandom)  # decides which client ticks
    floor: MinimumSlot = field(default_factory=MinimumSlot)  # outlives restarts (M9)
    decode: Callable[[bytes], Coordinator] = decode_state  # decodes the states that are shown; called in a thread


class RecordFollower(Progress):
    """Follows the record of a run while `run` runs, for who joins over this link."""

    def __init__(self, link: RpcLink, sink: EventSink, platform: ChainPlatform) -> None:
        super().__init__(_explain_failure)
        self.view = RecordView(min_slot=0)
        self.waits = NamedWaits(sink)
        self._sink = sink
        self.has_place = False  # the record has shown the own join, and no withdrawal followed
        self.has_withdrawn = False
        self._link = link
        self._platform = platform
        self._kept: object = None  # the phase that the floor names
        self._kept_slot = 0
        self._keeping = trio.Lock()
        self._read_at_s = -math.inf  # when an endpoint showed anything last
        self._is_known = False  # the run, since a record was shown
        self._told: dict[str, int] = {}  # by endpoint: which record it was said to contradict

    async def begin(self) -> None:
        """Find out how new the first record must be (M9)."""
        self.waits.start(types.Wait.BACKEND, "an RPC endpoint to answer", "connect")
        known = await trio.to_thread.run_sync(self._platform.floor.read)
        self.view.min_slot = max(known, await self._link.get_newest_slot())  # M9
        self.waits.start(types.Wait.BACKEND, f"an RPC endpoint at slot {self.view.min_slot} or later", "connect")

    async def run(self) -> None:
        async with open_plain_nursery() as nursery:
            for task in (self._watch, self._watch_silence, self._end_forks):
                nursery.start_soon(task)

    async def _watch(self) -> None:
        async with aclosing(self._link.readings()) as readings:
            async for reading in readings:
                self._read_at_s = trio.current_time()
                self._take(reading)
        raise BackendError("the chain is not watched any more")

    def _take(self, reading: Reading) -> None:
        match self.view.take(reading):
            case Choice.NEW:
                self._check_own_slot()
                self._note_usable()
            case Choice.AGREED:
                self._note_usable()
            case Choice.UNREADABLE:
                self._sink.emit(types.StateMismatch(reason=f"{reading.endpoint}: {self.view.problem}"))
            case Choice.FORKED:
                if self._told.get(reading.endpoint) != self.view.version:
                    self._told[reading.endpoint] = self.view.version
                    self._sink.emit(types.StateMismatch(reason=f"{reading.endpoint}: {self.view.problem}"))
                if not self.view.is_usable:
                    what = "the RPC endpoints to agree on the run's record, or to show the same one for long"
                    self.waits.start(types.Wait.BACKEND, what, "go on")
                    self.note_change()
            case Choice.OTHER_RUN:
                raise BackendError(self.view.problem)
            case Choice.OLD if self.view.nonce < 0:
                what = f"an RPC endpoint at slot {self.view.min_slot}, which this client has seen already"
                self.waits.start(types.Wait.BACKEND, what, "connect")
            case Choice.KNOWN | Choice.OLD | Choice.UNSUPPORTED:
                if self.view.is_usable:
                    self.waits.end(types.Wait.BACKEND, types.WaitOutcome.CONNECTED)

    def _note_usable(self) -> None:
        if not self._is_known:
            self._is_known = True
            run_id = self.view.state.run_id
            self._sink.emit(types.BackendConnected(run_id=run_id, program="solana"))
        self.waits.end(types.Wait.BACKEND, types.WaitOutcome.CONNECTED)
        self.note_change()

    async def _end_forks(self) -> None:
        """Go on with what most endpoints show where they contradict each other for long: reading again did not help."""
        while True:
            await self.wait_until(lambda: self.view.is_contradicted)
            version, state = self.view.version, self.view.state
            with trio.move_on_after(FORK_S):
                await self.wait_until(lambda: self.view.is_usable)
            if self.view.version == version and self.view.is_contradicted:
                self._end_fork(state)

    def _end_fork(self, before: Coordinator) -> None:
        told = self.view.choose_fork()
        if not self.view.raw:
            raise RunClosed(
                f"run {before.run_id!r} was closed by its owner in step {before.progress.step}: its account is gone "
                "from the chain. This client's snapshots and models stay; `psyche run list` shows which runs there are"
            )
        self._sink.emit(types.StateMismatch(reason=told))
        self.has_place = False  # what it has joined may be gone
        self._check_own_slot()
        self._note_usable()

    async def _watch_silence(self) -> None:
        """Name the wait for endpoints that show nothing, not even the record that is known."""
        started_s = trio.current_time()
        while True:
            await trio.sleep(SILENCE_S / 4)
            if trio.current_time() - max(started_s, self._read_at_s) >= SILENCE_S:
                what = f"an RPC endpoint to show the run's record: none has for {SILENCE_S:.0f} s"
                if self.waits.start(types.Wait.BACKEND, what, "go on"):
                    self._sink.emit(types.BackendLost(reason=what, tries=0))

    def _check_own_slot(self) -> None:
        """End where another machine has taken this wallet's place: else both would take it from each other for ever."""
        slot = find_own_slot(self.view.state, self._link.wallet)
        if slot is None:
            return
        if slot.p2p == self._link.p2p:
            self.has_place = True
        elif self.has_place and not self.has_withdrawn:
            raise BackendError(
                f"another machine takes part with this wallet now, under the p2p key {slot.p2p.hex()}: give each "
                "machine a wallet of its own, or stop the other one"
            )

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        seen = 0
        while True:
            await self.wait_until(lambda: self.view.is_usable and self.view.version != seen)  # noqa: B023
            raw, slot, seen = self.view.raw, self.view.slot, self.view.version
            state = await trio.to_thread.run_sync(self._platform.decode, raw)
            check_version(state)  # P9: it changes only while the run is paused
            await self._remember(state, slot)
            yield state

    async def _remember(self, state: Coordinator, slot: int) -> None:
        """Note what is about to be shown: all endpoints may be behind it when this client starts again (M9)."""
        phase = get_kept_phase(state)
        async with self._keeping:  # several may follow the states at once
            if phase == self._kept or slot < self._kept_slot:
                return
            try:
                await trio.to_thread.run_sync(self._platform.floor.write, slot)
            except BackendError as error:  # F16: not even a full disk ends the client
                self._sink.emit(types.Error(message=str(error), action="remember how far the run was followed"))
            else:
                self._kept, self._kept_slot = phase, slot


def _explain_failure(reason: PsycheError) -> PsycheError:
    is_own = isinstance(reason, RunClosed | ChainReplaced)
    return (type(reason) if is_own else BackendError)(str(reason))
