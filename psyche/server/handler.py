"""The coordinator server's message handling, without I/O: requests in, replies out, records into the journal.

Whoever drives it (the TCP server on trio, a simulator on its own clock and disk) must keep three
promises: calls are made one after another; a reply leaves only when the record `Answer.seq` is on
disk; a state is shown only when `StateVersion.seq` is (K1). Time never runs backwards inside: a
smaller `now` counts as the last one seen.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from psyche.core.errors import ClientsFull, CoordinatorError, Halted
from psyche.core.layout import decode_state, decode_witness, encode_state
from psyche.core.roster import find_slot, get_healthy
from psyche.core.state import Coordinator, RunState, SlotState
from psyche.errors import BackendError, PsycheError, WireError
from psyche.server import events
from psyche.server.book import AddressBook
from psyche.server.evidence import check_evidence, is_evidence_on_record
from psyche.server.journal import KEPT_OP_IDS, Journal
from psyche.server.presence import Presence, get_departure, has_join
from psyche.server.push import StateVersion, make_version
from psyche.server.replies import Answer, ReplyCache
from psyche.server.sink import EventSink, NoEvents
from psyche.server.status import make_status
from psyche.wire import backend as wire
from psyche.wire import repeats
from psyche.wire.crypto import check_address_record

MAX_TICKS: Final = 16  # T3 settles after two or three; more would be a state machine that runs in circles
_UNCACHED: Final = (wire.HelloRequest, wire.StatusRequest, wire.PingRequest, wire.SubscribeRequest)


class CoordinatorHandler:
    """The server's side of the protocol over one run.

    Args:
        state: the run; owned from now on.
        journal: where records go; the driver writes it out.
        now: unix seconds, the time of the journal's last record.
        owners: keys that may command the run.
        entropy: gives 32 random bytes (E5).
        op_ids: owner commands carried out before, from recovery.
        withdraw_on_disconnect: whether a lost connection ends a membership after the grace (H6).
        program: name and version of this server, for people.
        sink: where events go.
    """

    def __init__(
        self,
        state: Coordinator,
        journal: Journal,
        *,
        now: int,
        owners: frozenset[bytes],
        entropy: Callable[[], bytes],
        op_ids: Iterable[bytes] = (),
        withdraw_on_disconnect: bool = True,
        program: str = "psyche",
        sink: EventSink | None = None,
    ) -> None:
        self.state = state
        self.journal = journal
        self.book = AddressBook()
        self.now = now
        self.owners = owners
        self.program = program
        self.version: StateVersion = make_version(journal.last_seq, now, state, encode_state(state))
        self._entropy = entropy
        self._op_ids = deque(op_ids, maxlen=KEPT_OP_IDS)
        self._withdraw_on_disconnect = withdraw_on_disconnect
        self._sink = sink or NoEvents()
        self._replies = ReplyCache()
        self._presence = Presence()

    def handle(self, now: int, sender: bytes, request: wire.Request) -> Answer:
        """Answer one request of the client whose key is `sender`, and let the state settle.

        Raises:
            WireError: the request breaks the format inside; the connection is to be closed.
        """
        self._advance(now)
        kept = self._replies.get(sender, request.id)
        if kept is not None:
            self._note_repeat(sender, request, "memory")
            return kept
        try:
            reply = wire.Reply(request.id, body=self._answer(sender, request.body), nonce=self.state.nonce)
        except (CoordinatorError, BackendError) as error:
            reply = self._refuse(sender, request, error)
        answer = Answer(reply, self.journal.last_seq)
        if not isinstance(request.body, _UNCACHED):
            self._replies.put(sender, answer)
            self._settle()
        return answer

    def tick(self, now: int) -> None:
        """Let the clock act: lost connections, expired addresses, the state machine."""
        self._advance(now)
        self._withdraw_lost()
        keys = {slot.p2p for slot in self.state.registry.slots if slot.state != SlotState.FREE}
        self.book.expire(self.now, keys)
        self._settle()

    def connected(self, key: bytes) -> None:
        """A client is there (again)."""
        self._presence.connected(key)

    def disconnected(self, key: bytes, now: int) -> None:
        """A client's connection is lost; it has 15 s to come back before it is withdrawn (H6)."""
        self._advance(now)
        self._presence.disconnected(key, self.now, is_known=find_slot(self.state, key) is not None)

    def recover(self, now: int) -> None:
        """Report that the server was away since the last record (K2): a restart is not a time-out."""
        gap_s = max(0, now - self.now)
        self._advance(now)
        self._apply(events.Recovered(gap_s))
        for slot in self.state.registry.slots:
            if slot.state is SlotState.JOINED:
                self._presence.disconnected(slot.p2p, self.now, is_known=True)
        self._sink.emit("server_recovered", gap_s=gap_s, seq=self.journal.last_seq, run_state=self.state.run_state)

    def get_status(self) -> wire.RunStatus:
        """What a person wants to know of the run."""
        return make_status(self.state, self.now, self.program, self._presence.count)

    def _advance(self, now: int) -> None:
        self.now = max(self.now, now)

    def _apply(self, event: events.Event) -> bool:
        """Change the state and record it; returns whether anything changed.

        Raises:
            CoordinatorError: the state machine refuses; nothing changed.
            BackendError: a defect of ours; the state is back at the last record.
        """
        nonce, was = self.state.nonce, (self.state.run_state, self.state.progress.step)
        try:
            event.process(self.state, self.now)
            if self.state.nonce == nonce:
                return False
            raw = encode_state(self.state)
        except CoordinatorError:
            raise
        except Exception as error:
            self.state = decode_state(self.version.raw)  # no half a change may stay behind
            self._sink.emit("server_defect", event=type(event).__name__, error=traceback.format_exc())
            raise BackendError(f"internal error while handling {type(event).__name__}: {error!r}") from error
        version = make_version(self.journal.last_seq + 1, self.now, self.state, raw)
        self.journal.append(self.now, event, version.hash)
        self.version = version
        self._after(event, was)
        return True

    def _after(self, event: events.Event, was: tuple[RunState, int]) -> None:
        """What follows a recorded change: op ids, events, snapshots."""
        op_id = events.get_op_id(event)
        if op_id is not None:
            self._op_ids.append(op_id)
        state, progress = self.state, self.state.progress
        run_state, step = was
        if progress.step < step:  # P3, P5: the only ways back
            self._sink.emit(
                "rollback",
                step=progress.step,
                was=step,
                epoch=progress.epoch,
                data_index=progress.epoch_start_data_index,
            )
        if state.run_state is not run_state:
            self._sink.emit(
                "state_changed",
                run_state=state.run_state,
                was=run_state,
                epoch=progress.epoch,
                height=state.current.height,
                step=progress.step,
                members=get_healthy(state).bit_count(),
            )
        starts_epoch = state.run_state is RunState.WARMUP and run_state is not RunState.WARMUP
        if starts_epoch or self.journal.wants_snapshot:
            self.journal.snapshot(self.now, self.version.raw, tuple(self._op_ids))

    def _settle(self) -> None:
        """T3: tick until nothing changes."""
        for _ in range(MAX_TICKS):
            try:
                if not self._apply(events.Tick(self._entropy())):
                    return
            except Halted:
                return
        raise BackendError(f"the state machine did not come to rest within {MAX_TICKS} ticks")

    def _withdraw_lost(self) -> None:
        for key, since in self._presence.get_overdue(self.now):
            departure = get_departure(self.state, key) if self._withdraw_on_disconnect else None
            if departure is not None:
                self._apply(events.Withdraw(key, *departure))
                self._sink.emit("client_withdrawn", key=key, reason="connection lost", after_s=self.now - since)
            elif not (self._withdraw_on_disconnect and has_join(self.state, key)):
                self._presence.forget(key)  # nothing is left that this key could be withdrawn from

    def _answer(self, sender: bytes, body: wire.RequestBody) -> wire.Greeting | wire.RunStatus | None:
        """Carry out a request; returns what its reply carries.

        Raises:
            CoordinatorError: the state machine refuses.
            BackendError: the server refuses.
            WireError: the body breaks the format inside.
        """
        match body:
            case wire.HelloRequest():
                return self._greet(body)
            case wire.StatusRequest():
                return self.get_status()
            case wire.PingRequest() | wire.SubscribeRequest():
                return None
            case wire.AnnounceRequest():
                self._put_record(sender, body.record)
            case wire.PauseRequest() | wire.ResumeRequest() | wire.RatesRequest():
                self._command(sender, body)
            case wire.JoinRequest():
                self._join(sender, body.record)
            case _:
                self._apply(self._make_event(sender, body))
        return None

    def _make_event(self, sender: bytes, body: wire.RequestBody) -> events.Event:
        """The event of a message that goes to the state machine as it stands."""
        match body:
            case wire.LeaveRequest():
                event: events.Event = events.Leave(sender)
            case wire.WithdrawRequest():
                event = events.Withdraw(sender, body.epoch, body.member)
            case wire.WarmupWitnessRequest():
                event = events.WarmupWitness(sender, body.epoch, body.member, body.digest)
            case wire.WitnessRequest():
                event = events.make_witness(sender, decode_witness(body.message))
            case wire.HealthCheckRequest():
                event = events.HealthCheck(sender, body.epoch, body.height, body.member)
            case wire.CheckpointRequest():
                event = events.SetCheckpoint(sender, body.epoch, body.digest, body.kind, body.name, body.revision)
            case wire.EquivocationRequest():
                event = events.Equivocation(*check_evidence(self.state, body.first, body.second))
            case _:
                raise wire.BadRequest(f"{type(body).__name__} is not a message to the run")
        return event

    def _note_repeat(self, sender: bytes, request: wire.Request, answered_from: str) -> None:
        self._sink.emit("request_repeated", key=sender, request=type(request.body).__name__, answered=answered_from)

    def _refuse(self, sender: bytes, request: wire.Request, error: PsycheError) -> wire.Reply:
        on_record = is_on_record(self.state, sender, request.body)
        if on_record:
            self._note_repeat(sender, request, "record")
        return wire.Reply(
            request.id,
            code=wire.code_of(error),
            message=wire.shorten(str(error)),
            on_record=on_record,
            nonce=self.state.nonce,
        )

    def _greet(self, body: wire.HelloRequest) -> wire.Greeting:
        if body.version != wire.VERSION:
            raise wire.WrongVersion(f"the server speaks version {wire.VERSION}, the client {body.version}: update one")
        if body.run_id not in ("", self.state.run_id):
            raise wire.WrongRun(f"this server has the run {self.state.run_id!r}, not {body.run_id!r}")
        return wire.Greeting(wire.VERSION, self.state.run_id, self.state.run_uid, self.program, self.now)

    def _put_record(self, sender: bytes, message: wire.AddressMessage) -> None:
        """Keep where a holder of a slot can be reached.

        Raises:
            BadRequest: it is not the sender's own, or not signed by it.
        """
        record = wire.get_address_record(message)
        if record.p2p != sender:
            raise wire.BadRequest("address record: names another key than the connection's")
        try:
            check_address_record(record)
        except WireError as error:
            raise wire.BadRequest(str(error)) from error
        if find_slot(self.state, sender) is not None:
            self.book.put(record, self.now)

    def _join(self, sender: bytes, message: wire.AddressMessage) -> None:
        """On TCP the connection's key is signer and p2p key at once (M1: it has proved both)."""
        try:
            self._apply(events.Join(sender, sender))
        except ClientsFull:
            if not self._apply(events.ReclaimSlot()):  # M4
                raise
            self._apply(events.Join(sender, sender))
        self._put_record(sender, message)

    def _command(self, sender: bytes, body: wire.PauseRequest | wire.ResumeRequest | wire.RatesRequest) -> None:
        """An owner's command; one whose op id was carried out before is a success again (K3)."""
        if sender not in self.owners:
            raise wire.NotOwner("only an owner of the run may command it; use the owner's identity file")
        if body.op_id in self._op_ids:
            return
        match body:
            case wire.PauseRequest():
                self._apply(events.Pause(body.op_id))
            case wire.ResumeRequest():
                self._apply(events.Resume(body.op_id))
            case wire.RatesRequest():
                self._apply(events.SetRates(body.op_id, body.earning, body.slashing))


def is_on_record(state: Coordinator, sender: bytes, body: wire.RequestBody) -> bool:
    """Whether what a refused request asks for had taken effect before, exactly as sent (K3)."""
    match body:
        case wire.JoinRequest():
            found = repeats.is_joined(state, sender, sender)
        case wire.WithdrawRequest():
            found = repeats.is_withdrawn(state, sender, body.epoch, body.member)
        case wire.WarmupWitnessRequest():
            found = repeats.is_warm(state, sender, body.epoch, body.member, body.digest)
        case wire.WitnessRequest():
            found = repeats.is_witnessed(state, sender, decode_witness(body.message))
        case wire.HealthCheckRequest():
            found = repeats.is_accused(state, body.epoch, body.height, body.member)
        case wire.CheckpointRequest():
            found = repeats.is_source(state, body.digest, wire.get_checkpoint(body))
        case wire.EquivocationRequest():
            found = is_evidence_on_record(state, body.first, body.second)
        case _:
            found = False
    return found
