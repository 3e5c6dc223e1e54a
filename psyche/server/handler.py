"""The coordinator server's request handling, without I/O: takes requests, returns replies, appends to the journal.

Its driver (the TCP server on trio, or a simulator with its own clock and disk) must keep three promises: it
makes one call at a time; it sends a reply only when the record `Answer.seq` is on disk; it shows a state only
when `StateVersion.seq` is on disk (K1). Time never runs backwards inside: a smaller `now` counts as the last
one seen.
"""

import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

from msgspec.structs import replace

from psyche.backends.summary import summarize_run
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import Sender, is_repeat
from psyche.core.state import messages as msg
from psyche.core.state.errors import ClientsFull, CoordinatorError, Halted
from psyche.core.state.roster import find_slot, get_healthy
from psyche.core.state.state import ZERO32, Coordinator, Round, RunState, SlotState
from psyche.errors import BackendError, PsycheError, WireError
from psyche.server.access import AllowList, FirstKeys
from psyche.server.book import AddressBook
from psyche.server.connections.presence import Presence, can_be_given_up, find_departure, has_departure_ahead, is_member
from psyche.server.connections.push import StateVersion, make_full, make_version
from psyche.server.evidence import check_report
from psyche.server.journal.changes import Change
from psyche.server.journal.journal import KEPT_OP_IDS, Journal
from psyche.server.reports import ReportBoard
from psyche.server.rounds import RoundHistory
from psyche.telemetry import types
from psyche.telemetry.challenges import ChallengeKey, find_challenges, get_open_challenges
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire import backend as wire
from psyche.wire.access import AccessMessage, Allow, Disallow
from psyche.wire.address_record import AddressRecord, check_address_record
from psyche.wire.backend import AnyMessage, decode_message, get_kind

MAX_TICKS: Final = 16  # T3 settles after two or three; more means that the state machine loops
REPLIES_PER_CLIENT: Final = 64
MAX_CACHED_CLIENTS: Final = 512  # all slots of the registry and as many unauthenticated peers


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the journal record that must be on disk before it may be sent (K1)."""

    reply: wire.Reply
    seq: int


class ReplyCache:
    """The last replies by client key and request id, for resends (K4).

    It drops a client's oldest reply, and the client that has been silent longest.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, OrderedDict[int, Answer]] = OrderedDict()

    def get(self, key: bytes, request_id: int) -> Answer | None:
        return self._clients.get(key, OrderedDict()).get(request_id)

    def put(self, key: bytes, answer: Answer) -> None:
        replies = self._clients.setdefault(key, OrderedDict())
        self._clients.move_to_end(key)
        replies[answer.reply.id] = answer
        while len(replies) > REPLIES_PER_CLIENT:
            replies.popitem(last=False)
        while len(self._clients) > MAX_CACHED_CLIENTS:
            self._clients.popitem(last=False)


class Asker(Enum):
    """Who is answered; the value is what others are told, where it is always the same."""

    ANYBODY = ""
    FOLLOWER = "may follow the run"  # others are told how to be allowed (M12)
    FIRST = "only its owner, its clients and keys that may join it see a run's members"
    AUTHORITY = "only an owner of the run or its join authority may do this; use its identity file"
    OWNER = "only an owner of the run may command it; use the owner's identity file"


class RequestKind(NamedTuple):
    answer: Callable[[Any, bytes, Any], wire.ReplyBody]  # by the handler, to the sender
    asker: Asker = Asker.ANYBODY
    needs_subscription: bool = False  # without one, the loss of a member's connection would go unnoticed (H6)
    is_kept: bool = False  # a resend gets the same answer (K4); the state settles after it


class Before(NamedTuple):
    """What a change is compared with."""

    run_state: RunState
    step: int
    round: Round
    challenges: frozenset[ChallengeKey]
    raw: bytes  # of the state


