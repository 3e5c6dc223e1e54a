"""Peers are asked a few at a time; whoever does not answer is an answer where one is waited for."""

from dataclasses import dataclass, field
from typing import Any

from kits.log import Log
from runtime_kit import KEYS, FakeNetwork

from psyche.client.engine import actions as act
from psyche.client.runtime.peer_queries import SYNC_PEERS, PeerQueries
from psyche.errors import NetworkError
from psyche.telemetry import types
from psyche.wire.ports import SyncReply

ROOT = b"r" * 32
NOT_CONNECTED = NetworkError("not connected")


@dataclass
class Context:
    """Remembers what came of the questions."""

    events: list[act.EngineEvent] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    log: Log = field(default_factory=Log)

    def feed(self, event: act.EngineEvent) -> None:
        self.events.append(event)

    def take_answer(self, items: tuple[bytes, ...]) -> None:
        self.heard += items


def build(**changes: Any) -> tuple[PeerQueries, FakeNetwork, Context]:
    """Nine peers that answer alike, or fail."""
    values = {"reply": SyncReply(True, (b"one", b"two"))} | changes
    peers, context = FakeNetwork(**values), Context()
    return PeerQueries(peers, context, "client-1"), peers, context  # type: ignore[arg-type]


async def test_a_few_peers_are_asked_for_announcements_and_what_they_say_is_heard() -> None:
    queries, peers, context = build()
    await queries.ask_announcements(act.AskAnnouncements(0, 3, 0b0101))
    assert len({peer for peer, _ in peers.asked}) == SYNC_PEERS
    assert {request.have for _, request in peers.asked} == {0b0101}
    assert sorted(context.heard) == [b"one"] * SYNC_PEERS + [b"two"] * SYNC_PEERS


async def test_asking_for_the_same_again_asks_other_peers_too() -> None:
    """B15: four peers that know nothing are not all there is."""
    queries, peers, context = build(reply=SyncReply(found=False))
    for _ in range(12):
        await queries.ask_announcements(act.AskAnnouncements(0, 3, 0b0101))
    assert {peer for peer, _ in peers.asked} == set(KEYS)
    assert context.heard == []


async def test_a_witness_that_does_not_answer_is_an_answer() -> None:
    """C1: so that others are asked."""
    queries, peers, context = build(fail=NOT_CONNECTED)
    await queries.ask_table(act.AskTable(0, 3, 1, KEYS[1], ROOT))
    assert context.events == [act.TableArrived(0, 3, 1, ROOT, None)]
    assert context.log.kinds == [types.Error]
    peers.fail = None
    await queries.ask_table(act.AskTable(0, 3, 1, KEYS[1], ROOT))
    assert context.events[1:] == [act.TableArrived(0, 3, 1, ROOT, (b"one", b"two"))]


async def test_only_a_promise_to_keep_weights_is_told() -> None:
    """S7: who says no, or nothing, is not one of those who help."""
    queries, peers, context = build(fail=NOT_CONNECTED)
    await queries.ask_weights(act.AskWeights(0, 3, 1, KEYS[1]))
    peers.fail, peers.reply = None, SyncReply(found=False)
    await queries.ask_weights(act.AskWeights(0, 3, 1, KEYS[1]))
    assert context.events == []
    peers.reply = SyncReply(found=True)
    await queries.ask_weights(act.AskWeights(0, 3, 1, KEYS[1]))
    assert context.events == [act.WeightsPromised(0, 3, 1)]
