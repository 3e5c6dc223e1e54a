"""Dishonest members: small programs that sit between an honest engine and its ports to the server and the peers.

Each is simpler than a peer: it waits for an opportunity and sends something else than the engine wanted to.
What colluding members send depends on the round alone, so that they agree.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import trio

from psyche.backends.port import Backend
from psyche.client.engine.witness_report import build_witness, compute_report
from psyche.core.committee.bloom import BLOOM_BYTES
from psyche.core.encoding.gossip import RESULT_TAG
from psyche.core.state.gossip import Evidence, Gossip, Result
from psyche.core.state.limits import BLOOM_BITS
from psyche.core.state.messages import (
    HealthCheck,
    JudgeChallenge,
    Message,
    ReportEquivocation,
    WarmupWitness,
    WitnessMessage,
)
from psyche.core.state.state import RoundFlag, WitnessFlag
from psyche.core.state.timeline import get_attested_round
from psyche.errors import BackendError
from psyche.network.memory.node import MemoryNode
from psyche.sim.byzantine.cheats import CHEATS
from psyche.sim.byzantine.forgery import STRANGE_COUNT, Forge, Impersonate, OtherFiles, Swap, build_result
from psyche.sim.byzantine.program import ByzantineMember, ByzantineProgram, Participant
from psyche.sim.byzantine.score_lies import SCORE_LIES
from psyche.wire.crypto import blake3_hash, blob_id_of
from psyche.wire.gossip import decode_gossip, encode_gossip, sign_gossip
from psyche.wire.ports import Network, Proof, SyncHandler, SyncReply, SyncRequest


def _derive(what: str, message: WitnessMessage) -> bytes:
    return blake3_hash(b"lie", what.encode(), message.epoch.to_bytes(2, "little"), message.height.to_bytes(4, "little"))


class ClaimAll(ByzantineProgram):
    """Claims to hold every result and to have heard everybody, with a root that nobody else has (B8)."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        attested = get_attested_round(self.host.get_state())
        held = attested.members if attested is not None else 0
        root = _derive("root", message) if held else bytes(32)
        return replace(message, held=held, heard=self.host.get_state().current.members, results_root=root)


class ClaimNone(ByzantineProgram):
    """Claims to hold nothing and to have heard nobody (B8)."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        return replace(message, held=0, heard=0, results_root=bytes(32), broadcast_bloom=bytes(BLOOM_BYTES))


class NothingFirst(ByzantineProgram):
    """Reports before everybody else that it holds nothing, so that others may follow (W6)."""

    async def run(self) -> None:
        seen = (-1, -1)
        while True:
            await trio.sleep(0.1)
            state = self.host.get_state()
            now = (state.progress.epoch, state.current.height)
            record = self.host.find_record(state.current.height)
            member = self.host.member
            if not state.in_round or now == seen or record is None or member is None or not self.host.backend:
                continue
            seen = now
            if member in record.witnesses and self.rng.random() < self.share:
                nothing = build_witness(
                    record, member, compute_report(None), digest=None, is_full=False, is_complete=False,
                    now=record.started_at, metadata=b"",
                )  # fmt: skip
                await self.tell(self.host.backend.submit(nothing))


class DenyOne(ByzantineProgram):
    """Claims that it has not heard from one honest member and does not hold its result (B8, B18)."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        victim = ~(1 << self.host.get_victim())
        held = message.held & victim
        root = _derive("root without", message) if held else bytes(32)
        return replace(message, held=held, heard=message.heard & victim, results_root=root)


class FullBloom(ByzantineProgram):
    """Sends a Bloom filter that contains everything: refused because of its number of set bits (B8, W4)."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        return replace(message, broadcast_bloom=b"\xff" * BLOOM_BYTES)


class LieBloom(ByzantineProgram):
    """Sends a Bloom filter with as many bits as allowed, all wrong, and a root that forces the bloom path (B10)."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        if not message.held:
            return message
        bits = 7 * message.held.bit_count()
        bloom = sum(1 << place for place in self.rng.sample(range(BLOOM_BITS), min(bits, 1_400)))
        raw = bloom.to_bytes(BLOOM_BYTES, "little")
        return replace(message, broadcast_bloom=raw, results_root=_derive("root", message))


class LieRoot(ByzantineProgram):
    """Reports a results root that belongs to no list."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        return replace(message, results_root=_derive("root", message)) if message.held else message


class LieDigest(ByzantineProgram):
    """Reports a digest of weights that nobody has."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage:
        flags = message.flags & ~WitnessFlag.NO_DIGEST | WitnessFlag.FULL_DIGEST
        return replace(message, state_digest=_derive("digest", message), flags=flags)


