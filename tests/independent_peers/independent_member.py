"""A member built from docs/peer-protocol.md and docs/peer-training.md alone, in a process of its own.

It has no model folder: it fetches the weights from peers. It trains with a loss that needs no model, half the sum of
the squares of all weights, so its gradient is the weights. Everything else is what every member does. It reads one
line of JSON with what an owner would have told it, and ends with one line of what it saw.
"""

import json
import os
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio
from independent_client import Client, fetch
from independent_messages import Failed, Header, Said, compute_commitment, demand, encode_report, read, sign
from independent_network import Mates, Question, make_host, pack, unpack
from independent_record import (
    CLOSED,
    COOLDOWN,
    DIGEST,
    FINISHED,
    HEALTHY,
    ROOT,
    TRAIN,
    WAITING,
    WARMUP,
    WITNESS,
    Record,
    Round,
    compute_filter,
    compute_root,
    is_inside,
    list_bits,
    to_bitmap,
)
from independent_trainer import (
    Momentum,
    Plan,
    Tensors,
    apply,
    compute_chain,
    compute_digest,
    decode_payload,
    encode_manifest,
    hash3,
    read_manifest,
)
from multiaddr import Multiaddr

ZERO = bytes(32)
POLL_S, AGAIN_S = 0.1, 2.0  # a connection may ask 20 times a second; peers are asked every two seconds
DIAL_S = 3.0  # most peers come by themselves


@dataclass
class Known:
    """What is known of a round: the results and who has finished."""

    round: Round
    shares: dict[int, tuple[int, int]]
    results: dict[int, Said] = field(default_factory=dict)
    equivocators: set[int] = field(default_factory=set)
    finished: dict[int, Said] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    done: set[str] = field(default_factory=set)


@dataclass
class Epoch:
    """One epoch: its rounds, and the digests of the weights."""

    number: int
    member: int
    chain: bytes
    next_height: int = 0
    known: dict[int, Known] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    decided: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)


