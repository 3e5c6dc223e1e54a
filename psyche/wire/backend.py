"""What a client and the coordinator server say to each other (msgpack in frames, `docs/protocol-reference.md` 16).

    client -> server   Request(id, body)      one of the bodies below; the first is HelloRequest
    server -> client   Reply                  exactly one per request, echoing its id (K4)
                       FullState, StateDelta  to those who subscribed (K5)
                       BookChange             to those who subscribed
                       Goodbye                why the server hangs up

All integers are checked against their field's range while they are read, all strings and bytes
against their length, so that what decodes may be used. Unknown trailing fields are ignored.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from psyche.core.rules.apply import Sender
from psyche.core.state import errors as core_errors
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.gossip import Evidence
from psyche.core.state.limits import MAX_CLIENTS, RUN_ID_BYTES, STATE_BYTES
from psyche.errors import BackendError, PsycheError, WireError
from psyche.wire.access import KEY_BYTES, MAX_KEYS, AccessKind
from psyche.wire.address_record import AddressRecord
from psyche.wire.messages import BY_NUMBER, MAX_FIELDS_BYTES, AnyMessage, decode_fields, encode_fields, get_kind
from psyche.wire.msgpack import UNREADABLE
from psyche.wire.ports import Proof

VERSION: Final = 2  # 1 had a request for each kind of message
PURPOSE: Final = "coordinator"  # what the handshake's signatures name
MAX_REQUEST_BYTES: Final = 8_192  # two signed results, or an address record of 8 addresses, with room
MAX_SERVER_FRAME_BYTES: Final = 1 << 20  # a full state that does not compress, or a book of 256 records
MAX_PROGRAM_BYTES: Final = 96
MAX_REASON_CHARS: Final = 1_000
MAX_SIGNED_RESULT_BYTES: Final = 1_024  # 599
OP_ID_BYTES: Final = 16
STATE_HASH_BYTES: Final = 16  # BLAKE3-16 (K5)

Key: TypeAlias = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
StateHash: TypeAlias = Annotated[bytes, Meta(min_length=STATE_HASH_BYTES, max_length=STATE_HASH_BYTES)]
OpId: TypeAlias = Annotated[bytes, Meta(min_length=OP_ID_BYTES, max_length=OP_ID_BYTES)]
Unsigned63: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
Address: TypeAlias = Annotated[str, Meta(max_length=128)]
RunId: TypeAlias = Annotated[str, Meta(max_length=RUN_ID_BYTES)]
Claim: TypeAlias = tuple[Key, Annotated[int, Meta(ge=1)]]  # a signer, and an amount of 64 bits
SignedResult: TypeAlias = Annotated[bytes, Meta(max_length=MAX_SIGNED_RESULT_BYTES)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class HelloRequest(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first request: versions and the run. `run_id` empty: whichever run the server has."""

    version: int
    run_id: RunId
    program: Annotated[str, Meta(max_length=MAX_PROGRAM_BYTES)]


class SubscribeRequest(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Push me the full state and the address book now, and every change from now on; repeated on a hash mismatch."""


class PingRequest(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """I am here; are you?"""


class SubmitRequest(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """A message to the run, or to its home: the number of its kind, and its fields (`wire.messages`).

    `op_id` names an owner's wish, whatever the resends (K3). What the home checks before it believes a message:
    `record` says where who joins can be found (M2), `evidence` are the two signed results behind a report of
    equivocation, in their gossip form (R7).
    """

    number: Annotated[int, Meta(ge=0, le=255)]
    fields: Annotated[bytes, Meta(max_length=MAX_FIELDS_BYTES)]
    op_id: OpId | None = None
    record: AddressRecord | None = None
    evidence: tuple[SignedResult, SignedResult] | None = None


class AnnounceRequest(msgspec.Struct, frozen=True, array_like=True, tag="announce"):
    """Where to find me from now on: after a reconnect, or when an address changed."""

    record: AddressRecord


class AllowedRequest(msgspec.Struct, frozen=True, array_like=True, tag="allowed"):
    """Who may join? For the owner and the join authority."""


class EarningsRequest(msgspec.Struct, frozen=True, array_like=True, tag="earnings"):
    """Who has earned what that nobody has collected? For the owner."""


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """How is the run? Anyone may ask."""


RequestBody: TypeAlias = (
    HelloRequest
    | SubscribeRequest
    | PingRequest
    | SubmitRequest
    | AnnounceRequest
    | EarningsRequest
    | AllowedRequest
    | StatusRequest
)


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One request. Ids are the client's own; a resend keeps its id (K4)."""

    id: Unsigned63
    body: RequestBody


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag="greeting"):
    """The answer to hello. `now_unix` is the run's clock, which need not be the client's."""

    version: int
    run_id: RunId
    run_uid: Key
    program: str
    now_unix: Unsigned63