class CoordinatorHandler:
    """The server's side of the protocol over one run, whose state it owns from now on; see `ServerSettings`."""

    def __init__(
        self,
        state: Coordinator,
        journal: Journal,  # the driver flushes it to disk
        *,
        now: int,  # Unix seconds, the time of the journal's last record
        owners: frozenset[bytes],
        access: AllowList,
        entropy: Callable[[], bytes],
        op_ids: Iterable[bytes] = (),  # of owner commands carried out before, from recovery
        withdraw_on_disconnect: bool = True,
        program: str = "psyche",
        sink: EventSink | None = None,
    ) -> None:
        self.state = state
        self.journal = journal
        self.book = AddressBook()
        self.now = now
        self.owners = owners
        self.access = access
        self.program = program
        self.version: StateVersion = make_version(journal.last_seq, now, state, encode_state(state))
        self._entropy = entropy
        self._op_ids = deque(op_ids, maxlen=KEPT_OP_IDS)
        self._withdraw_on_disconnect = withdraw_on_disconnect
        self._sink = sink or NoEvents()
        self._replies = ReplyCache()
        self._presence = Presence()
        self.reports = ReportBoard(self._sink)
        self.history = RoundHistory()
        self.data_manifest: tuple[bytes, bytes] = (ZERO32, b"")  # its id, and it (D1)

    def handle(self, now: int, sender: bytes, request: wire.Request) -> Answer:
        """Answer one request of the client whose key is `sender`, and let the state settle.

        Raises:
            WireError: the request's content is malformed; close the connection.
        """
        self._advance(now)
        kept = self._replies.get(sender, request.id)
        if kept is not None:
            self._note_repeat(sender, request, "memory")
            return kept
        kind = self.REQUESTS[type(request.body)]
        try:
            self._check(sender, kind.asker)
            body = kind.answer(self, sender, request.body)
            reply = wire.Reply(request.id, body=body, nonce=self.state.nonce)
        except (CoordinatorError, BackendError) as error:
            reply = self._refuse(sender, request, error)
        answer = Answer(reply, self.journal.last_seq)
        if kind.is_kept:
            self._replies.put(sender, answer)
            self._settle()
        return answer

    def may_visit(self, body: wire.RequestBody) -> bool:
        return not self.REQUESTS[type(body)].needs_subscription or wire.is_command(body)

    def tick(self, now: int) -> None:
        """Process what is due at `now`: lost connections, expired addresses, the state machine."""
        self._advance(now)
        self._withdraw_lost()
        keys = {slot.p2p for slot in self.state.registry.slots if slot.state != SlotState.FREE}
        self.book.expire(self.now, keys)
        self._settle()

    def connected(self, key: bytes) -> None:
        self._presence.connected(key)

    def disconnected(self, key: bytes, now: int) -> bool:
        """Note that a client's connection is lost; it has 15 s to reconnect before it is withdrawn (H6).

        Returns whether it is a healthy member of the running epoch's.
        """
        self._advance(now)
        self._presence.disconnected(key, self.now, is_known=find_slot(self.state, key) is not None)
        return is_member(self.state, key)

    def recover(self, now: int) -> None:
        """Record the downtime since the last record (K2), so that a restart causes no timeouts."""
        gap_s = max(0, now - self.now)
        self._advance(now)
        self._apply(Change(msg.Recover(gap_s)))
        for slot in self.state.registry.slots:
            if slot.state is SlotState.JOINED:
                self._presence.disconnected(slot.p2p, self.now, is_known=True)
        self._sink.emit(types.ServerRecovered(gap_s=gap_s, seq=self.journal.last_seq, run_state=self.state.run_state))

    def get_status(self) -> wire.RunStatus:
        status = summarize_run(self.state, self.now, self.program)
        return replace(
            status,
            connections=len(self._presence.keys),
            is_open=self.access.is_open,
            allowed=len(self.access.keys),
            **self.reports.summarise(self.state, self.now, self._presence.keys)._asdict(),
            **({} if status.verification is None else {"verification": self.history.add_verdicts(status.verification)}),
        )

    def _advance(self, now: int) -> None:
        self.now = max(self.now, now)

    def _apply(self, change: Change) -> bool:
        """Change the state and record it; returns whether anything changed.

        After an error nothing has: a refusal leaves every byte, a defect sets the state back to the last record.
        """
        nonce = self.state.nonce
        was = Before(
            self.state.run_state, self.state.progress.step, self.state.current,
            frozenset(get_open_challenges(self.state)), self.version.raw,
        )  # fmt: skip
        try:
            change.process(self.state, self.now)
            if self.state.nonce == nonce:
                return False
            raw = encode_state(self.state)
        except CoordinatorError:
            raise
        except Exception as error:
            self.state = decode_state(self.version.raw)  # no partial change may remain
            self._sink.emit(types.ServerDefect(change=change.name, error=traceback.format_exc()))
            raise BackendError(f"internal error while handling {change.name}: {error!r}") from error
        version = make_version(self.journal.last_seq + 1, self.now, self.state, raw)
        self.journal.append(self.now, change, version.hash)
        self.version = version
        self._after(change, was)
        return True

    def _after(self, change: Change, was: Before) -> None:
        if change.op_id:
            self._op_ids.append(change.op_id)
        state, progress = self.state, self.state.progress
        run_state, step, round_ = was.run_state, was.step, was.round
        if isinstance(change.message, msg.WitnessMessage):
            self.history.take_witness(change.message)
        if was.challenges != get_open_challenges(state).keys():
            for event in find_challenges(decode_state(was.raw), state):
                self._sink.emit(event)
                self.history.take_challenge(event)
        if progress.step < step:  # P3, P5: the only cases in which progress goes back
            back = progress.epoch_start_data_index
            self._sink.emit(types.Rollback(step=progress.step, was=step, epoch=progress.epoch, data_index=back))
        is_closed = run_state is RunState.ROUND_WITNESS and state.run_state is not run_state
        if is_closed and (event := self.history.close(round_, state, self.now)) is not None:
            self._sink.emit(event)
        if state.run_state is not run_state:
            self._sink.emit(
                types.StateChanged(
                    epoch=progress.epoch, height=state.current.height, run_state=state.run_state, step=progress.step,
                    members=get_healthy(state).bit_count(), was=run_state,
                )
            )  # fmt: skip
        starts_epoch = state.run_state is RunState.WARMUP and run_state is not RunState.WARMUP
        if starts_epoch or self.journal.wants_snapshot:
            access = self.access.changes.encode()
            self.journal.snapshot(self.now, self.version.raw, tuple(self._op_ids), access)

    def _settle(self) -> None:
        """Tick until nothing changes (T3). Each tick may form an epoch, so disallowed joins are withdrawn before it."""
        for _ in range(MAX_TICKS):
            self._withdraw_disallowed()
            try:
                if not self._apply(Change(msg.Tick(self._entropy()))):
                    return
            except Halted:
                return
        raise BackendError(f"the state machine did not settle within {MAX_TICKS} ticks")

    def _withdraw_lost(self) -> None:
        """Withdraw keys absent for longer than the grace period, at once or when the run waits for members (H6)."""
        for key, since in self._presence.get_overdue(self.now):
            number = find_slot(self.state, key) if self._withdraw_on_disconnect else None
            if number is not None:
                self._take_out(number, key, "connection lost", after_s=self.now - since)
            if number is None or not has_departure_ahead(self.state, number):
                self._presence.forget(key)

    def _withdraw_disallowed(self) -> None:
        """Withdraw the joins of disallowed keys; a member stays until its epoch ends (M12)."""
        if self.state.run_state is not RunState.WAITING_FOR_MEMBERS:
            return
        for number, slot in enumerate(self.state.registry.slots):
            if slot.state is SlotState.JOINED and not self.access.may_join(slot.p2p):
                self._take_out(number, slot.p2p, "not allowed", after_s=0)

    def _take_out(self, number: int, key: bytes, reason: str, *, after_s: int) -> None:
        """Withdraw the holder of a slot, and free the slot if it holds nothing of value (H6)."""
        departure = find_departure(self.state, number)
        if departure is not None:
            self._apply(Change(msg.Withdraw(*departure), key))
            self._sink.emit(types.ClientWithdrawn(key=key, reason=reason, after_s=after_s))
        if can_be_given_up(self.state, number):
            self._apply(Change(msg.LeaveRun(), self.state.registry.slots[number].signer))
            self._sink.emit(types.SlotGivenUp(key=key, reason=reason, after_s=after_s))

    def _is(self, sender: bytes, asker: Asker) -> bool:
        match asker:
            case Asker.ANYBODY:
                return True
            case Asker.FOLLOWER:
                return self.may_follow(sender)
            case Asker.FIRST:
                return sender in self.get_first_keys()
            case Asker.AUTHORITY:
                return sender in self.owners or sender == self.access.join_authority
            case Asker.OWNER:
                return sender in self.owners

    def _check(self, sender: bytes, asker: Asker) -> None:
        if not self._is(sender, asker):
            raise self.access.refuse(sender, self.now) if asker is Asker.FOLLOWER else wire.NotOwner(asker.value)

    def _submit(self, sender: bytes, body: wire.SubmitRequest) -> None:
        """Submit a message to the state machine, after the checks that only the backend can make."""
        message = decode_message(body.number, body.body)
        kind = get_kind(message)
        match message:
            case _ if kind.sender is Sender.BACKEND:
                raise wire.BadRequest(f"{kind.name}: no message to a TCP server")
            case _ if wire.is_command(body):
                self._command(sender, body, message)
            case msg.Join():
                self._join(sender, message, body.record)
            case msg.ReportEquivocation():
                check_report(self.state, message, body.evidence)
                self._apply(Change(message, sender))
            case _:
                self._apply(Change(message, sender))

    def _note_repeat(self, sender: bytes, request: wire.Request, answered_from: str) -> None:
        self._sink.emit(types.RequestRepeated(key=sender, request=wire.get_name(request.body), answered=answered_from))

    def _refuse(self, sender: bytes, request: wire.Request, error: PsycheError) -> wire.Reply:
        on_record = is_on_record(self.state, sender, request.body)
        if on_record:
            self._note_repeat(sender, request, "record")
        text, rule = (error.message, error.rule) if isinstance(error, CoordinatorError) else (str(error), "")
        return wire.Reply(request.id, type(error).__name__, wire.shorten(text), rule, on_record, self.state.nonce)

    def _greet(self, body: wire.HelloRequest) -> wire.Greeting:
        if body.version != wire.VERSION:
            raise wire.WrongVersion(f"the server speaks version {wire.VERSION}, the client {body.version}: update one")
        if body.run_id not in ("", self.state.run_id):
            raise wire.WrongRun(f"this server has run {self.state.run_id!r}, not {body.run_id!r}")
        return wire.Greeting(wire.VERSION, self.state.run_id, self.state.run_uid, self.program, self.now)

    def _put_record(self, sender: bytes, record: AddressRecord) -> None:
        _check_record(sender, record)
        if find_slot(self.state, sender) is not None:
            self.book.put(record, self.now)

    def _join(self, sender: bytes, message: msg.Join, record: AddressRecord | None) -> None:
        """Process a join: on TCP the connection's key is both signer and p2p key (M1: it has proven both)."""
        if not self.access.may_join(sender):  # M12
            raise self.access.refuse(sender, self.now)
        if message != msg.Join(sender):
            raise wire.BadRequest("join: on TCP the connection's key is the p2p key, and does not expire")
        if record is None:
            raise wire.BadRequest("join: the address record is missing")
        _check_record(sender, record)  # before anything is recorded: otherwise a resend would count as a success
        change = Change(message, sender)
        try:
            self._apply(change)
        except ClientsFull:
            if not self._apply(Change(msg.ReclaimSlot())):  # M4
                raise
            self._apply(change)
        self._put_record(sender, record)

    def _command(self, sender: bytes, body: wire.SubmitRequest, message: AnyMessage) -> None:
        """Carry out an owner's command; one whose op id was carried out before counts as a success (K3)."""
        self._check(sender, Asker.AUTHORITY if isinstance(message, Allow | Disallow) else Asker.OWNER)
        op_id = body.op_id
        if op_id is None:
            raise wire.BadRequest(f"{wire.get_name(body)}: a command must have an op id")
        if op_id in self._op_ids:
            return
        if isinstance(message, Allow | Disallow):
            self._change_access(sender, message, op_id)
            return
        claims = message.claims if isinstance(message, msg.Collect) else ()
        if any(amount is None for _, amount in claims):  # otherwise a resend could return another amount
            raise wire.BadRequest("collect: the amount is missing")
        self._apply(Change(message, sender, op_id))
        for signer, amount in claims:
            self._sink.emit(types.EarningsCollected(key=signer, amount=amount, op_id=op_id))

    def may_follow(self, key: bytes) -> bool:
        """Whether the key may see the state and address book: it may join or command, or is still a member (M12)."""
        return self.access.may_join(key) or self._is(key, Asker.AUTHORITY) or is_member(self.state, key)

    def get_first_keys(self) -> FirstKeys:
        """Return the keys whose connections and requests have priority over unauthenticated peers (K7)."""
        live = (SlotState.JOINED, SlotState.LEAVING)
        holders = frozenset(slot.p2p for slot in self.state.registry.slots if slot.state in live)
        return FirstKeys(self.access.keys, self.owners | {self.access.join_authority}, holders)

    def _list_members(self, sender: bytes) -> wire.Members:
        """Only preferred keys read or write the table of members (K8): others could crowd them out."""
        shows_errors = self._is(sender, Asker.AUTHORITY)
        rows = self.reports.list_clients(self.state, self.now, self._presence.keys, with_errors=shows_errors)
        waited = self.history.count_waits()
        return wire.Members(self.now, tuple(replace(one, waited=waited[one.key]) for one in rows))

    def _change_access(self, sender: bytes, message: AccessMessage, op_id: bytes) -> None:
        """Carry out a command on the allow list; it is journaled although the state's bytes do not change (M12)."""
        if isinstance(message, Allow):
            self.access.check_allow(message.grantee, message.delegates)
        else:
            message = Disallow(message.key, self.access.find_forgettable(message.key))
        change = Change(message, sender, op_id)
        self.access.changes.change(message)
        self.access.refresh()
        self.journal.append(self.now, change, self.version.hash)
        self._op_ids.append(op_id)
        self._sink.emit(types.AccessChanged(change=change.name, allowed=len(self.access.keys)))

    def _list_allowed(self) -> wire.AllowedKeys:
        access = self.access
        return wire.AllowedKeys(
            access.is_open,
            access.join_authority,
            tuple((one.grantee, one.delegates) for one in access.get_authorizations()),
            tuple(sorted(access.changes.denied)),
            access.list_waiting(self.now),
        )

    def _list_earnings(self) -> wire.Earnings:
        return wire.Earnings(tuple((slot.signer, slot.earned) for slot in self.state.registry.slots if slot.earned))

    def _show_data_manifest(self, body: wire.DataManifestRequest) -> wire.DataManifestPart:
        root, raw = self.data_manifest
        if root != self.state.config.data_root:
            raw = b""
        return wire.DataManifestPart(len(raw), raw[body.start : body.start + wire.MAX_MANIFEST_PART_BYTES])

    # a row for each type of request
    REQUESTS: ClassVar[dict[type[wire.RequestBody], RequestKind]] = {
        wire.HelloRequest: RequestKind(lambda self, _, body: self._greet(body)),
        wire.PingRequest: RequestKind(lambda *_: None),
        wire.StatusRequest: RequestKind(lambda self, *_: self.get_status()),
        wire.HistoryRequest: RequestKind(
            lambda self, _, body: wire.History(tuple(self.history.points.after(body.after_step)))
        ),
        wire.SubscribeRequest: RequestKind(lambda *_: None, Asker.FOLLOWER),  # the hub subscribes
        wire.RecordRequest: RequestKind(lambda self, *_: make_full(self.version, self.now), Asker.FOLLOWER),
        wire.DataManifestRequest: RequestKind(lambda self, _, body: self._show_data_manifest(body), Asker.FOLLOWER),
        wire.MembersRequest: RequestKind(lambda self, sender, _: self._list_members(sender), Asker.FIRST),
        wire.EarningsRequest: RequestKind(lambda self, *_: self._list_earnings(), Asker.OWNER),
        wire.AllowedRequest: RequestKind(lambda self, *_: self._list_allowed(), Asker.AUTHORITY),
        wire.ReportRequest: RequestKind(
            lambda self, sender, body: self.reports.put(sender, body.report, self.now),
            Asker.FIRST,
            needs_subscription=True,
        ),
        wire.AnnounceRequest: RequestKind(
            lambda self, sender, body: self._put_record(sender, body.record), needs_subscription=True, is_kept=True
        ),
        wire.SubmitRequest: RequestKind(
            lambda self, sender, body: self._submit(sender, body), needs_subscription=True, is_kept=True
        ),
    }


def _check_record(sender: bytes, record: AddressRecord) -> None:
    """Check that an address record is the sender's own, and signed by its key."""
    if record.p2p != sender:
        raise wire.BadRequest("address record: its key is not the connection's")
    try:
        check_address_record(record)
    except WireError as error:
        raise wire.BadRequest(str(error)) from error


def is_on_record(state: Coordinator, sender: bytes, body: wire.RequestBody) -> bool:
    """Whether a refused request had already taken effect, exactly as sent (K3)."""
    if not isinstance(body, wire.SubmitRequest):
        return False
    message = decode_message(body.number, body.body)
    if isinstance(message, Allow | Disallow):
        return False
    if isinstance(message, msg.ReportEquivocation):  # that the member is ejected does not make other evidence true
        try:
            check_report(state, message, body.evidence)
        except CoordinatorError:
            return False
    return is_repeat(state, sender, message)
