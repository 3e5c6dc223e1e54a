"""Reading, writing, recording and replaying conformance traces; the format stands in README.md."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import zstandard

from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.account import (
    decode_config,
    decode_model,
    decode_state,
    encode_config,
    encode_model,
    encode_state,
)
from psyche.core.encoding.bodies import decode_body, encode_body
from psyche.core.rules.apply import BY_TYPE, KINDS, Kind, Sender, apply
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import (
    Join,
    LeaveRun,
    Message,
    SetRates,
    Tick,
    WitnessMessage,
)
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Config, Coordinator, Metadata, Model, Progress

TRACES = Path(__file__).parent / "traces"
FOUND = Path(__file__).parent / "found"  # what random events found once; no scenario writes these
TRACE_NAMES = {"recover": "process_recovery", "set_rates": "process_rates"}  # others have the name of their kind
KINDS_BY_EVENT = {TRACE_NAMES.get(kind.name, kind.name): kind for kind in KINDS}
SENDER_NAMES = {Join: "signer", LeaveRun: "signer"}  # others: "sender"

RULES = re.compile(r"([A-Z]\d+(, [A-Z]\d+)*|layout)?")
# Values that these rules refuse do not even fit into a message's bytes.
UNWRITABLE = {("process_rates", "ConfigRefused"), ("update_client_version", "ConfigRefused")}
READERS: dict[type, Callable[[Any], Any]] = {
    bytes: bytes.fromhex,
    Checkpoint: lambda value: Checkpoint(CheckpointKind(value[0]), value[1], value[2]),
    Config: lambda value: decode_config(unpack(value)),
    Model: lambda value: decode_model(unpack(value)),
    Progress: lambda value: Progress(*value),
    Metadata: lambda value: Metadata(*value),
}  # other values stand in a trace as they are


def find_refusals(rule: Callable[..., bool]) -> set[str]:
    """The classes of errors that a rule of core names, or a function that it calls."""
    found: set[str] = set()
    rules = [cast("FunctionType", rule)]
    for one in rules:
        named = {name for code in _iter_codes(one.__code__) for name in code.co_names}
        for value in (one.__globals__.get(name) for name in named):
            for part in cast("dict[Any, Any]", value).values() if isinstance(value, dict) else [value]:
                if isinstance(part, type) and issubclass(part, CoordinatorError):
                    found.add(part.__name__)
                if isinstance(part, FunctionType) and part.__module__.startswith("psyche.core.") and part not in rules:
                    rules.append(part)
    return found


def _iter_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_codes(constant)


MEETABLE = {
    (event, error) for event, kind in KINDS_BY_EVENT.items() for error in find_refusals(kind.process)
} - UNWRITABLE  # each kind of event with each class that it can be refused with


def pack(raw: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor(level=19).compress(raw)).decode()


def unpack(text: str) -> bytes:
    return zstandard.ZstdDecompressor().decompress(base64.b64decode(text))


def compute_hash(state: Coordinator) -> str:
    return hashlib.sha256(encode_state(state)).hexdigest()


def write_value(value: object) -> object:
    match value:
        case tuple():
            written: object = [write_value(one) for one in cast("tuple[object, ...]", value)]
        case bytes():
            written = value.hex()
        case WitnessMessage():
            written = pack(encode_body(value))
        case Checkpoint():
            written = [int(value.kind), value.name, value.revision]
        case Config():
            written = pack(encode_config(value))
        case Model():
            written = pack(encode_model(value))
        case Progress() | Metadata():
            written = list(astuple(value))
        case _:
            written = "expired" if value is EXPIRED else value
    return written


def read_value(hint: Any, value: Any) -> Any:
    """The value of a field with this annotation; of several types the first is the one that a trace writes down."""
    inner = get_args(hint)
    if value is None or value == "expired":
        return EXPIRED if value else None
    if get_origin(hint) is not tuple:
        return read_value(inner[0], value) if inner else READERS.get(hint, lambda same: same)(value)
    hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    return tuple(map(read_value, hints, value))


def get_sender_name(kind: Kind) -> str | None:
    """What a trace calls the sender; None where nobody signs."""
    return SENDER_NAMES.get(kind.type, "sender") if kind.sender is Sender.ANYBODY else None


def write_event(now: int, slot: int, sender: bytes, message: Message) -> dict[str, Any]:
    """What a trace says of a message: the name of its kind, when, from whom, and its fields."""
    kind = BY_TYPE[type(message)]
    event: dict[str, object] = {"event": TRACE_NAMES.get(kind.name, kind.name)}
    event |= {} if isinstance(message, SetRates) else {"now": now}
    event |= {"slot": slot} if isinstance(message, Tick) else {}
    name = get_sender_name(kind)
    event |= {name: sender} if name else {}
    match message:
        case WitnessMessage():
            event["message"] = message
        case _:
            event |= {f.name: getattr(message, f.name) for f in fields(BY_TYPE[type(message)].type)}
    return {name: write_value(value) for name, value in event.items()}


def read_event(event: dict[str, Any]) -> tuple[int, int, bytes, Message]:
    """The arguments of `apply` after the state."""
    kind = KINDS_BY_EVENT[event["event"]]
    name = get_sender_name(kind)
    sender = ZERO32 if name is None else bytes.fromhex(event[name])
    if kind.type is WitnessMessage:
        message: Message = decode_body(WitnessMessage, unpack(event["message"]))
    else:
        hints = get_type_hints(kind.type, include_extras=True)
        message = kind.type(**{f.name: read_value(hints[f.name], event[f.name]) for f in fields(kind.type)})
    return event.get("now", 0), event.get("slot", 0), sender, message


@dataclass
class Trace:
    """One run of the machine."""

    name: str
    what: str
    start: bytes
    events: list[dict[str, Any]] = field(default_factory=list)
    end: bytes = b""

    def format(self) -> str:
        head = {"what": self.what, "start": pack(self.start)}
        lines = [json.dumps(head)[1:-1], '"events": [\n' + ",\n".join(map(json.dumps, self.events)) + "\n]"]
        lines.append(json.dumps({"end": pack(self.end)})[1:-1])
        return "{" + ",\n".join(lines) + "}\n"

    def write(self) -> None:
        (TRACES / f"{self.name}.json").write_text(self.format())


def read_trace(path: Path) -> Trace:
    raw = json.loads(path.read_text())
    return Trace(path.stem, raw["what"], unpack(raw["start"]), raw["events"], unpack(raw["end"]))


def replay(trace: Trace) -> Coordinator:
    """Run the events again from the start; every refusal and every hash must be the same."""
    state = decode_state(trace.start)
    for number, event in enumerate(trace.events):
        error, rule = None, ""
        try:
            apply(state, *read_event(event))
        except CoordinatorError as refusal:
            error, rule = refusal.code, refusal.rule
        where = f"{trace.name}, event {number}: {event['event']}"
        assert RULES.fullmatch(rule), where
        assert error == event.get("error"), where
        assert compute_hash(state) == event["sha256"], where
    return state


class Recorder:
    """Stands for `apply` while a trace is recorded."""

    def __init__(self) -> None:
        self.trace: Trace | None = None

    def __call__(self, state: Coordinator, now: int, slot: int, sender: bytes, message: Message) -> bool:
        if self.trace is None:
            return apply(state, now, slot, sender, message)
        event = write_event(now, slot, sender, message)
        try:
            return apply(state, now, slot, sender, message)
        except CoordinatorError as refusal:
            event["error"] = refusal.code
            raise
        finally:
            event["sha256"] = compute_hash(state)
            self.trace.events.append(event)