class RunStatus(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """The answer to status: what a person wants to know of a run, without its members' details."""

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
    waiting: int  # joined and not in the running epoch
    min_clients: int
    init_min_clients: int
    connections: int
    earning_rate: int = 0  # of the epochs that form from now on, as is the next one (M7)
    slashing_rate: int = 0
    checkpoint_step: int = 0  # of the weights that can be loaded from the sources (S10)
    checkpoint_sources: tuple[str, ...] = ()  # places that members named; none: the run starts from its own source
    is_open: bool = False  # whether anybody may join (M12)
    allowed: int = 0  # keys that may join otherwise


class Earnings(msgspec.Struct, frozen=True, array_like=True, tag="earnings"):
    """The answer to earnings: signers with what they have earned, in slot order."""

    earned: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLIENTS)]


class AllowedKeys(msgspec.Struct, frozen=True, array_like=True, tag="allowed"):
    """The answer to allowed: grantees with their delegates, and keys that were disallowed."""

    is_open: bool
    join_authority: Key
    authorizations: Annotated[tuple[tuple[Key, tuple[Key, ...]], ...], Meta(max_length=2 * MAX_KEYS)]
    disallowed: Annotated[tuple[Key, ...], Meta(max_length=MAX_KEYS)] = ()


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer to the request `id`.

    `code` is empty on success, else the name of the error class. `on_record` with a code: what was
    asked had taken effect before, exactly as sent, so the repeat is a success (K3). `nonce` is that
    of the state in which the answer was given.
    """

    id: Unsigned63
    code: Annotated[str, Meta(max_length=64)] = ""
    message: Text = ""
    on_record: bool = False
    nonce: Unsigned63 = 0
    body: Greeting | RunStatus | Earnings | AllowedKeys | None = None


class FullState(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """The whole state's bytes, compressed (zstd)."""

    nonce: Unsigned63
    now_unix: Unsigned63
    hash: StateHash
    compressed: bytes


