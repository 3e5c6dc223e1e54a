"""The shell around the engine, action by action: what fails is an event, never the client's death (F16, F26, P8)."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kits.log import Log, make
from runtime_kit import KEYS, FakeData, FakeNetwork, build_apply
from trio.testing import MockClock

from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.shell import TURN_S, Parts, Shell
from psyche.client.runtime.weights import uploading
from psyche.core.state.errors import DigestMismatch, WrongRound
from psyche.core.state.messages import NameCheckpoint, WarmupWitness, Withdraw
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator, Mark
from psyche.errors import (
    BackendError,
    ChainReplaced,
    NetworkError,
    PsycheError,
    RunClosed,
    VersionMismatch,
    WireError,
)
from psyche.telemetry import types
from psyche.telemetry.types import LeaveCause
from psyche.testing.builders import build_hash
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.wire.address_record import AddressRecord
from psyche.wire.crypto import Identity, blob_id_of, compute_state_digest
from psyche.wire.ports import NetworkStatistics, SyncReply, SyncRequest

LIMIT_S = 1_000
BODY = b"a payload"
BLOB = blob_id_of(BODY)


class SilentEngine(RoundEngine):
    def __init__(self) -> None:
        super().__init__(Identity(build_hash("identity")))
        self.events: list[act.EngineEvent] = []
        self.heard: list[bytes] = []
        self.ticks: list[float] = []
        self.turns: list[tuple[float, int]] = []
        self.crowd = False
        self.deadline: float | None = None

    def get_deadline(self, now: float) -> float | None:
        return self.deadline if self.deadline is not None and self.deadline > now else None

    @property
    def has_many_members(self) -> bool:
        return self.crowd

    def on_events(self, events: Iterable[act.EngineEvent], now: float) -> list[act.Action]:
        told = list(events)
        self.events += told
        if told:
            self.turns.append((now, len(told)))
        else:
            self.ticks.append(now)
        return []

    def on_messages(self, raws: Iterable[bytes], now: float) -> list[act.Action]:
        told = list(raws)
        self.heard += told
        self.turns.append((now, len(told)))
        return []

    def on_answer(self, items: Sequence[bytes], now: float) -> list[act.Action]:
        self.heard += items
        return []


@dataclass
class FakeBackend:
    refuse: Exception | None = None
    sent: list[tuple[str, Any]] = field(default_factory=list)
    answer_s: float = 0.0
    given_up: trio.Event = field(default_factory=trio.Event)
    book: tuple[AddressRecord, ...] = ()
    reason: PsycheError = field(default_factory=lambda: BackendError("the server refuses this key"))

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        await self.given_up.wait()
        raise self.reason
        yield Coordinator()  # pragma: no cover

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any) -> None:
            self.sent.append((name, arguments))
            await trio.sleep(self.answer_s)
            if self.refuse is not None:
                raise self.refuse

        return call

    def get_addresses(self) -> Sequence[AddressRecord]:
        return self.book


@dataclass
class ShellNetwork(FakeNetwork):
    reply: SyncReply | None = field(default_factory=lambda: SyncReply(True, (b"one", b"two")))
    blobs: dict[bytes, bytes] = field(default_factory=lambda: {BLOB: BODY})
    provide_s: float = 0.0
    published: list[bytes] = field(default_factory=list)
    addresses: list[tuple[AddressRecord, ...]] = field(default_factory=list)

    def set_sync_handler(self, _handler: object) -> None:
        pass

    def set_addresses(self, records: tuple[AddressRecord, ...]) -> None:
        self.addresses.append(records)

    def messages(self) -> trio.MemoryReceiveChannel[tuple[bytes, bytes]]:
        self._send, receive = trio.open_memory_channel[tuple[bytes, bytes]](100)
        return receive

    def address_record(self) -> str:
        return "record"

    def expire(self, epoch: int, height: int) -> None:
        pass

    def statistics(self) -> NetworkStatistics:
        return NetworkStatistics()

    async def publish(self, raw: bytes) -> None:
        self.published.append(raw)

    async def provide(self, data: bytes | Path, *, expires: object) -> bytes:
        await trio.sleep(self.provide_s)
        return blob_id_of(data.read_bytes() if isinstance(data, Path) else data)


@dataclass
class Place:
    root: Path
    engine: SilentEngine = field(default_factory=SilentEngine)
    backend: FakeBackend = field(default_factory=FakeBackend)
    network: ShellNetwork = field(default_factory=ShellNetwork)
    data: FakeData = field(default_factory=FakeData)
    log: Log = field(default_factory=Log)
    check: Callable[[bytes], None] = lambda _body: None
    code: int | None = None
    checkpoint_dir: Path | None = None
    trainer: DummyTrainer = field(default_factory=DummyTrainer)

    def __post_init__(self) -> None:
        parts = Parts(
            engine=self.engine, backend=self.backend, network=self.network, trainer=self.trainer, data=self.data,  # type: ignore[arg-type]
            log=self.log, unix_now=lambda: 1_000_000.0, check_payload=self.call_check,
        )  # fmt: skip
        self.settings = ClientSettings(run_id="run", data_dir=self.root, checkpoint_dir=self.checkpoint_dir)
        self.shell = Shell(parts, self.settings)

    def call_check(self, body: bytes) -> None:
        self.check(body)

    async def run(self) -> None:
        self.code = await self.shell.run()

    async def do(self, *actions: act.Action) -> list[act.EngineEvent]:
        before = len(self.engine.events)
        self.shell._execute(list(actions))
        await trio.sleep(1.0)
        return self.engine.events[before:]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.run)
            await trio.testing.wait_all_tasks_blocked()
            yield place
            nursery.cancel_scope.cancel()


def build_fetch(height: int = 2, commitment: bytes = b"c" * 32) -> act.FetchPayload:
    return act.FetchPayload(0, height, 1, commitment, BLOB, len(BODY), (KEYS[1],), 1e9)


# --- payloads


async def test_a_payload_that_came_is_checked_and_kept(autojump_clock: MockClock, place: Place) -> None:
    """R4."""
    assert await place.do(build_fetch()) == [act.PayloadArrived(b"c" * 32)]
    assert place.shell._payloads.find((BLOB,)) == (BODY,)
    assert place.log.get(types.PayloadReceived)[0].bytes == len(BODY)


async def test_a_payload_that_did_not_come_is_asked_for_again_and_one_that_breaks_a_rule_is_not(
    autojump_clock: MockClock, place: Place
) -> None:
    place.network.fail = NetworkError("no source delivered it")
    (event,) = await place.do(build_fetch())
    assert event == act.PayloadFailed(b"c" * 32, "no source delivered it", refused=False)
    place.network.fail = None

    def refuse(_body: bytes) -> None:
        raise WireError("payload: group 0: index out of range")

    place.check = refuse
    (event,) = await place.do(build_fetch())
    assert event == act.PayloadFailed(b"c" * 32, "payload: group 0: index out of range", refused=True)
    assert place.shell._payloads.find((BLOB,)) is None


async def test_the_own_body_can_be_applied_before_it_is_offered(autojump_clock: MockClock, place: Place) -> None:
    """A lone member's round may close before its blob store has hashed the body."""
    place.network.provide_s = 0.5
    place.shell._execute([act.Announce(b"signed", BODY, BLOB, 0, 0)])
    assert place.shell._payloads.find((BLOB,)) == (BODY,)
    assert place.network.published == []
    await trio.sleep(1.0)
    assert place.network.published == [b"signed"], "announced only once it can be fetched"


