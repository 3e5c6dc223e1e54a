"""Opened momenta: the own ones, which verifiers ask for, and those of members whose rounds are looked at (V11)."""

import struct
from typing import Final, Protocol

import trio

from psyche.client.engine import actions as act
from psyche.client.runtime.peer_queries import SYNC_TIMEOUT_S
from psyche.client.runtime.trainer_inputs import PayloadCache
from psyche.core.encoding.plan import TransformPlan, decode_plan
from psyche.core.state.bits import get_members
from psyche.core.state.state import ZERO32, Coordinator
from psyche.errors import NetworkError, WireError
from psyche.modeling.verification.openings import decode_pair, draw_chunks, get_pair_bytes
from psyche.wire.ports import Network, SyncReply, SyncRequest

KEPT_ROUNDS: Final = 5  # a jury asks for it four rounds after the one that it is of
RETRY_S: Final = 1.0
MOST: Final = 64  # openings that are offered
_NOT_FOUND: Final = SyncReply(found=False)
_ANSWER: Final = struct.Struct("<32sQ")


class OpeningContext(Protocol):
    @property
    def state(self) -> Coordinator: ...

    def feed(self, event: act.EngineEvent) -> None: ...


class Openings:
    def __init__(self, network: Network, payloads: PayloadCache, context: OpeningContext) -> None:
        self._network = network
        self._payloads = payloads
        self._x = context
        self._plan: TransformPlan | None = None
        self._offered: dict[tuple[int, int, int], bytes] = {}  # epoch, height, member -> the answer

    def set_plan(self, raw: bytes) -> None:
        self._plan = decode_plan(raw)

    async def offer(self, epoch: int, height: int, member: int, raw: bytes) -> bytes:
        """Let peers fetch the opening of this member's result; return its blob id."""
        blob = await self._network.provide(raw, expires=(epoch, height + KEPT_ROUNDS))
        self._offered[epoch, height, member] = _ANSWER.pack(blob, len(raw))
        while len(self._offered) > MOST:
            self._offered.pop(min(self._offered))
        return blob

    def answer(self, request: SyncRequest) -> SyncReply:
        named = [(request.epoch, request.height, member) for member in get_members(request.have)]
        known = self._offered.get(named[0]) if len(named) == 1 else None
        return _NOT_FOUND if known is None else SyncReply(found=True, items=(known,))

    async def ask(self, action: act.AskOpening) -> None:
        """Ask again until the deadline: the member may not have reached the round yet."""
        is_forged = False
        while True:
            for key in action.keys:
                try:
                    if (blob := await self._ask_one(key, action)) is not None:
                        self._x.feed(act.OpeningArrived(action.epoch, action.height, action.member, blob))
                        return
                except NetworkError:
                    continue
                except WireError:
                    is_forged = is_forged or key == action.keys[0]
            if is_forged or trio.current_time() + RETRY_S > action.deadline:
                arrived = act.OpeningArrived(action.epoch, action.height, action.member, ZERO32, is_forged)
                self._x.feed(arrived)
                return
            await trio.sleep(RETRY_S)

    async def _ask_one(self, key: bytes, action: act.AskOpening) -> bytes | None:
        """The blob id of the opening once it is here and checked; None if this peer does not have it.

        Raises:
            NetworkError: the peer cannot be asked, or does not deliver.
            WireError: it is not what the member has committed to.
        """
        if self._plan is None:
            return None
        have = 1 << action.member
        request = SyncRequest("opening", epoch=action.epoch, height=action.height, have=have)
        reply = await self._network.ask(key, request, timeout_s=SYNC_TIMEOUT_S)
        if not reply.found:
            return None
        link, plan = action.link, self._plan
        places = draw_chunks(plan, link.seed, self._x.state.config.opened_chunks)
        size_bytes = get_pair_bytes(plan, places, link.momentum_before)
        if len(reply.items) != 1 or len(reply.items[0]) != _ANSWER.size:
            raise WireError("opening: the answer is not a blob id and a size")
        blob, told_bytes = _ANSWER.unpack(reply.items[0])
        if told_bytes != size_bytes:
            raise WireError(f"opening: {told_bytes} bytes, must be {size_bytes} for {len(places)} chunks")
        raw = await self._network.fetch(blob, [key], size_bytes=size_bytes, deadline=action.deadline)
        await trio.to_thread.run_sync(decode_pair, plan, places, link.momentum_before, link.momentum_after, raw)
        self._payloads.keep(blob, action.epoch, action.height + KEPT_ROUNDS, raw)
        return await self.offer(action.epoch, action.height, action.member, raw)