class ChangedBytes(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that changed, and where."""

    offset: Annotated[int, Meta(ge=0, lt=STATE_BYTES)]
    data: bytes


class StateDelta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """What changed from one state to the next that this client gets; `hash` is that of the state after."""

    from_nonce: Unsigned63
    to_nonce: Unsigned63
    now_unix: Unsigned63
    hash: StateHash
    runs: tuple[ChangedBytes, ...]


class BookChange(msgspec.Struct, frozen=True, array_like=True, tag="book"):
    """Records that are new or changed, and keys that are gone; `whole`: forget what was known before."""

    whole: bool
    records: Annotated[tuple[AddressRecord, ...], Meta(max_length=MAX_CLIENTS)]
    removed: Annotated[tuple[Key, ...], Meta(max_length=2 * MAX_CLIENTS)] = ()


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """The server closes this connection; `code` as in a reply."""

    code: Annotated[str, Meta(max_length=64)]
    message: Text


ServerMessage: TypeAlias = Reply | FullState | StateDelta | BookChange | Goodbye


class RequestRefused(BackendError):
    """The server refuses a request for a reason of its own; a retry does not help."""


class NotOwner(RequestRefused):
    """Only an owner of the run may command it."""


class NotAllowed(BackendError):
    """The key is not on the run's allow list; it is let in as soon as the owner puts it there."""


class WrongRun(RequestRefused):
    """The server has another run than the one asked for."""


class WrongVersion(RequestRefused):
    """Client and server speak different versions of this protocol."""


class BadRequest(RequestRefused):
    """The request makes no sense where it was sent; the message says why."""


class Replaced(BackendError):
    """Another connection with the same key has taken this one's place."""


class Overloaded(BackendError):
    """The server has no room, or this connection asks for too much; try again later."""


class ShuttingDown(BackendError):
    """The server is being stopped; it may come back."""


_SERVER_ERRORS: Final[dict[str, type[BackendError]]] = {
    kind.__name__: kind
    for kind in (
        RequestRefused,
        NotOwner,
        NotAllowed,
        WrongRun,
        WrongVersion,
        BadRequest,
        Replaced,
        Overloaded,
        ShuttingDown,
    )
}
_CORE_ERRORS: Final[dict[str, type[CoordinatorError]]] = {
    name: kind
    for name, kind in vars(core_errors).items()
    if isinstance(kind, type) and issubclass(kind, CoordinatorError)
}
_request_decoder: Final = msgspec.msgpack.Decoder(Request)
_server_decoder: Final = msgspec.msgpack.Decoder(ServerMessage)
_encoder: Final = msgspec.msgpack.Encoder()


def error_from_code(code: str, message: str) -> PsycheError:
    """The error that a reply's or goodbye's `code` names; an unknown code is a plain `BackendError`."""
    kind = _CORE_ERRORS.get(code) or _SERVER_ERRORS.get(code)
    if kind is None:
        return BackendError(f"{code}: {message}")
    return kind(message)


def code_of(error: PsycheError) -> str:
    """The code under which an error crosses the wire."""
    return type(error).__name__


def shorten(message: str) -> str:
    """A message that fits into a reply."""
    return message[:MAX_REASON_CHARS]


def encode_message(message: Request | ServerMessage) -> bytes:
    """The bytes of one frame."""
    return _encoder.encode(message)


def decode_request(raw: bytes) -> Request:
    """Read a request.

    Raises:
        WireError: it is none, or a field is out of range; the message names it.
    """
    try:
        return _request_decoder.decode(raw)
    except UNREADABLE as error:
        raise WireError(f"request: {error}") from error


def decode_server_message(raw: bytes) -> ServerMessage:
    """Read what a server sent.

    Raises:
        WireError: it is no message of this protocol, or a field is out of range.
    """
    try:
        return _server_decoder.decode(raw)
    except UNREADABLE as error:
        raise WireError(f"server message: {error}") from error


def build_submit(message: AnyMessage, proof: Proof = None, op_id: bytes | None = None) -> SubmitRequest:
    """The request that carries a message, with what the home checks before it believes it.

    Raises:
        WireError: a field of the message cannot be written.
    """
    record = proof if isinstance(proof, AddressRecord) else None
    evidence = (proof.first, proof.second) if isinstance(proof, Evidence) else None
    return SubmitRequest(get_kind(message).number, encode_fields(message), op_id, record, evidence)


def get_message(request: SubmitRequest) -> AnyMessage:
    """The message that a request carries.

    Raises:
        WireError: naming the field and the rule that it breaks.
    """
    return decode_fields(request.number, request.fields)


def is_command(body: RequestBody) -> bool:
    """Whether this is a message that only an owner or the join authority may send."""
    kind = BY_NUMBER.get(body.number) if isinstance(body, SubmitRequest) else None
    return isinstance(kind, AccessKind) or (kind is not None and kind.sender is Sender.OWNER)


def get_name(body: RequestBody) -> str:
    """What a request is called in event logs: the name of its message, or of its type."""
    kind = BY_NUMBER.get(body.number) if isinstance(body, SubmitRequest) else None
    return type(body).__name__ if kind is None else kind.name
