"""Dishonest members: small programs beside an honest engine, at its ports to the server and to the peers.

Each is simpler than a peer: it waits for an occasion and says something else than the engine wanted to.
What colluding members say depends on the round alone, so that they say the same.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from psyche.core.bloom import BLOOM_BYTES
from psyche.core.header import RESULT_TAG
from psyche.core.limits import BLOOM_BITS
from psyche.core.messages import Gossip, Result, WitnessMessage
from psyche.core.state import RoundFlag, WitnessFlag
from psyche.core.timeline import get_attested_round
from psyche.errors import BackendError
from psyche.network.memory import MemoryNode
from psyche.server.backend import TcpBackend
from psyche.simulator.liars_forge import STRANGE_COUNT, Forge, Impersonate, Swap, build_result, find_record
from psyche.simulator.lies import Liar, Lies
from psyche.wire.crypto import blake3_hash, blob_id_of
from psyche.wire.gossip import decode_gossip, encode_gossip, sign_gossip
from psyche.wire.ports import Backend, Network

if TYPE_CHECKING:
    from psyche.simulator.hosts import ClientHost


def _derive(what: str, message: WitnessMessage) -> bytes:
    return blake3_hash(b"lie", what.encode(), message.epoch.to_bytes(2, "little"), message.height.to_bytes(4, "little"))


class ClaimAll(Lies):
    """Holds everybody's result, has heard everybody, with a root that nobody else has (B8)."""

    kind = "claim_all"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        attested = get_attested_round(host.get_state())
        held = attested.members if attested is not None else 0
        root = _derive("root", message) if held else bytes(32)
        return replace(message, held=held, heard=host.get_state().current.members, results_root=root)


class ClaimNone(Lies):
    """Holds nothing and has heard nobody (B8)."""

    kind = "claim_none"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        del host
        return replace(message, held=0, heard=0, results_root=bytes(32), broadcast_bloom=bytes(BLOOM_BYTES))


class DenyOne(Lies):
    """Never heard of one honest member, and does not hold its result (B8, B18)."""

    kind = "deny_one"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        victim = ~(1 << host.get_victim())
        held = message.held & victim
        root = _derive("root without", message) if held else bytes(32)
        return replace(message, held=held, heard=message.heard & victim, results_root=root)


class FullBloom(Lies):
    """A bloom filter that contains everything: refused by its bits (B8, W4)."""

    kind = "full_bloom"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        del host
        return replace(message, broadcast_bloom=b"\xff" * BLOOM_BYTES)


class LieBloom(Lies):
    """A bloom filter of as many bits as allowed, all of them wrong, and a root that leaves it to the blooms (B10)."""

    kind = "lie_bloom"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        del host
        if not message.held:
            return message
        bits = 7 * message.held.bit_count()
        bloom = sum(1 << place for place in self.rng.sample(range(BLOOM_BITS), min(bits, 1_400)))
        raw = bloom.to_bytes(BLOOM_BYTES, "little")
        return replace(message, broadcast_bloom=raw, results_root=_derive("root", message))


class LieRoot(Lies):
    """A root that stands for no list."""

    kind = "lie_root"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        del host
        return replace(message, results_root=_derive("root", message)) if message.held else message


class LieDigest(Lies):
    """A digest of weights that nobody has."""

    kind = "lie_digest"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage:
        del host
        flags = message.flags & ~WitnessFlag.NO_DIGEST | WitnessFlag.FULL_DIGEST
        return replace(message, state_digest=_derive("digest", message), flags=flags)


class NoEnd(Lies):
    """Works like everybody, but leaves no record in the rounds that end an epoch (B20)."""

    kind = "no_end"

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage | None:
        is_drain = host.get_state().current.flags & RoundFlag.DRAIN
        return None if is_drain else message


class Accuse(Lies):
    """Accuses every other member in every round, of silence and of two results for one round (B18)."""

    kind = "accuse"

    async def run(self, host: "ClientHost") -> None:
        seen = (-1, -1)
        while True:
            await trio.sleep(0.5)
            state = host.get_state()
            now = (state.progress.epoch, state.current.height)
            if not state.in_round or now == seen or host.backend is None:
                continue
            seen = now
            for member, client in enumerate(state.clients):
                await self.tell(host.backend.health_check(*now, member))
                if client.p2p != host.key and await self.tell(self._report(host, host.backend, member)):
                    self.believed += 1

    async def _report(self, host: "ClientHost", backend: TcpBackend, member: int) -> None:
        """A result that the member signed in the last round, and the same with other figures."""
        record = find_record(host, host.get_state().current.height - 1)
        signed = list(record.signed.get(member, {}).values()) if record is not None else []
        if len(signed) != 1:
            raise BackendError("there is nothing to report: it signed nothing, or two results indeed")
        message = decode_gossip(signed[0])
        other = replace(message, body=build_result(message.body, train_count=STRANGE_COUNT))
        await backend.report_equivocation(signed[0], encode_gossip(other))


class _ResultLies(Lies):
    """Changes how a result is announced."""

    def decode(self, raw: bytes) -> Gossip | None:
        """The result in a message, or None for other kinds."""
        return decode_gossip(raw) if raw.startswith(RESULT_TAG) else None

    def sign_other(self, host: "ClientHost", message: Gossip, **changes: Any) -> bytes:
        """The same result under another header, signed."""
        body = build_result(message.body, **changes)
        signed = sign_gossip(host.identity, message.run_uid, message.epoch, message.height, message.member, body)
        return encode_gossip(signed)


