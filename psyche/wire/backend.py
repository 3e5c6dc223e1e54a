"""The messages between a client and the coordinator server (msgpack in frames, `docs/protocol-reference.md` 16).

    client -> server   Request(id, body)      one of the bodies below; the first is HelloRequest
    server -> client   Reply                  exactly one per request, echoing its id (K4)
                       FullState, StateDelta  to subscribers (K5)
                       BookChange             to subscribers
                       Goodbye                why the server closes the connection

Decoding checks every integer against the range of its field and every string against its length limit, so
that whatever decodes is safe to use. Unknown trailing fields are ignored.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from psyche.core.encoding.bodies import decode_body, encode_body
from psyche.core.rules.apply import KINDS, Kind, Sender
from psyche.core.state.errors import REFUSALS
from psyche.core.state.gossip import Evidence
from psyche.core.state.limits import MAX_CLIENTS, RUN_ID_BYTES, STATE_BYTES
from psyche.core.state.messages import Message
from psyche.errors import BackendError, PsycheError, WireError
from psyche.wire.access import ACCESS_KINDS, KEY_BYTES, MAX_KEYS, MAX_WAITING, AccessMessage
from psyche.wire.address_record import AddressRecord
from psyche.wire.history import MAX_POINTS, HistoryPoint
from psyche.wire.msgpack import decode_msgpack
from psyche.wire.ports import Proof
from psyche.wire.report import SelfReport, Verification

VERSION: Final = 4  # 1 had a request for each kind of message, 2 no reports (K8), 3 bodies in msgpack
PURPOSE: Final = "coordinator"  # signed in the handshake
MAX_BODY_BYTES: Final = 4_000  # of a message; of a collection 2,628
MAX_REQUEST_BYTES: Final = 8_192  # two signed results, or an address record of 8 addresses, with room to spare
MAX_SERVER_FRAME_BYTES: Final = 1 << 20  # a full state that does not compress, or a book of 256 records
MAX_MANIFEST_PART_BYTES: Final = 512 << 10  # takes 0.1 s at 40 Mbit/s, so a state waits no longer
MAX_PROGRAM_BYTES: Final = 96
MAX_REASON_CHARS: Final = 1_000
MAX_SIGNED_RESULT_BYTES: Final = 1_024  # 599
OP_ID_BYTES: Final = 16
STATE_HASH_BYTES: Final = 16  # BLAKE3-16 (K5)

AnyMessage: TypeAlias = Message | AccessMessage  # to a run, or to the server's own allow list
BY_NUMBER: Final[dict[int, Kind]] = {kind.number: kind for kind in (*KINDS, *ACCESS_KINDS)}
BY_TYPE: Final[dict[type, Kind]] = {kind.type: kind for kind in BY_NUMBER.values()}

Key: TypeAlias = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
StateHash: TypeAlias = Annotated[bytes, Meta(min_length=STATE_HASH_BYTES, max_length=STATE_HASH_BYTES)]
OpId: TypeAlias = Annotated[bytes, Meta(min_length=OP_ID_BYTES, max_length=OP_ID_BYTES)]
Unsigned63: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
Address: TypeAlias = Annotated[str, Meta(max_length=128)]
RunId: TypeAlias = Annotated[str, Meta(max_length=RUN_ID_BYTES)]
Claim: TypeAlias = tuple[Key, Annotated[int, Meta(ge=1)]]  # a signer and a 64-bit amount
SignedResult: TypeAlias = Annotated[bytes, Meta(max_length=MAX_SIGNED_RESULT_BYTES)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


def get_kind(message: AnyMessage) -> Kind:
    return BY_TYPE[type(message)]


def decode_message(number: int, body: bytes) -> AnyMessage:
    """Decode the message with a number from its body.

    Raises:
        WireError: no message has that number, or a field breaks its rule; the text names both.
    """
    kind = BY_NUMBER.get(number)
    if kind is None:
        raise WireError(f"message: no message has the number {number}")
    return decode_body(kind.type, body)


class HelloRequest(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first request: versions and the run. An empty `run_id` accepts any run."""

    version: int
    run_id: RunId
    program: Annotated[str, Meta(max_length=MAX_PROGRAM_BYTES)]