class Member:
    """Follows the run, and does what its member has to do."""

    def __init__(self, told: dict[str, Any], host: Any) -> None:
        self.told, self.seed = told, bytes.fromhex(told["seed"])
        self.server_key, self.folder = bytes.fromhex(told["server"]), Path(told["folder"])
        self.backend: Any = None
        self.mates = Mates(host, self.seed, self.answer)
        self.record: Any = None
        self.epoch: Epoch | None = None
        self.tensors: Tensors = {}
        self.files: dict[str, bytes] = {}
        self.digest = ZERO  # of the weights
        self.plan: Any = None
        self.momentum: Any = None
        self.bodies: dict[bytes, bytes] = {}
        self.offers: dict[bytes, bytes] = {}  # by digest: manifests, as in an answer
        self.last_commitment, self.trained = ZERO, 0
        self.acts: dict[str, float] = {}  # what must not be repeated at once: when it was done
        self.seen: dict[str, Any] = {"agreed": {}, "applied": {}, "credits": {}, "refused": [], "reports": 0}

    # --- the backend ---------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        self.backend = await trio.to_thread.run_sync(Client, self.told["port"], self.server_key, self.seed)
        greeting = await self.ask(["hello", 4, self.told["run_id"], "an independent client"])
        self.mates.run_uid = greeting[3]
        await self.ask(["subscribe"])

    async def ask(self, body: list[Any]) -> Any:
        code, on_record, found = await trio.to_thread.run_sync(self.backend.ask, body)
        if code and not on_record:
            self.seen["refused"].append([body[:2], code])
        return found

    async def submit(self, number: int, body: bytes, record: list[Any] | None = None) -> None:
        await self.ask(["submit", number, body, None, record])

    def may(self, what: str, after_s: float = AGAIN_S) -> bool:
        now = time.monotonic()
        if now < self.acts.get(what, 0) + after_s:
            return False
        self.acts[what] = now
        return True

    async def run(self) -> None:
        while True:
            await self.ask(["ping"])  # its answer comes behind all pushes
            if self.backend.state:
                self.note_credits()
                self.record = Record(self.backend.state)
                self.mates.allowed = {slot.take(32) for slot in self.record.slots} - {ZERO}
                await self.meet()
                if self.record.run_state == FINISHED:
                    return
                await self.act()
            await trio.sleep(POLL_S)

    def note_credits(self) -> None:
        """Look at every state that came: a Cooldown of a second may be over before this member looks again."""
        while self.backend.passed:
            record, epoch = Record(self.backend.passed.popleft()), self.epoch
            if record.run_state == COOLDOWN and epoch is not None and epoch.number == record.epoch:
                self.seen["credits"][epoch.number] = record.clients[epoch.member].get("I", 80)
                (self.folder / "record.bin").write_bytes(record.raw)

    async def meet(self) -> None:
        """Dial who has a slot and has not come by itself (N3)."""
        for key, found in self.backend.book.items():
            wanted = key in self.mates.allowed and key not in self.mates.connected and key != self.backend.line.key
            since = self.acts.setdefault(f"listed {key.hex()}", time.monotonic())
            if wanted and time.monotonic() > since + DIAL_S and self.may(f"dial {key.hex()}"):
                try:
                    with trio.move_on_after(5):
                        await self.mates.dial(key, found[1][0])
                except Failed:
                    raise
                except Exception:  # noqa: BLE001 - libp2p has many ways to say that nobody is there yet
                    pass

    async def act(self) -> None:
        state = self.record.run_state
        if state == WAITING and not self.record.has_joined(self.backend.line.key) and self.may("join"):
            await self.submit(2, self.backend.line.key + bytes(8), record=self.mates.build_record())
        if state == WARMUP:
            await self.warm_up()
        if state in (TRAIN, WITNESS, COOLDOWN) and self.epoch is not None and self.epoch.number == self.record.epoch:
            await self.take_part(self.epoch)

    # --- weights ----------------------------------------------------------------------------------------------

    async def warm_up(self) -> None:
        member, wanted = self.record.find_member(self.backend.line.key), self.record.certified
        if member is None or wanted == ZERO:
            return
        if self.digest != wanted and self.may("weights", 0.5):
            await self.fetch_weights(wanted)
        if self.digest == wanted and (self.epoch is None or self.epoch.number != self.record.epoch):
            self.epoch = Epoch(self.record.epoch, member, wanted)
            await self.submit(5, struct.pack("<HH", self.record.epoch, member) + wanted)

    async def fetch_weights(self, wanted: bytes) -> None:
        for key in sorted(self.mates.connected):
            items = await self.mates.ask(key, ("manifest", 0, 0, ZERO, wanted))
            if not items:
                continue
            offer = unpack(items[0])
            manifest = offer["manifest"]
            demand(compute_digest(offer["chain"], manifest) == wanted, "a manifest of other weights")
            tensors, files = read_manifest(manifest)
            for name, dims, blob_id in tensors:
                raw = await self.mates.fetch(key, blob_id, 4 * int(np.prod(dims))) or b""
                self.tensors[name] = np.frombuffer(raw, "<f4").reshape(dims).astype(np.float32)
            for name, size, blob_id in files:
                self.files[name] = await self.mates.fetch(key, blob_id, size) or b""
            demand(encode_manifest(self.tensors, self.files) == manifest, "the manifest is not that of its parts")
            self.digest = wanted
            await self.learn_plan()
            return

    async def learn_plan(self) -> None:
        _, decay, topk, chunk, one_bit = self.record.settings
        self.plan = Plan({name: one.shape for name, one in self.tensors.items()}, chunk, topk, one_bit=one_bit)
        self.momentum = Momentum(self.plan, decay)
        self.mates.plan_hash = hash3(self.plan.encode())
        for key in sorted(self.mates.connected):
            await self.mates.say_hello(key)

    def offer_weights(self, epoch: Epoch, height: int) -> None:
        """Keep the epoch's last weights, on disk and for peers."""
        manifest = encode_manifest(self.tensors, self.files)
        last = epoch.known[height].round
        offer = {
            "manifest": manifest, "chain": epoch.chain, "epoch": epoch.number, "step": last.step,
            "data_index": last.get("Q", 200),
        }  # fmt: skip
        self.offers[epoch.digests[height]] = pack(offer)
        for content in (*(one.tobytes() for one in self.tensors.values()), *self.files.values()):
            self.mates.offer(content)
        np.savez(self.folder / "weights.npz", **self.tensors)  # pyright: ignore[reportArgumentType]
        self.digest = epoch.digests[height]

    # --- a round ----------------------------------------------------------------------------------------------

    async def take_part(self, epoch: Epoch) -> None:
        record, height = self.record, self.record.current.height
        for number in range(max(0, height - 3), height + 1):
            found = record.find_round(number)
            if found is not None:
                shares = found.find_shares(record.verification_percent)
                known = epoch.known.setdefault(number, Known(found, shares))
                known.round = found
        self.listen(epoch)
        await self.fetch_payloads(epoch)
        self.decide(epoch)
        self.advance(epoch, height)
        self.compare(epoch)
        if record.is_last_drain(height) and height in epoch.digests and self.once(epoch.known[height], "kept"):
            self.offer_weights(epoch, height)  # before any report of this round (P6)
        if (
            record.run_state != COOLDOWN
            and epoch.member in epoch.known[height].round.members
            and height in epoch.digests
        ):
            await self.work(epoch, height)
        await self.repair(epoch, height)

    async def work(self, epoch: Epoch, height: int) -> None:
        known, state = epoch.known[height], self.record.run_state
        if self.once(known, "ready"):
            await self.say(epoch, height, "ready", epoch.digests[height] + b"\x00")
        if state == TRAIN and epoch.member in known.shares and self.once(known, "trained"):
            await self.train(epoch, height)
        worked = epoch.member not in known.shares or epoch.member in known.results
        if not (worked or state == WITNESS):
            return
        is_due = self.record.is_overlapping or epoch.member not in known.results  # without, a Result stands for it (A2)
        if is_due and self.has_payloads(epoch, height) and self.once(known, "finished"):
            held, _, root = self.list_held(epoch, height) if self.record.is_overlapping else (ZERO, {}, ZERO)
            await self.say(epoch, height, "finished", held + root + to_bitmap(known.results))
        if epoch.member in known.round.find_witnesses():
            await self.report(epoch, height)

    @staticmethod
    def once(known: Known, what: str) -> bool:
        is_new = what not in known.done
        known.done.add(what)
        return is_new

    async def say(self, epoch: Epoch, height: int, kind: str, body: bytes, header: bytes = b"") -> None:
        round_ = (epoch.number, height)
        said = sign(self.seed, kind, self.mates.run_uid, round_, epoch.member, body, header)
        self.note(epoch.known[height], said)
        await self.mates.say(said.raw)

    @staticmethod
    def note(known: Known, said: Said) -> None:
        known.heard.add(said.member)
        if said.kind == "finished":
            known.finished.setdefault(said.member, said)
        elif said.kind == "result" and known.results.setdefault(said.member, said).body != said.body:
            known.equivocators.add(said.member)

    def listen(self, epoch: Epoch) -> None:
        """Take what was heard of this epoch's rounds; keep what is of later ones."""
        kept: list[bytes] = []
        for raw in self.mates.heard:
            said = read(raw, self.mates.run_uid)
            if said is None:
                self.mates.failures.append(f"not a message of this run: {raw[:20]!r}")
                continue
            known = epoch.known.get(said.height)
            if said.epoch > epoch.number or (said.epoch == epoch.number and said.height > self.record.current.height):
                kept.append(raw)
            elif said.epoch == epoch.number and known is not None:
                demand(said.is_signed_by(self.record.clients[said.member].take(32)), "not signed by its member")
                self.note(known, said)
        self.mates.heard = kept

    # --- training ---------------------------------------------------------------------------------------------

    async def train(self, epoch: Epoch, height: int) -> None:
        record, known = self.record, epoch.known[height]
        first, last = known.shares[epoch.member]
        port = int(record.model.take(164, 64).rstrip(b"\x00").decode().rpartition(":")[2])
        asked = [epoch.number, height, first, last]
        (rows,) = await trio.to_thread.run_sync(fetch, port, self.server_key, self.seed, asked)
        demand(rows[0] == 0, f"no samples: {rows}")
        ids = np.frombuffer(rows[5], f"<u{rows[4]}").astype("<u4")
        rate = record.find_rate(known.round.step)
        body = self.momentum.compress(self.tensors, rate)
        self.trained += 1
        blob_id = self.mates.offer(body)
        self.bodies[blob_id] = body
        header = Header(
            record.run_uid, epoch.number, epoch.member, height, known.round.step, get_bits(rate), (first, last),
            self.mates.plan_hash, record.config_hash, epoch.digests[height], hash3(ids.tobytes()),
            self.last_commitment, blob_id, len(body), self.trained, self.backend.line.key,
        ).encode()  # fmt: skip
        self.last_commitment = compute_commitment(header)
        await self.say(epoch, height, "result", self.last_commitment, header)

    # --- others' results --------------------------------------------------------------------------------------

    def check_result(self, epoch: Epoch, known: Known, said: Said) -> Header | None:
        """R3; None while the own digest of the round is not known."""
        header, round_ = Header.decode(said.header), known.round
        if round_.height not in epoch.digests:
            return None
        found = (header.run_uid, header.epoch, header.height, header.member, header.step, header.lr_bits, header.share)
        wanted = (
            self.record.run_uid, epoch.number, round_.height, said.member, round_.step,
            get_bits(self.record.find_rate(round_.step)), known.shares.get(said.member),
        )  # fmt: skip
        demand(found == wanted, f"a header of something else: {found}, not {wanted}")
        key = self.record.clients[said.member].take(32)
        found_hashes = (header.plan_hash, header.config_hash, header.base_digest, header.trainer_key)
        own = (self.mates.plan_hash, self.record.config_hash, epoch.digests[round_.height], key)
        demand(found_hashes == own, f"other hashes than ours in the header of member {said.member}")
        demand(header.body_len == self.plan.size, "a payload of another length")
        return header

    async def fetch_payloads(self, epoch: Epoch) -> None:
        for known in epoch.known.values():
            for said in list(known.results.values()):
                header = self.check_result(epoch, known, said)
                if header is None or header.body_hash in self.bodies:
                    continue
                for key in (header.trainer_key, *sorted(self.mates.connected - {header.trainer_key})):
                    body = await self.mates.fetch(key, header.body_hash, header.body_len)
                    if body is not None:
                        decode_payload(self.plan, body)
                        self.bodies[self.mates.offer(body)] = body
                        break

    def has_body(self, said: Said) -> bool:
        return Header.decode(said.header).body_hash in self.bodies

    def find_attested(self, epoch: Epoch, height: int) -> Known | None:
        attested = self.record.find_attested(height)
        return None if attested is None else epoch.known.get(attested)

    def has_payloads(self, epoch: Epoch, height: int) -> bool:
        attested = self.find_attested(epoch, height)
        return attested is None or all(map(self.has_body, attested.results.values()))

    def list_held(self, epoch: Epoch, height: int) -> tuple[bytes, dict[int, bytes], bytes]:
        """Bitmap, commitments by member, and root."""
        attested = self.find_attested(epoch, height)
        if attested is None:
            return ZERO, {}, ZERO
        single = {m: said for m, said in attested.results.items() if m not in attested.equivocators}
        listed = {m: said.body for m, said in single.items() if m in attested.shares and self.has_body(said)}
        idle = set(attested.finished) - set(attested.shares)
        held = to_bitmap({*listed, *idle} & set(attested.round.members))
        return held, listed, compute_root(epoch.number, attested.round.height, held, listed)

    async def report(self, epoch: Epoch, height: int) -> None:
        known, attested = epoch.known[height], self.find_attested(epoch, height)
        awaited = {m for m in known.round.members if self.record.clients[m].raw[64] == HEALTHY}
        finished = {*known.finished, *(() if self.record.is_overlapping else known.results)}
        due = awaited & set(attested.shares) if attested is not None else set[int]()
        held, listed, root = self.list_held(epoch, height)
        is_complete = awaited <= finished and due <= set(list_bits(held))
        if not is_complete and self.record.run_state != WITNESS:
            return
        if not self.once(known, "reported"):
            return
        bloom = compute_filter(known.round.seed, epoch.member, listed.values())
        raw = encode_report(
            (epoch.number, height), epoch.member, is_complete + 2, held, to_bitmap(known.heard), bloom, root,
            epoch.digests[height],
        )  # fmt: skip
        await self.submit(6, raw)
        self.seen["reports"] += 1

    # --- applying ---------------------------------------------------------------------------------------------

    def decide(self, epoch: Epoch) -> None:
        for known in epoch.known.values():
            attested = self.record.find_attested(known.round.height)
            if known.round.has(CLOSED) and attested in epoch.known and attested not in epoch.decided:
                found = self.find_set(epoch, epoch.known[attested], known.round)
                if found is not None:
                    epoch.decided[attested] = found

    def find_set(self, epoch: Epoch, trained: Known, closed: Round) -> list[tuple[int, bytes]] | None:
        """The set, in the order of applying; None while something is missing."""
        known = {m: said.body for m, said in trained.results.items() if m in trained.shares}
        if closed.has(ROOT):
            held = closed.take(64)
            listed = {m: known[m] for m in list_bits(held) if m in known}
            if compute_root(epoch.number, trained.round.height, held, listed) != closed.take(96):
                return None
        else:
            listed = {m: one for m, one in known.items() if self.is_voted(closed, m, one)}
        return sorted(listed.items(), key=lambda pair: trained.shares[pair[0]])

    @staticmethod
    def is_voted(closed: Round, member: int, commitment: bytes) -> bool:
        holders = [one for one in closed.find_records() if member in list_bits(one.take(8))]
        inside = [one for one in holders if is_inside(one.take(104, 320), closed.seed, one.get("H", 0), commitment)]
        return len(inside) >= closed.quorum

    def advance(self, epoch: Epoch, height: int) -> None:
        """Apply what is due, round by round."""
        while epoch.next_height <= height:
            number = epoch.next_height
            demand(number in epoch.known, f"round {number} was missed")
            pairs: list[tuple[int, bytes]] = []
            round_, applied = epoch.known[number].round, self.record.find_applied(number)
            rate = self.record.find_rate(round_.step)
            if applied is not None:
                if applied not in epoch.decided:
                    return
                pairs = epoch.decided[applied]
                results = [epoch.known[applied].results[member] for member, _ in pairs]
                if not all(map(self.has_body, results)):
                    return
                bodies = [self.bodies[Header.decode(said.header).body_hash] for said in results]
                self.tensors = apply(self.plan, self.tensors, bodies, rate, np.float32(self.record.settings[0]))
                self.seen["applied"][f"{epoch.number}/{applied}"] = sorted(member for member, _ in pairs)
            epoch.chain = compute_chain(epoch.chain, epoch.number, number, round_.step, get_bits(rate), pairs)
            epoch.digests[number] = compute_digest(epoch.chain, encode_manifest(self.tensors, self.files))
            epoch.next_height += 1

    def compare(self, epoch: Epoch) -> None:
        for number, known in epoch.known.items():
            if known.round.has(DIGEST) and number in epoch.digests:
                agrees = known.round.take(128) == epoch.digests[number]
                demand(agrees, f"epoch {epoch.number}, round {number}: our digest is not the agreed one")
                self.seen["agreed"][f"{epoch.number}/{number}"] = True

    # --- questions --------------------------------------------------------------------------------------------

    async def repair(self, epoch: Epoch, height: int) -> None:
        """Ask a peer for announcements that did not come."""
        for number in range(max(0, height - 3), height + 1):
            known = epoch.known.get(number)
            if known is None or not self.may(f"ask {epoch.number} {number}"):
                continue
            have = {m for m in known.round.members if m in known.results and m in known.finished}
            if have >= set(known.round.members):
                continue
            for key in sorted(self.mates.connected):
                question = ("announcements", epoch.number, number, to_bitmap(have), b"")
                self.mates.heard += await self.mates.ask(key, question) or []

    def answer(self, question: Question) -> list[bytes] | None:
        kind, number, height, have, key = question
        if kind == "manifest" and key in self.offers:
            return [self.offers[key]]
        known = self.epoch.known.get(height) if self.epoch is not None and self.epoch.number == number else None
        if kind == "announcements" and known is not None:
            told = (*known.results.values(), *known.finished.values())
            return [said.raw for said in told if said.member not in list_bits(have)] or None
        return None


def get_bits(rate: np.float32) -> int:
    return struct.unpack("<I", rate.tobytes())[0]


async def main() -> None:
    told = json.loads(sys.stdin.readline())
    host = make_host(bytes.fromhex(told["seed"]))
    async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        member = Member(told, host)
        try:
            await member.connect()
            member.mates.listen()
            await member.run()
        except Failed as error:
            member.mates.failures.append(str(error))
        member.seen["digest"] = member.digest.hex()
        member.seen["failures"], member.seen["refusals"] = member.mates.failures, member.mates.refusals
        member.seen["psyche"] = sorted(name for name in sys.modules if name.partition(".")[0] == "psyche")
        print(json.dumps(member.seen), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        os._exit(0)


if __name__ == "__main__":
    trio.run(main)