class Equivocate(_ResultLies):
    """Two different results for one round: one to some peers, the other to the rest (B6)."""

    kind = "equivocate"

    async def publish(self, host: "ClientHost", node: Network, raw: bytes) -> None:
        message = self.decode(raw)
        if message is None or not self.is_due():
            await node.publish(raw)
            return
        other = self.sign_other(host, message, train_count=77)
        here = sorted(node.connected())
        for number, key in enumerate(here):
            host.send_to(key, raw if number % 2 else other)


class EquivocateLoudly(_ResultLies):
    """Two different results for one round, both to everybody (B6, R7)."""

    kind = "equivocate_loudly"

    async def publish(self, host: "ClientHost", node: Network, raw: bytes) -> None:
        await node.publish(raw)
        message = self.decode(raw)
        if message is not None and self.is_due():
            await node.publish(self.sign_other(host, message, train_count=78))


class Replay(_ResultLies):
    """Sends its first result again in every round, as it was and signed for the new round (B2)."""

    kind = "replay"
    first: bytes | None = None

    async def publish(self, host: "ClientHost", node: Network, raw: bytes) -> None:
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
        again = sign_gossip(host.identity, message.run_uid, message.epoch, message.height, message.member, old.body)
        self.told += 1
        await node.publish(encode_gossip(again))


class Withhold(Lies):
    """Announces results whose payload nobody can have (B7)."""

    kind = "withhold"

    def change_body(self, host: "ClientHost", body: bytes) -> bytes | None:
        del host
        return None if self.is_due() else body


class Garbage(Lies):
    """Trains payloads that are none, under their right name (F15, R4)."""

    kind = "garbage"

    def change_payload(self, payload: bytes) -> bytes:
        return self.rng.randbytes(len(payload)) if self.is_due() else payload


class Silent(Lies):
    """Says nothing to its peers, but follows the run (F10)."""

    kind = "silent"

    async def publish(self, host: "ClientHost", node: Network, raw: bytes) -> None:
        del host, node, raw
        self.told += 1


class Mute(Lies):
    """Trains and talks, but never announces a result; those who ask it for what they lack are told."""

    kind = "mute"

    async def publish(self, host: "ClientHost", node: Network, raw: bytes) -> None:
        del host
        if raw.startswith(RESULT_TAG):
            self.told += 1
            return
        await node.publish(raw)


class Flood(Lies):
    """Every 15 s more junk that looks like something, within 2 s, than its peers take of anybody (B16)."""

    kind = "flood"

    async def run(self, host: "ClientHost") -> None:
        while True:
            await trio.sleep(13.0)
            for _ in range(8 if self.is_due() else 0):
                await trio.sleep(0.25)
                await self._send(host, 25)

    async def _send(self, host: "ClientHost", count: int) -> None:
        run_uid = host.get_state().run_uid
        for _ in range(count):
            junk = RESULT_TAG + run_uid + self.rng.randbytes(599 - len(RESULT_TAG) - len(run_uid))
            if host.network is not None:
                await host.network.publish(junk)


KINDS: Final[dict[str, type[Lies]]] = {
    cls.kind: cls
    for cls in (
        ClaimAll, ClaimNone, DenyOne, FullBloom, LieBloom, LieRoot, LieDigest, NoEnd, Forge, Accuse, Equivocate,
        EquivocateLoudly,
        Replay, Withhold, Garbage, Silent, Mute, Flood, Impersonate, Swap,
    )
}  # fmt: skip


class _Wrapped:
    """A port that hands everything on but what a subclass defines."""

    def __init__(self, inner: Any, host: "ClientHost") -> None:
        self._inner = inner
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _LyingBackend(_Wrapped):
    async def witness(self, message: WitnessMessage) -> None:
        for lies in self._host.lies:
            changed = lies.change_witness(self._host, message)
            if changed is not message and lies.is_due():
                if changed is None:
                    return
                message = changed
        await self._inner.witness(message)


class _LyingNetwork(_Wrapped):
    async def publish(self, message: bytes) -> None:
        programs = [lies for lies in self._host.lies if type(lies).publish is not Lies.publish]
        if programs:
            await programs[0].publish(self._host, self._inner, message)
        else:
            await self._inner.publish(message)

    async def provide(self, data: bytes | Path, *, expires: tuple[int, int] | None) -> bytes:
        for lies in self._host.lies:
            if isinstance(data, bytes) and expires is not None:
                changed = lies.change_body(self._host, data)
                if changed is None:
                    return blob_id_of(data)
                data = changed
        return await self._inner.provide(data, expires=expires)


class _HonestBackend(_Wrapped):
    async def witness(self, message: WitnessMessage) -> None:
        await self._inner.witness(message)
        self._host.world.invariants.check_answered(self._host.name, message)


def wrap_backend(backend: TcpBackend, host: "ClientHost") -> Backend:
    """The client's way to the server, as its lies have it; what the server answers to others must be true."""
    return cast("Backend", _LyingBackend(backend, host) if host.lies else _HonestBackend(backend, host))


def wrap_network(node: MemoryNode, host: "ClientHost") -> Network:
    """The client's way to its peers, as its lies have it."""
    return cast("Network", _LyingNetwork(node, host)) if host.lies else node


def build_lies(liar: Liar, rng: random.Random) -> Lies:
    """The program of a liar."""
    return KINDS[liar.kind](liar.share, rng)