class SubscribeRequest(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Asks for the full state and the address book now and every change afterwards; repeated on a hash mismatch."""


class PingRequest(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Checks that the connection is alive."""


class SubmitRequest(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """Submits a message to the run or its backend: the number of its kind, and its body (`core.encoding.bodies`).

    `op_id` identifies an owner's command across resends (K3). The backend checks the proof before it takes the message:
    `record` is the address record of a member that joins (M2), `evidence` the two signed results behind a report of
    equivocation, encoded as gossip (R7).
    """

    number: Annotated[int, Meta(ge=0, le=255)]
    body: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES)]
    op_id: OpId | None = None
    record: AddressRecord | None = None
    evidence: tuple[SignedResult, SignedResult] | None = None


class AnnounceRequest(msgspec.Struct, frozen=True, array_like=True, tag="announce"):
    """Announces the sender's new address record: after a reconnect, or when an address changed."""

    record: AddressRecord


class AllowedRequest(msgspec.Struct, frozen=True, array_like=True, tag="allowed"):
    """Asks who may join. For the owner and the join authority only."""


class HistoryRequest(msgspec.Struct, frozen=True, array_like=True, tag="history"):
    """Asks for the run's course after a step. Anyone may send it."""

    after_step: Unsigned63 = 0


class EarningsRequest(msgspec.Struct, frozen=True, array_like=True, tag="earnings"):
    """Asks for the earnings that nobody has collected yet. For the owner only."""


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """Asks for the run's status. Anyone may send it."""


