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

from psyche.core import errors as core_errors
from psyche.core.errors import CoordinatorError
from psyche.core.limits import LOCAL_PATH_BYTES, MAX_ADDRESSES, MAX_CLIENTS, RUN_ID_BYTES, STATE_BYTES
from psyche.core.state import Checkpoint, CheckpointKind
from psyche.errors import BackendError, PsycheError, WireError
from psyche.wire.ports import AddressRecord

VERSION: Final = 1
PURPOSE: Final = "coordinator"  # what the handshake's signatures name
MAX_REQUEST_BYTES: Final = 8_192  # two signed results, or an address record of 8 addresses, with room
MAX_SERVER_FRAME_BYTES: Final = 1 << 20  # a full state that does not compress, or a book of 256 records
MAX_PROGRAM_BYTES: Final = 96
MAX_REASON_CHARS: Final = 1_000
MAX_WITNESS_BYTES: Final = 1_024  # 753 without the chain's discriminator, with room
MAX_SIGNED_RESULT_BYTES: Final = 1_024  # 599
OP_ID_BYTES: Final = 16
STATE_HASH_BYTES: Final = 16  # BLAKE3-16 (K5)

Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
StateHash: TypeAlias = Annotated[bytes, Meta(min_length=STATE_HASH_BYTES, max_length=STATE_HASH_BYTES)]
OpId: TypeAlias = Annotated[bytes, Meta(min_length=OP_ID_BYTES, max_length=OP_ID_BYTES)]
EpochNumber: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]
Height: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Member: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_CLIENTS - 1)]
Unsigned63: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
Address: TypeAlias = Annotated[str, Meta(max_length=128)]
RunId: TypeAlias = Annotated[str, Meta(max_length=RUN_ID_BYTES)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class AddressMessage(msgspec.Struct, frozen=True, array_like=True):
    """An `AddressRecord` on the wire; its signature is checked by whoever stores it."""

    p2p: Key
    addresses: Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]
    expires_unix: Unsigned63
    signature: Signature