class NoEnd(ByzantineProgram):
    """Works like an honest member, but sends no witness record in the rounds that end an epoch (B20)."""

    def change_witness(self, message: WitnessMessage) -> WitnessMessage | None:
        is_drain = self.host.get_state().current.flags & RoundFlag.DRAIN
        return None if is_drain else message


class Accuse(ByzantineProgram):
    """Accuses every other member in every round of silence and of equivocation (B18)."""

    async def run(self) -> None:
        seen = (-1, -1)
        while True:
            await trio.sleep(0.5)
            state = self.host.get_state()
            now = (state.progress.epoch, state.current.height)
            if not state.in_round or now == seen or not self.host.backend:
                continue
            seen = now
            for member, client in enumerate(state.clients):
                await self.tell(self.host.backend.submit(HealthCheck(*now, member)))
                if client.p2p != self.host.key and await self.tell(self._report(self.host.backend, member)):
                    self.believed += 1

    async def _report(self, backend: Backend, member: int) -> None:
        """A result that the member signed in the last round, and the same with changed figures."""
        record = self.host.find_record(self.host.get_state().current.height - 1)
        signed = list(record.signed.get(member, {}).values()) if record is not None else []
        if len(signed) != 1:
            raise BackendError("nothing to report: the member signed no result, or really signed two")
        message = decode_gossip(signed[0])
        other = replace(message, body=build_result(message.body, train_count=STRANGE_COUNT))
        report = ReportEquivocation(message.epoch, message.height, member)
        await backend.submit(report, Evidence(signed[0], encode_gossip(other)))


class _ResultProgram(ByzantineProgram):
    """Changes how a result is announced."""

    def decode(self, raw: bytes) -> Gossip | None:
        return decode_gossip(raw) if raw.startswith(RESULT_TAG) else None

    def sign_other(self, message: Gossip, **changes: Any) -> bytes:
        body = build_result(message.body, **changes)
        signed = sign_gossip(self.host.identity, message.run_uid, message.epoch, message.height, message.member, body)
        return encode_gossip(signed)


class Equivocate(_ResultProgram):
    """Two different results for one round: one to some peers, the other to the rest (B6)."""

    async def publish(self, node: Network, raw: bytes) -> None:
        message = self.decode(raw)
        if message is None or not self.is_due():
            await node.publish(raw)
            return
        other = self.sign_other(message, train_count=77)
        here = sorted(node.connected())
        for number, key in enumerate(here):
            self.host.send_to(key, raw if number % 2 else other)


class EquivocateLoudly(_ResultProgram):
    """Two different results for one round, both to everybody (B6, R7)."""

    async def publish(self, node: Network, raw: bytes) -> None:
        await node.publish(raw)
        message = self.decode(raw)
        if message is not None and self.is_due():
            await node.publish(self.sign_other(message, train_count=78))


class Replay(_ResultProgram):
    """Sends its first result again in every round, both unchanged and re-signed for the new round (B2)."""

    first: bytes | None = None

    async def publish(self, node: Network, raw: bytes) -> None:
        message = self.decode(raw)
        if message is None:
            await node.publish(raw)
            return
        if self.first is None:
            self.first = raw
            await node.publish(raw)
            return
        await node.publish(self.first)
        old = decode_gossip(self.first)
        assert isinstance(old.body, Result), "kept as a result"
        again = sign_gossip(
            self.host.identity, message.run_uid, message.epoch, message.height, message.member, old.body
        )
        self.told += 1
        await node.publish(encode_gossip(again))


class Withhold(ByzantineProgram):
    """Announces results whose payload nobody can fetch (B7)."""

    def change_body(self, body: bytes) -> bytes | None:
        return None if self.is_due() else body


class Garbage(ByzantineProgram):
    """Sends malformed payloads under their correct hash (F15, R4)."""

    def change_payload(self, payload: bytes) -> bytes:
        return self.rng.randbytes(len(payload)) if self.is_due() else payload


class Silent(ByzantineProgram):
    """Sends its peers nothing, but follows the run (F10)."""

    async def publish(self, node: Network, raw: bytes) -> None:
        del node, raw
        self.told += 1


