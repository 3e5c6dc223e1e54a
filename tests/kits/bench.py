"""One engine under test beside a real state machine; the test says step by step what everybody else does.

    bench = build_bench(members=4)     # joined
    bench.start()                      # Warmup over: round 0 runs, the engine under test is member `own`
    bench.do(act.Train)                # the newest action of a kind
    bench.hear(bench.build_result(1))  # a result of member 1, signed by its key

The engine's applies and loads are answered at once unless `manual` names them.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kits.log import E, choose
from kits.results import (
    FIRST_DIGEST,
    WEIGHTS,
    build_body,
    build_header,
    build_load_reply,
    build_result,
    build_train_reply,
    sign,
)
from kits.runs import Run, StateMachine, get_equal_keys
from kits.verification.work import HONEST, accumulate, answer_audit, build_table, build_work, get_first_sample, sketch
from psyche.client.engine import actions as act
from psyche.client.engine.auditing.works import is_verified
from psyche.client.engine.records import KnownResult, RoundRecord
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.engine.weights import Diverged, Divergence
from psyche.core.committee.assignment import compute_assignments
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.header import ResultHeader, ResultKind
from psyche.core.encoding.work import AuditRow, Values, choose_piece_samples, encode_report, encode_table
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.gossip import Finished, Gossip, GossipBody, Ready, ReadyFlag, Result
from psyche.core.state.messages import Message, WitnessMessage
from psyche.core.state.state import ZERO32, Round, RunState, WitnessFlag
from psyche.core.state.timeline import get_attested_round, get_round
from psyche.telemetry import types
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_identity, build_state
from psyche.wire.crypto import Identity, blake3_hash, blob_id_of
from psyche.wire.gossip import decode_gossip, encode_gossip
from psyche.wire.trainer import ApplyReply, SnapshotReply

A = TypeVar("A")


@dataclass
class Bench(StateMachine):
    """A state machine, a clock, and the engine of member `own`."""

    identities: list[Identity]
    own: int
    now: float = 1000.0
    manual: Collection[type] = ()
    actions: list[act.Action] = field(default_factory=list)
    part: bytes = WEIGHTS
    last_train: act.Train | None = None
    blind: bool = False  # the engine sees no state
    claims: dict[int, float] = field(default_factory=dict)  # member -> the scale of the work that it makes up
    tables: dict[int, bytes] = field(default_factory=dict)  # member -> its table of round 0
    shows_momenta: bool = False  # headers name momenta, and each the one before

    def __post_init__(self) -> None:
        self.engine = RoundEngine(self.identities[self.own])

    # --- the engine's side -------------------------------------------------------------------------

    def spoil_weights(self) -> None:
        """Make the engine doubt its digest from this round on, as if a replay had begun and ended."""
        self.engine.weights._state = Diverged(Divergence(self.state.current.height, is_contradicted=False))

    def take_in(self, actions: list[act.Action]) -> list[act.Action]:
        """Keep the engine's actions and answer those that are not `manual`; return all resulting actions."""
        self.actions += actions
        self.last_train = next((a for a in reversed(actions) if isinstance(a, act.Train)), self.last_train)
        seen = list(actions)
        for action in actions:
            event = self.answer(action)
            if event is not None:
                seen += self.feed(event)
        return seen

    def answer(self, action: act.Action) -> act.EngineEvent | None:
        """Answer as a fast and honest trainer does."""
        if type(action) in self.manual:
            return None
        match action:
            case act.Load():
                return self.build_loaded(action)
            case act.Apply():
                return self.build_applied(action)
            case act.Audit():
                return answer_audit(action)
            case act.WriteSnapshot():
                reply = SnapshotReply(path="", size_bytes=1, weight_root=ZERO32, seconds=0.0)
                return act.SnapshotWritten(action.epoch, action.height, action.digest, reply)
            case _:
                return None

    def build_loaded(self, action: act.Load, digest: bytes | None = None) -> act.Loaded:
        found = digest or action.certified or FIRST_DIGEST
        return act.Loaded(action.epoch, found, types.WeightSource.CONFIGURED, build_load_reply())

    def build_applied(self, action: act.Apply, part: bytes | None = None) -> act.Applied:
        if action.run_update:
            self.part = blake3_hash(b"update", self.part, *action.blobs)
        return act.Applied(
            action.epoch, action.height, ApplyReply(weight_part=part or self.part, is_full=True, seconds=0.01)
        )

    def show(self) -> list[act.Action]:
        if self.blind:
            return []
        return self.take_in(self.engine.on_state(decode_state(encode_state(self.state)), self.now))

    def feed(self, event: act.EngineEvent) -> list[act.Action]:
        return self.take_in(self.engine.on_events((event,), self.now))

    def hear(self, message: Gossip | bytes) -> list[act.Action]:
        raw = message if isinstance(message, bytes) else encode_gossip(message)
        return self.take_in(self.engine.on_messages((raw,), self.now))

    def wait(self, seconds: float) -> list[act.Action]:
        """Let time pass for the engine alone."""
        self.now += seconds
        return self.take_in(self.engine.on_events((), self.now))

    def get_all(self, kind: type[A]) -> list[A]:
        """All actions of a kind; for a kind of coordinator message, those that were sent."""
        found = [a.message if isinstance(a, act.Submit) else a for a in self.actions]
        return [a for a in found if isinstance(a, kind)]

    def get_reasons(self, kind: type[Message]) -> list[str]:
        """The logged reasons for sending messages of a kind."""
        sent = [a for a in self.actions if isinstance(a, act.Submit) and isinstance(a.message, kind)]
        said = [a.before or a.after for a in sent]
        return [event.reason for event in said if isinstance(event, types.WitnessSent | types.Withdrew)]

    def get_logs(self, kind: type[E]) -> list[E]:
        return choose((a for a in self.actions if isinstance(a, types.Event)), kind)

    def get_said(self, kind: type = object) -> list[Gossip]:
        """The published gossip with a body of this kind."""
        said = [decode_gossip(a.raw) for a in self.get_all(act.Publish)]
        return [message for message in said if isinstance(message.body, kind)]

    def get_announced(self) -> list[Gossip]:
        return [decode_gossip(a.raw) for a in self.get_all(act.Announce)]

    def get_decided(self) -> dict[int, list[int]]:
        """The members of each decided set, by the height of its round."""
        return {event.height: list(event.members) for event in self.get_logs(types.Decided)}

    def forget(self) -> None:
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
        """The engine's member index; slots are in the order of joining."""
        return self.own

    @property
    def run(self) -> Run:
        """The run's members, to act for them."""
        return Run(self.state, now=self.unix, keys=partial(get_equal_keys, self.identities))

    def join(self, *numbers: int) -> None:
        self.run.join(*numbers)

    def form(self) -> None:
        self.now += self.state.config.waiting_for_members_extra_time + 1
        self.settle()
        assert self.state.run_state is RunState.WARMUP

    def warm_up(self) -> None:
        """Go from WaitingForMembers to a Warmup that the engine sees."""
        self.join(*range(len(self.identities)))
        self.form()
        self.show()

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the record, and the engine see what comes of it."""
        self.now += seconds
        self.settle()
        self.show()

    def start(self) -> "Bench":
        """Go from WaitingForMembers to round 0, with every member ready."""
        if self.state.run_state is RunState.WAITING_FOR_MEMBERS:
            self.warm_up()
        else:
            self.show()
        digest = self.state.certified.digest if self.state.certified.digest != ZERO32 else FIRST_DIGEST
        self.run.show(*range(len(self.state.clients)), digest=digest)
        self.settle()
        assert self.state.run_state is RunState.ROUND_TRAIN
        self.show()
        return self

    def get_identity(self, member: int) -> Identity:
        return next(i for i in self.identities if i.public == self.state.clients[member].p2p)

    def sign(self, member: int, body: GossipBody, height: int | None = None, **changes: Any) -> Gossip:
        """A signed message of that member; `changes` may name another signer or round."""
        identity = changes.pop("identity", None) or self.get_identity(member)
        return sign(self.state, identity, member, body, height=height, **changes)

    def build_header(self, member: int, height: int | None = None, **changes: Any) -> ResultHeader:
        """The header of an honest result; its body is `build_body`."""
        named = self.state.current.height if height is None else height
        facts = self.engine._x.facts
        known: dict[str, Any] = {"plan_hash": facts.plan_hash, "config_hash": facts.config_hash}
        if table := self.build_table(member, named):
            start, end = compute_assignments(self.get_round(named), self.state.config)[member]
            known |= {"work_root": blob_id_of(table)}
            if not self.state.model.optimizer.inner_steps:
                known |= {"piece_samples": choose_piece_samples(end - start + 1)}
        known |= {"base_digest": self.engine.weights.digests.get(named, ZERO32)}
        if self.shows_momenta:
            last = self.get_known(member, named - 1) if named else []
            before = build_hash("momentum", member, named - 1) if named else ZERO32
            known |= {
                "momentum_before": before, "momentum_after": build_hash("momentum", member, named),
                "train_count": named + 1, "prev_commitment": last[0].commitment if last else ZERO32,
            }  # fmt: skip
        return build_header(self.state, member, self.get_identity(member).public, height=named, **(known | changes))

    def build_result(self, member: int, height: int | None = None, **changes: Any) -> Gossip:
        return self.sign(member, build_result(self.build_header(member, height, **changes)), height)

    def get_round(self, height: int) -> Round:
        found = get_round(self.state, height)
        assert found is not None, f"round {height} is not kept any more"
        return found

    def build_table(self, member: int, height: int) -> bytes:
        """The work table of a trainer in a verified run, as `claims` says; empty where there is none."""
        owed = compute_assignments(self.get_round(height), self.state.config)
        if not is_verified(self.state) or member not in owed:
            return b""
        if not height and member in self.tables:
            return self.tables[member]
        return build_table(self.state, member, height, self.claims.get(member, HONEST))

    def build_report(
        self, member: int, *, distance: float = 0.0, scale: float = HONEST, most: int = 99, **changes: Any
    ) -> tuple[Gossip, act.PayloadArrived] | None:
        """The report of another verifier in the running round, about batches alone, and its arrival; None: of nothing.

        The batches are judged by `claims`.
        """
        record = self.get_record()
        before = self.get_record(record.height - 1)
        rows: list[AuditRow] = []
        values: list[Values] = []
        for task in [task for task in record.tasks[member] if not task.is_report][:most]:
            known = before.get_single(task.target)
            if known is not None and known.work is not None:
                piece = task.get_piece(range(len(known.work.table) - (known.work.calibration is not None)))
                assert piece is not None, "a table has rows"
                sample = get_first_sample(known.header.batch_start, known.header.piece_samples, piece)
                own = sketch(before.seed, before.height, sample, scale)
                rows.append(AuditRow(task.target, piece, False, distance, own))
                values.append(sketch(record.seed, before.height, sample, scale))
        if not rows:
            return None
        body, table = changes.pop("body", encode_report(rows)), changes.pop("table", encode_table(accumulate(values)))
        fields: dict[str, Any] = {
            "result_kind": ResultKind.AUDIT, "batch_start": 0, "batch_end": 0, "data_hash": ZERO32, "train_count": 0,
            "body_hash": blob_id_of(body), "body_len": len(body), "work_root": blob_id_of(table), "inner_steps": 0,
        }  # fmt: skip
        message = self.build_result(member, **(fields | changes))
        assert isinstance(message.body, Result)
        return message, act.PayloadArrived(message.body.commitment, table, body)

    def report(self, *members: int) -> None:
        """Announce reports of these verifiers, and deliver them."""
        for member in members:
            if built := self.build_report(member):
                self.hear(built[0])
                self.feed(built[1])

    def build_finished(self, member: int, height: int | None = None, seen: int = 0) -> Gossip:
        return self.sign(member, Finished(0, ZERO32, seen), height)

    def build_ready(self, member: int, digest: bytes, flags: int = 0) -> Gossip:
        return self.sign(member, Ready(digest, ReadyFlag(flags)))

    def deliver(self, *members: int, height: int | None = None) -> None:
        """Announce results of these members, and deliver their payloads."""
        for member in members:
            message = self.build_result(member, height)
            self.hear(message)
            assert isinstance(message.body, Result)
            self.feed(act.PayloadArrived(message.body.commitment, self.build_table(member, message.height)))

    def train(self, **changes: Any) -> None:
        """The trainer answers the newest training; `changes` replace fields of its reply."""
        action = self.last_train
        assert action is not None, "it was asked to train"
        values: dict[str, Any] = {"payload": build_body(self.state, self.index, action.height)}
        values["inner_steps"] = min(self.state.model.optimizer.inner_steps, action.end - action.start + 1)
        if table := self.build_table(self.index, action.height):
            values["work"] = build_work(table)
        merged = changes.pop("merged", 0)
        reply = build_train_reply(**(values | changes))
        self.feed(act.Trained(action.epoch, action.height, reply, ZERO32, merged))

    def build_witness(self, member: int, **changes: Any) -> WitnessMessage:
        """A report that agrees with the knowledge and results of the engine under test."""
        attested = get_attested_round(self.state)
        held, known = changes.pop("held", None), changes.pop("commitments", None)
        if held is None:
            record = self.get_record(attested.height) if attested is not None else None
            held = record.compute_held() if record is not None else 0
            known = record.get_commitments(held) if record is not None and known is None else known
        digest = changes.pop("state_digest", self.engine.weights.digests.get(self.state.current.height, ZERO32))
        flags = WitnessFlag.COMPLETE | (WitnessFlag.FULL_DIGEST if digest != ZERO32 else WitnessFlag.NO_DIGEST)
        said = {"held": held, "commitments": known or {}, "state_digest": digest, "flags": flags}
        return self.run.build_witness(member, **(said | changes))

    def record(self, *members: int, **changes: Any) -> None:
        """Put these witnesses' reports on record, without showing the state."""
        for member in members:
            self.run.send(self.build_witness(member, **changes))

    def close(self, *members: int, seconds: float = 1.0, **changes: Any) -> list[act.Action]:
        """Report for these witnesses (default: all), close the round, and show the engine the state."""
        height = self.state.current.height
        self.now += seconds
        self.record(*(members or get_members(self.state.current.members)), **changes)
        self.settle()
        if self.state.in_round and self.state.current.height == height:
            self.pass_times()
        return self.show()

    def pass_times(self) -> None:
        """Let the round time out, without showing the state."""
        self.now += self.state.config.max_round_train_time
        self.settle()
        self.now += self.state.config.round_witness_time
        self.settle()

    def split(self) -> None:
        """Let every other witness report an empty set and a different digest; the round times out."""
        for member in get_members(self.state.current.members):
            if member != self.index:
                digest = build_hash("split", member, self.state.current.height)
                self.record(member, held=0, commitments={}, state_digest=digest)
        self.pass_times()
        self.show()

    def run_round(self, **changes: Any) -> list[act.Action]:
        """A round without faults: every member delivers, and all report the same."""
        self.play()
        return self.close(**changes)

    def run_rounds(self, count: int) -> None:
        for _ in range(count):
            self.run_round()

    def play(self) -> None:
        """Let every member train and deliver in the running round."""
        owed = compute_assignments(self.state.current, self.state.config)
        self.deliver(*(m for m in owed if m != self.index))
        self.report(*(m for m in self.get_record().tasks if m != self.index))
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
    state = build_state(build_config(**values))
    return Bench(state, [build_identity(number) for number in range(members)], own, manual=manual)


def go_to_last_drain(bench: Bench) -> None:
    """Run rounds with data, then drain rounds up to the last one."""
    while bench.state.epoch.drain_from_height == 0 or bench.state.current.height < bench.state.epoch.drain_from_height:
        bench.run_round()
    drains = 2 if bench.state.config.overlap else 1
    while bench.state.current.height < bench.state.epoch.drain_from_height + drains - 1:
        bench.run_round()
