"""What members open of their momenta is asked for, checked before it counts, and passed on (V11)."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from runtime_kit import KEYS, FakeNetwork

from psyche.client.engine import actions as act
from psyche.client.runtime.openings import Openings
from psyche.client.runtime.trainer_inputs import PayloadCache
from psyche.core.encoding.plan import encode_plan
from psyche.core.state.state import ZERO32, Coordinator
from psyche.errors import NetworkError
from psyche.modeling.verification.openings import MomentumTree, draw_chunks
from psyche.testing.builders import build_hash
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.wire.crypto import blob_id_of
from psyche.wire.ports import SyncReply, SyncRequest

PLAN = DummyTrainer().codec.plan
SEED = build_hash("seed")
GROUPS = [bytes(group.chunks * group.area * 4) for group in PLAN.groups]
TREE = MomentumTree(PLAN, GROUPS)
RAW = TREE.open(draw_chunks(PLAN, SEED, 256), GROUPS)
LINK = act.Link(ZERO32, TREE.root, SEED, 0.1, ZERO32)
TARGET, ACCUSER = KEYS[1], KEYS[2]


class Peers(FakeNetwork):
    async def provide(self, data: bytes | Path, *, expires: object) -> bytes:
        assert expires == (0, 8), "a jury judges four rounds later"
        return await super().provide(data, expires=None)


@dataclass
class Context:
    state: Coordinator = field(default_factory=Coordinator)
    events: list[act.EngineEvent] = field(default_factory=list)

    def feed(self, event: act.EngineEvent) -> None:
        self.events.append(event)


def reply(raw: bytes, size_bytes: int | None = None) -> SyncReply:
    return SyncReply(True, (struct.pack("<32sQ", blob_id_of(raw), len(raw) if size_bytes is None else size_bytes),))


def build(answers: dict[bytes, SyncReply], *raws: bytes) -> tuple[Openings, Peers, PayloadCache, Context]:
    given: Any = {key: lambda _request, one=one: one for key, one in answers.items()}
    peers, payloads, context = Peers(answers=given), PayloadCache(), Context()
    peers.blobs = {blob_id_of(raw): raw for raw in raws}
    network: Any = peers
    openings = Openings(network, payloads, context)
    openings.set_plan(encode_plan(PLAN))
    return openings, peers, payloads, context


async def ask(openings: Openings, context: Context, *keys: bytes) -> act.OpeningArrived:
    await openings.ask(act.AskOpening(0, 3, 5, keys, LINK, trio.current_time()))
    (arrived,) = context.events
    assert isinstance(arrived, act.OpeningArrived)
    assert (arrived.epoch, arrived.height, arrived.member) == (0, 3, 5)
    return arrived


async def test_what_is_under_the_roots_is_kept_and_served_to_others() -> None:
    openings, _, payloads, context = build({TARGET: reply(RAW)}, RAW)
    arrived = await ask(openings, context, TARGET)
    assert payloads.find((arrived.opening,)) == (RAW,)
    asked = SyncRequest("opening", height=3, have=1 << 5)
    assert openings.answer(asked) == reply(RAW)
    for other in (SyncRequest("opening", height=3, have=1 << 5 | 1), SyncRequest("opening", height=4, have=1 << 5)):
        assert not openings.answer(other).found


@pytest.mark.parametrize(
    ("answer", "raw"),
    [
        (SyncReply(True, (b"",)), b""),
        (SyncReply(True), b""),
        (reply(RAW, 1 << 62), b""),
        (reply(RAW[:-1]), RAW[:-1]),
        (reply(bytes([1]) + RAW[1:]), bytes([1]) + RAW[1:]),
    ],
)
async def test_what_is_not_is_forged_and_no_endless_body_is_fetched(answer: SyncReply, raw: bytes) -> None:
    openings, _, _, context = build({TARGET: answer}, raw)
    arrived = await ask(openings, context, TARGET)
    assert (arrived.opening, arrived.is_forged) == (ZERO32, True)


@pytest.mark.parametrize("fail", [None, NetworkError("no answer")])
async def test_who_does_not_answer_or_has_none_has_forged_nothing(fail: NetworkError | None) -> None:
    openings, peers, _, context = build({TARGET: SyncReply(found=False)})
    peers.fail = fail
    arrived = await ask(openings, context, TARGET)
    assert (arrived.opening, arrived.is_forged) == (ZERO32, False)


async def test_the_accuser_is_asked_too_and_what_it_forges_is_not_the_members() -> None:
    openings, _, _, context = build({ACCUSER: reply(RAW)}, RAW)
    assert (await ask(openings, context, TARGET, ACCUSER)).opening == blob_id_of(RAW)
    openings, _, _, context = build({ACCUSER: reply(RAW, 7)})
    assert not (await ask(openings, context, TARGET, ACCUSER)).is_forged