class Idle(Silent):
    """Joins every epoch and reports ready, then does nothing: it answers every request of a peer with not found."""

    def change_witness(self, message: WitnessMessage) -> None:
        del message

    def change_body(self, body: bytes) -> None:
        del body

    def change_reply(self, request: SyncRequest, reply: SyncReply) -> SyncReply:
        del request, reply
        return SyncReply(found=False)


class JoinOnly(Idle):
    """Joins every epoch and never shows any weights."""

    def shows_weights(self) -> bool:
        self.told += 1
        return False


class Mute(ByzantineProgram):
    """Trains and gossips, but never announces a result; it serves peers that ask for results they lack."""

    async def publish(self, node: Network, raw: bytes) -> None:
        if raw.startswith(RESULT_TAG):
            self.told += 1
            return
        await node.publish(raw)


class Flood(ByzantineProgram):
    """Sends, every 15 s and within 2 s, more well-formed junk than its peers accept from one member (B16)."""

    async def run(self) -> None:
        while True:
            await trio.sleep(13.0)
            for _ in range(8 if self.is_due() else 0):
                await trio.sleep(0.25)
                await self._send(25)

    async def _send(self, count: int) -> None:
        run_uid = self.host.get_state().run_uid
        for _ in range(count):
            junk = RESULT_TAG + run_uid + self.rng.randbytes(599 - len(RESULT_TAG) - len(run_uid))
            if self.host.network is not None:
                await self.host.network.publish(junk)


_PROGRAMS: Final = (
    ClaimAll, ClaimNone, NothingFirst, DenyOne, FullBloom, LieBloom, LieRoot, LieDigest, NoEnd, Forge, Accuse,
    Equivocate, EquivocateLoudly, Replay, Withhold, Garbage, Silent, Idle, JoinOnly, Mute, Flood, Impersonate, Swap,
    OtherFiles,
)  # fmt: skip
KINDS: Final[dict[str, type[ByzantineProgram]]] = {  # plans name a program like its class: lie_bloom, LieBloom
    re.sub(r"\B([A-Z])", r"_\1", cls.__name__).lower(): cls for cls in _PROGRAMS
}
ALL_KINDS: Final = KINDS | CHEATS | SCORE_LIES  # with those that lie only in runs that verify, or that measure weights


class _Wrapped:
    """A port that forwards everything that a subclass does not define."""

    def __init__(self, inner: Any, programs: Sequence[ByzantineProgram]) -> None:
        self._inner = inner
        self._programs = programs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _ByzantineBackend(_Wrapped):
    async def submit(self, message: Message, proof: Proof = None) -> None:
        changed: Message | None = message
        shows = all(program.shows_weights() for program in self._programs)
        if isinstance(message, WarmupWitness) and not shows:
            return
        if isinstance(message, WitnessMessage):
            changed = self._change_witness(message)
        if isinstance(message, JudgeChallenge):
            for program in self._programs:
                changed = message = program.change_judgement(message)
        if changed is not None:
            await self._inner.submit(changed, proof)

    def _change_witness(self, message: WitnessMessage) -> WitnessMessage | None:
        for program in self._programs:
            changed = program.change_witness(message)
            if changed is not message and program.is_due():
                if changed is None:
                    return None
                message = changed
        return message


class _ByzantineNetwork(_Wrapped):
    async def publish(self, message: bytes) -> None:
        programs = [one for one in self._programs if type(one).publish is not ByzantineProgram.publish]
        if programs:
            await programs[0].publish(self._inner, message)
        else:
            await self._inner.publish(message)

    def set_sync_handler(self, handler: SyncHandler) -> None:
        async def answer(peer: bytes, request: SyncRequest) -> SyncReply:
            reply = await handler(peer, request)
            for program in self._programs:
                reply = program.change_reply(request, reply)
            return reply

        self._inner.set_sync_handler(answer)

    async def provide(self, data: bytes | Path, *, expires: tuple[int, int] | None) -> bytes:
        for program in self._programs:
            if isinstance(data, bytes) and expires is not None:
                changed = program.change_body(data)
                if changed is None:
                    return blob_id_of(data)
                data = changed
        return await self._inner.provide(data, expires=expires)


def wrap_backend(backend: Backend, programs: Sequence[ByzantineProgram]) -> Backend:
    return cast("Backend", _ByzantineBackend(backend, programs))


def wrap_network(node: MemoryNode, programs: Sequence[ByzantineProgram]) -> Network:
    return cast("Network", _ByzantineNetwork(node, programs))


def build_program(member: ByzantineMember, host: Participant, rng: random.Random) -> ByzantineProgram:
    return ALL_KINDS[member.kind](host, member.share, rng)