async def test_a_client_finds_its_snapshots_wherever_its_models_were_written(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P6: restarted with another --checkpoint-dir, or with none."""
    trainer = DummyTrainer()
    digest = compute_state_digest(ZERO32, trainer.compute_part())
    async with trio.open_nursery() as nursery:
        before = Place(tmp_path / "data", checkpoint_dir=tmp_path / "models", trainer=trainer)
        nursery.start_soon(before.run)
        await trio.testing.wait_all_tasks_blocked()
        (written,) = await before.do(act.WriteSnapshot(0, 3, 4, 12, ZERO32, digest, ZERO32))
        assert isinstance(written, act.SnapshotWritten)
        assert written.reply is not None
        nursery.cancel_scope.cancel()
    for models in (None, tmp_path / "models", tmp_path / "elsewhere"):
        after = Place(tmp_path / "data", checkpoint_dir=models)
        found = await after.shell._loader.find_local(digest)
        assert found is not None, f"--checkpoint-dir {models}"
    assert not (tmp_path / "models").exists(), "only models are written there"


@pytest.mark.whole
async def test_what_was_uploaded_is_named_and_the_end_waits_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10, P8: the upload of the final weights outlasts the time that they are served."""
    uploaded = trio.Event()

    async def push(*_order: object, **_more: object) -> str:
        await uploaded.wait()
        return "c" * 40

    monkeypatch.setattr(uploading, "push_to_hub", push)
    place.settings.hub_repo = "owner/weights"
    asked = await place.shell._answer(KEYS[1], SyncRequest("upload"))
    assert asked.found
    digest = compute_state_digest(ZERO32, place.trainer.compute_part())
    await place.do(act.WriteSnapshot(0, 3, 4, 12, ZERO32, digest, ZERO32))
    place.engine.state.certified = Mark(digest=digest)
    await place.do(
        act.ShareCheckpoint(0, 4, digest), act.Exit(0, "the run is finished", LeaveCause.FINISHED, serve_s=0.1)
    )
    assert place.code is None
    uploaded.set()
    await trio.sleep(1.0)
    source = Checkpoint(CheckpointKind.HUB, "owner/weights", "c" * 40)
    assert place.backend.sent == [("submit", (NameCheckpoint(0, digest, source),))]
    assert place.code == 0
    (shared,) = place.log.get(types.CheckpointShared)
    assert shared.path == f"hf://owner/weights@{'c' * 40}"


# --- F16: disks and quotas


async def test_a_disk_that_is_full_is_an_event(
    autojump_clock: MockClock, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F16."""

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place.shell._replay, "write", fail)
    await place.do(build_fetch(), build_apply(blobs=(BLOB,)))
    await place.do(build_apply(blobs=(BLOB,)))
    assert any("No space left" in f.message for f in place.log.get(types.Error))
    assert place.code is None, "it goes on"
    with trio.fail_after(120):
        await place.shell.wait_for_replay()


async def test_a_set_is_in_the_replay_store_once_waiting_for_it_is_over(
    autojump_clock: MockClock, place: Place
) -> None:
    """S7."""
    await place.do(build_fetch())
    place.shell._execute([build_apply(3, (BLOB,)), act.Expire(0, 50)])
    await place.shell.wait_for_replay()
    stored = place.shell._replay.read(0, 3)
    assert stored is not None
    assert stored[1] == (BODY,), "taken when it was asked for, although its round is over since"


async def test_evidence_is_a_file_for_whoever_wants_to_judge(autojump_clock: MockClock, place: Place) -> None:
    """Section 9, last table."""
    await place.do(types.Evidence(digests={3: b"\1" * 32}, reason="replay contradicts"))
    (path,) = place.root.glob("evidence-epoch-*.json")
    assert json.loads(path.read_text()) == {"digests": {"3": "01" * 32}, "reason": "replay contradicts"}


# --- messages to the coordinator


@pytest.mark.parametrize(
    ("error", "kind"),
    [(WrongRound("round 3 is over"), types.TooLate), (DigestMismatch("other weights"), types.RefusedByCoordinator),
     (BackendError("given up"), types.Error)],
)  # fmt: skip
async def test_what_the_coordinator_refuses_is_an_event(
    autojump_clock: MockClock, place: Place, error: Exception, kind: type[types.Event]
) -> None:
    """T7: others were faster."""
    place.backend.refuse = error
    await place.do(act.Submit(WarmupWitness(0, 1, b"d" * 32)))
    assert len(place.log.get(kind)) == 1
    assert place.code is None


@pytest.mark.parametrize(
    ("reason", "code", "cause"),
    [
        (None, 1, LeaveCause.BACKEND),
        (VersionMismatch("the run wants clients of version 99.0"), 10, LeaveCause.WRONG_VERSION),
        (RunClosed("the run was closed"), RunClosed.exit_code, LeaveCause.BACKEND),
        (ChainReplaced("another genesis hash"), ChainReplaced.exit_code, LeaveCause.BACKEND),
    ],
)
async def test_a_backend_that_gives_up_ends_the_client_with_the_exit_code_of_the_reason(
    autojump_clock: MockClock, place: Place, reason: BackendError | None, code: int, cause: LeaveCause
) -> None:
    if reason is not None:
        place.backend.reason = reason
    place.backend.given_up.set()
    await trio.sleep(5.0)
    assert place.code == code
    (ended,) = place.log.get(types.ClientEnded)
    assert ended.cause is cause
    assert ended.reason == str(place.backend.reason)


# --- peers


# --- leaving


@pytest.mark.parametrize("answer_s", [1.0, 1_000.0])
async def test_stopping_ends_with_code_0_once_the_withdrawal_is_answered_or_soon_without(
    autojump_clock: MockClock, place: Place, answer_s: float
) -> None:
    """F26: within five seconds."""
    place.backend.answer_s = answer_s
    withdraw = act.Submit(Withdraw(0, 1), after=make(types.Withdrew))
    place.shell._execute([withdraw, act.Exit(0, "stopped", LeaveCause.STOPPED)])
    await trio.sleep(3.0)
    assert place.code == 0
    assert place.backend.sent == [("submit", (Withdraw(0, 1), None))]
    assert bool(place.log.get(types.Withdrew)) == (answer_s == 1.0)


async def test_waits_are_logged_in_the_time_of_people(autojump_clock: MockClock, place: Place) -> None:
    place.shell._execute([make(types.WaitStarted, until=trio.current_time() + 60.0)])
    (wait,) = place.log.get(types.WaitStarted)
    assert wait.until == pytest.approx(1_000_060.0, abs=1e-3)


async def test_the_engine_looks_at_the_clock_when_it_last_wanted_to(place: Place, autojump_clock: MockClock) -> None:
    start = trio.current_time()
    place.engine.ticks.clear()
    for wanted in (0.75, 0.5, 0.625):  # what it is told moves the time, back and forth
        place.engine.deadline = start + wanted
        place.shell.feed(act.TrainerLost("told"))
    await trio.sleep(0.7)
    assert place.engine.ticks == [pytest.approx(start + 0.625)]
    await trio.sleep(1.5)
    assert place.engine.ticks == pytest.approx([start + 0.625, start + 1.625]), (
        "and once a second where it wants nothing"
    )


async def test_new_addresses_are_dialed_once_at_the_next_event_or_within_a_second(
    place: Place, autojump_clock: MockClock
) -> None:
    first, second = (AddressRecord(key, ("/memory/1",), 1, bytes(64)) for key in KEYS[:2])
    place.backend.book = (first,)
    place.shell.feed(act.TrainerLost("any event"))
    assert place.network.addresses == [(first,)]
    place.backend.book = (first, second)
    await trio.sleep(3.0)
    assert place.network.addresses == [(first,), (first, second)]


async def send_gossip(place: Place, count: int) -> None:
    """A message every 6 ms."""
    assert place.network._send is not None
    for number in range(count):
        place.network._send.send_nowait((KEYS[1], bytes([number])))
        await trio.sleep(0.006)
    await trio.sleep(1.0)


async def test_what_came_at_the_same_time_is_looked_at_together(place: Place, autojump_clock: MockClock) -> None:
    assert place.network._send is not None
    for number in range(3):
        place.network._send.send_nowait((KEYS[1], bytes([number])))
    await trio.sleep(1.0)
    assert [count for _, count in place.engine.turns] == [3]
    assert place.engine.heard == [b"\0", b"\1", b"\2"]


@pytest.mark.parametrize(("crowd", "turns"), [(False, [1] * 9), (True, [1, 3, 3, 2])])
async def test_a_crowd_is_listened_to_turn_by_turn(
    crowd: bool, turns: list[int], place: Place, autojump_clock: MockClock
) -> None:
    place.engine.crowd = crowd
    await send_gossip(place, 9)
    assert [count for _, count in place.engine.turns] == turns
    assert place.engine.heard == [bytes([number]) for number in range(9)]


async def test_payloads_of_a_crowd_are_told_in_the_next_turn(place: Place, autojump_clock: MockClock) -> None:
    place.engine.crowd = True
    start = trio.current_time()
    events = await place.do(*(build_fetch(commitment=bytes([n]) * 32) for n in range(5)))
    assert {event.commitment for event in events if isinstance(event, act.PayloadArrived)} == {
        bytes([n]) * 32 for n in range(5)
    }
    assert place.engine.turns == [(pytest.approx(start + TURN_S), 5)]