class HelloRequest(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first request: versions and the run. `run_id` empty: whichever run the server has."""

    version: int
    run_id: RunId
    program: Annotated[str, Meta(max_length=MAX_PROGRAM_BYTES)]


class SubscribeRequest(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Push me the full state and the address book now, and every change from now on; repeated on a hash mismatch."""


class PingRequest(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """I am here; are you?"""


class JoinRequest(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """Ask for a place in the next epoch, with where to find me (M1, M2)."""

    record: AddressMessage


class AnnounceRequest(msgspec.Struct, frozen=True, array_like=True, tag="announce"):
    """Where to find me from now on: after a reconnect, or when an address changed."""

    record: AddressMessage


class LeaveRequest(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """Give up the slot for good (`leave_run`, M4)."""


class WithdrawRequest(msgspec.Struct, frozen=True, array_like=True, tag="withdraw"):
    """Leave the running epoch, or take a join back (M4)."""

    epoch: EpochNumber
    member: Member


class WarmupWitnessRequest(msgspec.Struct, frozen=True, array_like=True, tag="warmup_witness"):
    """The weights are loaded and have this full digest (S8)."""

    epoch: EpochNumber
    member: Member
    digest: Digest


class WitnessRequest(msgspec.Struct, frozen=True, array_like=True, tag="witness"):
    """A witness message in the bytes of `core.layout.encode_witness` (W4)."""

    message: Annotated[bytes, Meta(max_length=MAX_WITNESS_BYTES)]


class HealthCheckRequest(msgspec.Struct, frozen=True, array_like=True, tag="health_check"):
    """Accuse a silent witness of the round named (H4)."""

    epoch: EpochNumber
    height: Height
    member: Member


class EquivocationRequest(msgspec.Struct, frozen=True, array_like=True, tag="report_equivocation"):
    """Two signed results of one member for one round, in their gossip form (R7)."""

    first: Annotated[bytes, Meta(max_length=MAX_SIGNED_RESULT_BYTES)]
    second: Annotated[bytes, Meta(max_length=MAX_SIGNED_RESULT_BYTES)]


class CheckpointRequest(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """Name a place from which `certified` can be loaded (S10)."""

    epoch: EpochNumber
    digest: Digest
    kind: CheckpointKind
    name: Annotated[str, Meta(max_length=LOCAL_PATH_BYTES)]
    revision: Annotated[str, Meta(max_length=LOCAL_PATH_BYTES)] | None = None


class PauseRequest(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """The owner stops the run at the next safe point (P4); `op_id` names this wish, whatever the resends (K3)."""

    op_id: OpId


class ResumeRequest(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """The owner lets a paused run go on."""

    op_id: OpId


class RatesRequest(msgspec.Struct, frozen=True, array_like=True, tag="rates"):
    """The owner sets what epochs that form from now on pay and slash; None leaves a rate as it is (M7)."""

    op_id: OpId
    earning: Unsigned63 | None = None
    slashing: Unsigned63 | None = None


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """How is the run? Anyone may ask."""


RequestBody: TypeAlias = (
    HelloRequest
    | SubscribeRequest
    | PingRequest
    | JoinRequest
    | AnnounceRequest
    | LeaveRequest
    | WithdrawRequest
    | WarmupWitnessRequest
    | WitnessRequest
    | HealthCheckRequest
    | EquivocationRequest
    | CheckpointRequest
    | PauseRequest
    | ResumeRequest
    | RatesRequest
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
    body: Greeting | RunStatus | None = None


class FullState(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """The whole state's bytes, compressed (zstd)."""

    nonce: Unsigned63
    now_unix: Unsigned63
    hash: StateHash
    compressed: bytes


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that changed, and where."""

    offset: Annotated[int, Meta(ge=0, lt=STATE_BYTES)]
    data: bytes


class StateDelta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """What changed from one state to the next that this client gets; `hash` is that of the state after."""

    from_nonce: Unsigned63
    to_nonce: Unsigned63
    now_unix: Unsigned63
    hash: StateHash
    runs: tuple[Run, ...]


class BookChange(msgspec.Struct, frozen=True, array_like=True, tag="book"):
    """Records that are new or changed, and keys that are gone; `whole`: forget what was known before."""

    whole: bool
    records: Annotated[tuple[AddressMessage, ...], Meta(max_length=MAX_CLIENTS)]
    removed: Annotated[tuple[Key, ...], Meta(max_length=2 * MAX_CLIENTS)] = ()


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """The server closes this connection; `code` as in a reply."""

    code: Annotated[str, Meta(max_length=64)]
    message: Text


ServerMessage: TypeAlias = Reply | FullState | StateDelta | BookChange | Goodbye


class RequestRefused(BackendError):
    """The server refuses a request for a reason of its own; a retry does not help."""


class NotOwner(RequestRefused):
    """Only an owner of the run may pause or resume it, or set its rates."""


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
    for kind in (RequestRefused, NotOwner, WrongRun, WrongVersion, BadRequest, Replaced, Overloaded, ShuttingDown)
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"request: {error}") from error


def decode_server_message(raw: bytes) -> ServerMessage:
    """Read what a server sent.

    Raises:
        WireError: it is no message of this protocol, or a field is out of range.
    """
    try:
        return _server_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"server message: {error}") from error


def get_address_message(record: AddressRecord) -> AddressMessage:
    """A record as it crosses the wire."""
    return AddressMessage(record.p2p, tuple(record.addresses), record.expires_unix, record.signature)


def get_address_record(message: AddressMessage) -> AddressRecord:
    """The record of a message; check its signature with `crypto.check_address_record`."""
    return AddressRecord(message.p2p, message.addresses, message.expires_unix, message.signature)


def get_checkpoint(request: CheckpointRequest) -> Checkpoint:
    """The source that a checkpoint request names."""
    return Checkpoint(request.kind, request.name, request.revision)