class ReportRequest(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Says what the client does (K8). For preferred keys (K7)."""

    report: SelfReport


class MembersRequest(msgspec.Struct, frozen=True, array_like=True, tag="members"):
    """Asks who takes part, and what each says of itself (K8). For preferred keys (K7)."""


class RecordRequest(msgspec.Struct, frozen=True, array_like=True, tag="record"):
    """Asks for the full state once, without a subscription. For those that may follow the run."""


class DataManifestRequest(msgspec.Struct, frozen=True, array_like=True, tag="data_manifest"):
    """Asks for a part of the run's data manifest, from byte `start` on (D1). For those that may follow the run."""

    start: Unsigned63


RequestBody: TypeAlias = (
    HelloRequest | SubscribeRequest | PingRequest | SubmitRequest | AnnounceRequest | EarningsRequest | AllowedRequest
    | StatusRequest | ReportRequest | MembersRequest | RecordRequest | DataManifestRequest | HistoryRequest
)  # fmt: skip


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One request. The client chooses the ids; a resend keeps its id (K4)."""

    id: Unsigned63
    body: RequestBody


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag="greeting"):
    """The answer to hello. `now_unix` is the run's clock, which may differ from the client's."""

    version: int
    run_id: RunId
    run_uid: Key
    program: str
    now_unix: Unsigned63


class RunStatus(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """The answer to status: a summary of the run, without details of its members."""

    run_id: RunId
    run_uid: Key
    program: str
    now_unix: Unsigned63
    nonce: Unsigned63
    run_state: int
    state_start_unix: Unsigned63
    pending_pause: bool
    epoch: int
    height: int
    step: int
    total_steps: int
    healthy: int  # members of the running epoch
    members: int
    waiting: int  # joined, but not in the running epoch
    min_clients: int
    init_min_clients: int
    connections: int | None = None  # None: the backend does not know, because a chain has none
    earning_rate: int = 0  # this and the next, in base units, apply to epochs that form from now on (M7)
    slashing_rate: int = 0
    checkpoint_step: int = 0  # the step of the weights at `checkpoint_sources` (S10)
    checkpoint_sources: tuple[str, ...] = ()  # named by members; empty: joiners load from the run's initial source
    is_open: bool = False  # whether anybody may join (M12)
    allowed: int | None = (
        0  # the number of keys that may join if the run is not open; None: the backend has no such list
    )
    loss: float | None = None  # the median of what the healthy members say of themselves (K8)
    tokens_per_s: float = 0.0  # of all healthy members together, as they say
    reporting: int = 0  # connected clients that say what they do
    failing: int = 0  # clients that report an error
    decimals: int = 0  # digits that the rates have behind the point when people read them
    tokens: int = 0  # trained in the run so far
    learning_rate: float = 0.0  # of the running step
    epoch_rounds: int = 0  # rounds with data of each epoch; 0: its time decides
    limit_unix: int = 0  # when the phase ends at the latest; 0: it has no limit
    verification: Verification | None = None  # None: nobody verifies anything in this run


class Earnings(msgspec.Struct, frozen=True, array_like=True, tag="earnings"):
    """The answer to earnings: signers with their earnings, in slot order."""

    earned: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLIENTS)]


class AllowedKeys(msgspec.Struct, frozen=True, array_like=True, tag="allowed"):
    """The answer to allowed: grantees with their delegates, the disallowed keys, and those that wait.

    Each of these was refused lately, the last one first, with the seconds since then (M12).
    """

    is_open: bool
    join_authority: Key
    authorizations: Annotated[tuple[tuple[Key, tuple[Key, ...]], ...], Meta(max_length=2 * MAX_KEYS)]
    disallowed: Annotated[tuple[Key, ...], Meta(max_length=MAX_KEYS)] = ()
    waiting: Annotated[tuple[tuple[Key, Unsigned63], ...], Meta(max_length=MAX_WAITING)] = ()


class MemberInfo(msgspec.Struct, frozen=True, array_like=True):
    """One client of the run: what the server knows of it, and what it says of itself (K8).

    Args:
        key: its key on the connection.
        index: its number in the running epoch; None if it is not a member.
        state: its `ClientState` in the running epoch; None if it is not a member.
        is_connected: whether it follows the run now; None if the backend does not know, as on a chain.
        report: what it said last; None if nothing. The error in it is empty unless an owner or the join authority asks.
        report_age_s: seconds since then.
        has_error: whether it reports an error.
        error_age_s: seconds since the server first heard of this error.
        due: rounds of the running epoch whose results were asked for so far.
        credits: of those, how many of this member's counted.
        waited: in how many of the last 50 rounds it was waited for last.
        missed: rounds in a row, up to now, in which it was not heard (H2).
        late: rounds in a row, up to now, whose result came too late (H2).
    """

    key: Key
    index: int | None
    state: int | None
    is_connected: bool | None
    report: SelfReport | None = None
    report_age_s: Unsigned63 = 0
    has_error: bool = False
    error_age_s: Unsigned63 = 0
    due: Unsigned63 = 0
    credits: Unsigned63 = 0
    waited: Unsigned63 = 0
    missed: Unsigned63 = 0
    late: Unsigned63 = 0


class Members(msgspec.Struct, frozen=True, array_like=True, tag="members"):
    """The answer to members: those of the running epoch by index, then others that are here or were a while ago."""

    now_unix: Unsigned63
    members: tuple[MemberInfo, ...]


class History(msgspec.Struct, frozen=True, array_like=True, tag="history"):
    """The answer to history: a point for each round with data; of long runs every second, fourth, eighth ... step."""

    points: Annotated[tuple[HistoryPoint, ...], Meta(max_length=MAX_POINTS)]


class FullState(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """The bytes of the whole state, compressed with zstd."""

    nonce: Unsigned63
    now_unix: Unsigned63
    hash: StateHash
    compressed: bytes


class DataManifestPart(msgspec.Struct, frozen=True, array_like=True, tag="data_manifest"):
    """The answer to data_manifest: the size of the whole, and bytes of it; none where the server has no manifest."""

    size_bytes: Unsigned63
    data: Annotated[bytes, Meta(max_length=MAX_MANIFEST_PART_BYTES)]


ReplyBody: TypeAlias = (
    Greeting | RunStatus | Earnings | AllowedKeys | Members | FullState | DataManifestPart | History | None
)  # fmt: skip


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer to the request `id`.

    `code` is empty on success, otherwise the name of the error class, and `rule` says which rules of the record were
    broken. `on_record` with a code: the request had
    already taken effect, exactly as sent, so the repeat counts as a success (K3). `nonce` is that of the state
    in which the answer was given.
    """

    id: Unsigned63
    code: Annotated[str, Meta(max_length=64)] = ""
    message: Text = ""
    rule: Annotated[str, Meta(max_length=64)] = ""
    on_record: bool = False
    nonce: Unsigned63 = 0
    body: ReplyBody = None


class ChangedBytes(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that changed, and their offset."""

    offset: Annotated[int, Meta(ge=0, lt=STATE_BYTES)]
    data: bytes


class StateDelta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """The changes from the previous state sent to this client to the next; `hash` is that of the new state."""

    from_nonce: Unsigned63
    to_nonce: Unsigned63
    now_unix: Unsigned63
    hash: StateHash
    runs: tuple[ChangedBytes, ...]


class BookChange(msgspec.Struct, frozen=True, array_like=True, tag="book"):
    """New or changed address records, and removed keys; with `whole`, the change replaces the whole book."""

    whole: bool
    records: Annotated[tuple[AddressRecord, ...], Meta(max_length=MAX_CLIENTS)]
    removed: Annotated[tuple[Key, ...], Meta(max_length=2 * MAX_CLIENTS)] = ()


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """The server closes this connection; `code` is as in `Reply`."""

    code: Annotated[str, Meta(max_length=64)]
    message: Text


ServerMessage: TypeAlias = Reply | FullState | StateDelta | BookChange | Goodbye


class RequestRefused(BackendError):
    """The server refuses a request; a retry does not help."""


class NotOwner(RequestRefused):
    """Only an owner of the run may send this command."""


class NotAllowed(BackendError):
    """The key is not on the run's allow list; it may join as soon as the owner adds it."""


class WrongRun(RequestRefused):
    """The server hosts another run than the requested one."""


class WrongVersion(RequestRefused):
    """Client and server speak different versions of this protocol."""


class BadRequest(RequestRefused):
    """The request is not valid at this point; the message says why."""


class Replaced(BackendError):
    """Another connection with the same key has taken this one's place."""


class Overloaded(BackendError):
    """The server has no free connection, or this connection sends too many requests; try again later."""


class ShuttingDown(BackendError):
    """The server is shutting down; it may come back."""


_REFUSALS: Final = (
    RequestRefused, NotOwner, NotAllowed, WrongRun, WrongVersion, BadRequest, Replaced, Overloaded, ShuttingDown,
)  # fmt: skip
_SERVER_ERRORS: Final[dict[str, type[BackendError]]] = {kind.__name__: kind for kind in _REFUSALS}
_CORE_ERRORS: Final = {kind.__name__: kind for kind in REFUSALS.values()}
_request_decoder: Final = msgspec.msgpack.Decoder(Request)
_server_decoder: Final = msgspec.msgpack.Decoder(ServerMessage)
_encoder: Final = msgspec.msgpack.Encoder()


def error_from_code(code: str, message: str, rule: str = "") -> PsycheError:
    """Build the error that the `code` of a reply or goodbye names; an unknown code becomes a plain `BackendError`."""
    if code in _CORE_ERRORS:
        return _CORE_ERRORS[code](message, rule)
    kind = _SERVER_ERRORS.get(code)
    return BackendError(f"{code}: {message}") if kind is None else kind(message)


def shorten(message: str) -> str:
    return message[:MAX_REASON_CHARS]


def encode_message(message: Request | ServerMessage) -> bytes:
    return _encoder.encode(message)


def decode_backend_request(raw: bytes) -> Request:
    return decode_msgpack(_request_decoder, raw, "request")


def decode_server_message(raw: bytes) -> ServerMessage:
    return decode_msgpack(_server_decoder, raw, "server message")


def build_submit(message: AnyMessage, proof: Proof = None, op_id: bytes | None = None) -> SubmitRequest:
    """Build the request that carries a message, with the proof that the backend checks before accepting it.

    Raises:
        WireError: a field of the message cannot be written.
    """
    record = proof if isinstance(proof, AddressRecord) else None
    evidence = (proof.first, proof.second) if isinstance(proof, Evidence) else None
    return SubmitRequest(get_kind(message).number, encode_body(message), op_id, record, evidence)


def is_command(body: RequestBody) -> bool:
    """Whether only an owner or the join authority may send this message."""
    kind = BY_NUMBER.get(body.number) if isinstance(body, SubmitRequest) else None
    return kind is not None and kind.sender in (Sender.OWNER, Sender.OWNER_OR_JOIN_AUTHORITY)


def get_name(body: RequestBody) -> str:
    """Return the name of a request in event logs: that of its message, or of its type."""
    kind = BY_NUMBER.get(body.number) if isinstance(body, SubmitRequest) else None
    return type(body).__name__ if kind is None else kind.name
