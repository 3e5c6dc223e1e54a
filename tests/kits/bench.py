"""One engine under test beside a real state machine; what everybody else does is said step by step.

    bench = build_bench(members=4)     # joined
    bench.start()                      # Warmup over: round 0 runs, the engine under test is member `own`
    bench.do(act.Train)                # the newest action of a kind
    bench.hear(bench.build_result(1))  # a result of member 1, signed by its key

The engine's applies and loads are answered at once unless `manual` names them.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from psyche.client.engine import actions as act
from psyche.client.engine.announcements import compute_step_lr
from psyche.client.engine.records import KnownResult, RoundRecord
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.engine.weights import Diverged, Doubt
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.results import compute_results_root
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.header import NumericClass, ResultHeader, encode_header
from psyche.core.encoding.plan import compute_plan, encode_plan, get_payload_bytes
from psyche.core.rules.apply import apply
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.genesis import create_run
from psyche.core.state.gossip import Finished, Gossip, GossipBody, Ready, ReadyFlag, Result
from psyche.core.state.messages import Join, Message, Tick, WarmupWitness, WitnessMessage
from psyche.core.state.state import ZERO32, Coordinator, Metadata, RunState, WitnessFlag
from psyche.core.state.timeline import get_attested_round, get_round
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_model
from psyche.wire.crypto import Identity, blake3_hash, blob_id_of, compute_commitment, compute_state_digest
from psyche.wire.gossip import encode_gossip, sign_gossip
from psyche.wire.trainer import ApplyReply, SnapshotReply, TrainReply

A = TypeVar("A")
PLAN_BODY = compute_plan({"w": (256, 64)}, chunk=64, topk=8, one_bit=True)
PLAN = encode_plan(PLAN_BODY)
WEIGHTS = blake3_hash(b"first weights")
FIRST_DIGEST = compute_state_digest(ZERO32, WEIGHTS)


def build_identity(number: int) -> Identity:
    return Identity(hashlib.sha256(b"bench %d" % number).digest())


def build_train_reply(payload: bytes = b"payload", **changes: Any) -> TrainReply:
    values: dict[str, Any] = {
        "payload": payload, "loss": 2.0, "grad_norm": 1.0, "tokens": 8, "seconds": 0.5, "compute_seconds": 0.4,
        "micro_batch_size": 1, "train_count": 1,
    }  # fmt: skip
    return TrainReply(**(values | changes))


@dataclass
class Bench:
    """State machine, clock and the engine of member `own`."""

    state: Coordinator
    identities: list[Identity]
    own: int
    now: float = 1000.0
    manual: Collection[type] = ()
    actions: list[act.Action] = field(default_factory=list)
    drawn: int = 0
    part: bytes = WEIGHTS
    last_train: act.Train | None = None
    blind: bool = False  # no state reaches the engine

    def __post_init__(self) -> None:
        self.engine = RoundEngine(self.identities[self.own])

    # --- the engine's side -------------------------------------------------------------------------

    def spoil_weights(self) -> None:
        """The own digest counts as wrong from this round on, and a replay has begun and ended."""
        self.engine.weights._state = Diverged(Doubt(self.state.current.height, is_contradicted=False))

    def take_in(self, actions: list[act.Action]) -> list[act.Action]:
        """Remember what the engine asks for and answer what is not `manual`; all actions that came of it."""
        self.actions += actions
        self.last_train = next((a for a in reversed(actions) if isinstance(a, act.Train)), self.last_train)
        seen = list(actions)
        for action in actions:
            event = self.answer(action)
            if event is not None:
                seen += self.feed(event)
        return seen

    def answer(self, action: act.Action) -> act.Event | None:
        """What a quick and honest trainer says."""
        if type(action) in self.manual:
            return None
        match action:
            case act.Load():
                return self.build_loaded(action)
            case act.Apply():
                return self.build_applied(action)
            case act.Snapshot():
                reply = SnapshotReply(path="", size_bytes=1, weight_root=ZERO32, seconds=0.0)
                return act.SnapshotWritten(action.epoch, action.height, action.digest, Path(), reply)
            case _:
                return None

    def build_loaded(self, action: act.Load, digest: bytes | None = None) -> act.Loaded:
        found = digest or action.certified or FIRST_DIGEST
        return act.Loaded(action.epoch, found, "test", PLAN, 4096, 256, 0, 0, ZERO32)

    def build_applied(self, action: act.Apply, part: bytes | None = None) -> act.Applied:
        if action.run_update:
            self.part = blake3_hash(b"update", self.part, *action.blobs)
        return act.Applied(
            action.epoch, action.height, ApplyReply(weight_part=part or self.part, is_full=True, seconds=0.01)
        )

    def show(self) -> list[act.Action]:
        """The engine sees the newest state."""
        if self.blind:
            return []
        return self.take_in(self.engine.on_state(decode_state(encode_state(self.state)), self.now))

    def feed(self, event: act.Event) -> list[act.Action]:
        return self.take_in(self.engine.on_event(event, self.now))

    def hear(self, message: Gossip | bytes) -> list[act.Action]:
        raw = message if isinstance(message, bytes) else encode_gossip(message)
        return self.take_in(self.engine.on_gossip(raw, self.now))

    def wait(self, seconds: float) -> list[act.Action]:
        """Time passes for the engine alone."""
        self.now += seconds
        return self.take_in(self.engine.on_tick(self.now))

    def get_all(self, kind: type[A]) -> list[A]:
        """The actions of a kind; of a kind of coordinator message, those that were sent."""
        found = [a.message if isinstance(a, act.Submit) else a for a in self.actions]
        return [a for a in found if isinstance(a, kind)]

    def get_reasons(self, kind: type[Message]) -> list[str]:
        """Why the messages of a kind were sent, as the log says it."""
        sent = [a for a in self.actions if isinstance(a, act.Submit) and isinstance(a.message, kind)]
        return [str(log.fields["reason"]) for a in sent if (log := a.before or a.after) is not None]

    def get_logs(self, kind: str) -> list[dict[str, object]]:
        return [a.fields for a in self.actions if isinstance(a, act.Log) and a.kind == kind]

    def forget(self) -> None:
        """Only what comes from now on counts."""
        self.actions.clear()

    def get_record(self, height: int | None = None) -> RoundRecord:
        record = self.engine._x.book.get(self.state.current.height if height is None else height)
        assert record is not None
        return record

    def get_known(self, member: int, height: int | None = None) -> list[KnownResult]:
        return list(self.get_record(height).results.get(member, {}).values())

    # --- the state machine's side ------------------------------------------------------------------

    @property
    def unix(self) -> int:
        return START_UNIX + int(self.now)

    @property
    def index(self) -> int:
        """Own index among the members; slots are in the order of joining."""
        return self.own

    def settle(self) -> None:
        while not self.state.halted:
            self.drawn += 1
            if not apply(self.state, self.unix, self.unix, ZERO32, Tick(build_hash("entropy", self.drawn))):
                break

    def join(self, *numbers: int) -> None:
        for number in numbers:
            key = self.identities[number].public
            apply(self.state, self.unix, 0, key, Join(key))

    def form(self) -> None:
        """From WaitingForMembers to Warmup."""
        self.now += self.state.config.waiting_for_members_extra_time + 1
        self.settle()
        assert self.state.run_state is RunState.WARMUP

    def start(self) -> "Bench":
        """From WaitingForMembers to round 0, everybody ready."""
        if self.state.run_state is RunState.WAITING_FOR_MEMBERS:
            self.join(*range(len(self.identities)))
            self.form()
        self.show()
        digest = self.state.certified.digest if self.state.certified.digest != ZERO32 else FIRST_DIGEST
        for member, client in enumerate(self.state.clients):
            apply(self.state, self.unix, 0, client.p2p, WarmupWitness(self.state.progress.epoch, member, digest))
        self.settle()
        assert self.state.run_state is RunState.ROUND_TRAIN
        self.show()
        return self

    def get_identity(self, member: int) -> Identity:
        return next(i for i in self.identities if i.public == self.state.clients[member].p2p)

    def sign(self, member: int, body: GossipBody, height: int | None = None, **changes: Any) -> Gossip:
        """A message of that member, signed; `changes` say otherwise who signs or for which round."""
        state = self.state
        identity = changes.pop("identity", None) or self.get_identity(member)
        named = state.current.height if height is None else height
        epoch = changes.pop("epoch", state.progress.epoch)
        return sign_gossip(identity, changes.pop("run_uid", state.run_uid), epoch, named, member, body)

    def build_header(self, member: int, height: int | None = None, **changes: Any) -> ResultHeader:
        """The header of an honest result; its body is `build_body`."""
        state = self.state
        named = state.current.height if height is None else height
        round_ = get_round(state, named)
        assert round_ is not None
        start, end = compute_assignments(round_, state.config).get(member, (0, 0))
        body = changes.pop("body", self.build_body(member, named))
        facts = self.engine._x.facts
        header = ResultHeader(
            run_uid=state.run_uid, epoch=state.progress.epoch, member=member, height=named, step=round_.step,
            lr_bits=get_lr_bits(compute_step_lr(state, round_.step)), batch_start=start, batch_end=end,
            plan_hash=facts.plan_hash, config_hash=facts.config_hash,
            base_digest=self.engine.weights.digests.get(named, ZERO32), data_hash=ZERO32, prev_commitment=ZERO32,
            body_hash=blob_id_of(body), body_len=len(body), train_count=1, numeric_class=NumericClass.FP32,
            trainer_key=self.get_identity(member).public,
        )  # fmt: skip
        return replace(header, **changes)

    def build_body(self, member: int, height: int) -> bytes:
        seed = build_hash("body", self.state.progress.epoch, height, member)
        return (seed * (get_payload_bytes(PLAN_BODY) // 32 + 1))[: get_payload_bytes(PLAN_BODY)]

    def build_result(self, member: int, height: int | None = None, **changes: Any) -> Gossip:
        raw = encode_header(self.build_header(member, height, **changes))
        return self.sign(member, Result(compute_commitment(raw), raw), height)

    def build_finished(self, member: int, height: int | None = None, seen: int = 0) -> Gossip:
        return self.sign(member, Finished(0, ZERO32, seen), height)

    def build_ready(self, member: int, digest: bytes, flags: int = 0) -> Gossip:
        return self.sign(member, Ready(digest, ReadyFlag(flags)))

    def deliver(self, *members: int, height: int | None = None) -> None:
        """Results of these members are announced, and their payloads come."""
        for member in members:
            message = self.build_result(member, height)
            self.hear(message)
            assert isinstance(message.body, Result)
            self.feed(act.PayloadArrived(message.body.commitment))

    def train(self, **changes: Any) -> None:
        """The trainer answers the newest training; `changes` are of its reply."""
        action = self.last_train
        assert action is not None, "it was asked to train"
        reply = build_train_reply(**({"payload": self.build_body(self.index, action.height)} | changes))
        self.feed(act.Trained(action.epoch, action.height, reply, ZERO32))

    def build_witness(self, member: int, **changes: Any) -> WitnessMessage:
        """A report that agrees with what the engine under test knows and computed."""
        state, round_ = self.state, self.state.current
        attested = get_attested_round(state)
        held, known = changes.pop("held", None), changes.pop("commitments", None)
        if held is None:
            record = self.get_record(attested.height) if attested is not None else None
            held = record.compute_held() if record is not None else 0
            known = record.get_commitments(held) if record is not None and known is None else known
        known = known or {}
        digest = changes.pop("state_digest", self.engine.weights.digests.get(round_.height, ZERO32))
        flags = WitnessFlag.COMPLETE | (WitnessFlag.FULL_DIGEST if digest != ZERO32 else WitnessFlag.NO_DIGEST)
        root = compute_results_root(state.progress.epoch, attested.height, held, known) if attested else ZERO32
        message = WitnessMessage(
            epoch=state.progress.epoch, height=round_.height, member=member, flags=flags, at_s=1, held=held,
            heard=round_.members, missing=0,
            broadcast_bloom=compute_bloom(round_.seed, member, [known[m] for m in get_members(held) if m in known]),
            results_root=root, state_digest=digest,
        )  # fmt: skip
        return replace(message, **changes)

    def record(self, *members: int, **changes: Any) -> None:
        """These witnesses' reports stand on record; nobody has seen that yet."""
        for member in members:
            message = self.build_witness(member, **changes)
            apply(self.state, self.unix, 0, self.state.clients[member].p2p, message)

    def close(self, *members: int, seconds: float = 1.0, **changes: Any) -> list[act.Action]:
        """These witnesses (all, where none is named) report, the round closes, the engine sees what follows."""
        height = self.state.current.height
        self.now += seconds
        self.record(*(members or get_members(self.state.current.members)), **changes)
        self.settle()
        if self.state.in_round and self.state.current.height == height:
            self.pass_times()
        return self.show()

    def pass_times(self) -> None:
        """The times of a round run out; nobody has seen that yet."""
        self.now += self.state.config.max_round_train_time
        self.settle()
        self.now += self.state.config.round_witness_time
        self.settle()

    def split(self) -> None:
        """The other witnesses report nothing and another digest each; the round times out."""
        for member in get_members(self.state.current.members):
            if member != self.index:
                digest = build_hash("split", member, self.state.current.height)
                self.record(member, held=0, commitments={}, state_digest=digest)
        self.pass_times()
        self.show()

    def run_round(self, **changes: Any) -> list[act.Action]:
        """One quiet round: everybody delivers, all report the same."""
        self.play()
        return self.close(**changes)

    def play(self) -> None:
        """Everybody trains and delivers in the running round."""
        owed = compute_assignments(self.state.current, self.state.config)
        self.deliver(*(m for m in owed if m != self.index))
        if self.index in owed and self.engine.training.in_flight == (
            self.state.progress.epoch,
            self.state.current.height,
        ):
            self.train()
        for member in get_members(self.state.current.members):
            if member != self.index:
                self.hear(self.build_finished(member, seen=compute_bits(owed)))


def build_bench(members: int = 4, own: int = 0, manual: Collection[type] = (), **config: Any) -> Bench:
    """A run with that many participants, none of whom has joined yet."""
    values = {"rounds_per_epoch": 12, "min_clients": 1, "init_min_clients": members} | config
    state = create_run(
        build_config(**values), build_model(), "bench", build_hash("bench"), Metadata(name="bench"), "test", START_UNIX
    )
    return Bench(state, [build_identity(number) for number in range(members)], own, manual=manual)


def go_to_last_drain(bench: Bench) -> None:
    """Two rounds with data, then the drain up to its last round."""
    while bench.state.epoch.drain_from_height == 0 or bench.state.current.height < bench.state.epoch.drain_from_height:
        bench.run_round()
    drains = 2 if bench.state.config.overlap else 1
    while bench.state.current.height < bench.state.epoch.drain_from_height + drains - 1:
        bench.run_round()
