"""Reading, writing, recording and replaying conformance traces; the format stands in README.md."""

import base64
import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from psyche.core import transitions
from psyche.core.errors import CoordinatorError
from psyche.core.layout import decode_state, decode_witness, encode_state, encode_witness
from psyche.core.messages import WitnessMessage
from psyche.core.seeds import EXPIRED
from psyche.core.state import Checkpoint, CheckpointKind, Coordinator

TRACES = Path(__file__).parent / "traces"
EVENTS = (
    "tick", "join", "leave", "withdraw", "warmup_witness", "witness", "health_check", "checkpoint",
    "report_equivocation", "pause", "resume", "process_recovery", "process_rates", "reclaim_slot",
)  # fmt: skip


def pack(raw: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor(level=19).compress(raw)).decode()


def unpack(text: str) -> bytes:
    return zstandard.ZstdDecompressor().decompress(base64.b64decode(text))


def compute_hash(state: Coordinator) -> str:
    return hashlib.sha256(encode_state(state)).hexdigest()


def write_value(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, WitnessMessage):
        return pack(encode_witness(value))
    if isinstance(value, Checkpoint):
        return [int(value.kind), value.name, value.revision]
    return "expired" if value is EXPIRED else value


def read_value(name: str, value: Any) -> Any:
    if name == "message":
        return decode_witness(unpack(value))
    if name == "source":
        return Checkpoint(CheckpointKind(value[0]), value[1], value[2])
    if value == "expired":
        return EXPIRED
    return bytes.fromhex(value) if isinstance(value, str) else value


@dataclass
class Trace:
    """One run of the machine."""

    name: str
    what: str
    start: bytes
    events: list[dict[str, Any]] = field(default_factory=list)
    end: bytes = b""

    def write(self) -> None:
        head = {"what": self.what, "start": pack(self.start)}
        lines = [json.dumps(head)[1:-1], '"events": [\n' + ",\n".join(map(json.dumps, self.events)) + "\n]"]
        lines.append(json.dumps({"end": pack(self.end)})[1:-1])
        (TRACES / f"{self.name}.json").write_text("{" + ",\n".join(lines) + "}\n")


def read_trace(path: Path) -> Trace:
    raw = json.loads(path.read_text())
    return Trace(path.stem, raw["what"], unpack(raw["start"]), raw["events"], unpack(raw["end"]))


def replay(trace: Trace) -> Coordinator:
    """Run the events again from the start; every refusal and every hash must be the same."""
    state = decode_state(trace.start)
    for number, event in enumerate(trace.events):
        arguments = {k: read_value(k, v) for k, v in event.items() if k not in ("event", "error", "sha256")}
        error = None
        try:
            getattr(transitions, event["event"])(state, **arguments)
        except CoordinatorError as refusal:
            error = refusal.code
        where = f"{trace.name}, event {number}: {event['event']}"
        assert error == event.get("error"), where
        assert compute_hash(state) == event["sha256"], where
    return state


class Recorder:
    """Stands for the module `transitions` while a trace is recorded."""

    def __init__(self) -> None:
        self.trace: Trace | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(transitions, name)
        assert name in EVENTS, f"{name} is no event"

        def record(state: Coordinator, *args: Any, **kwargs: Any) -> Any:
            if self.trace is None:
                return function(state, *args, **kwargs)
            bound = inspect.signature(function).bind(state, *args, **kwargs)
            bound.apply_defaults()
            event = {"event": name, **{k: write_value(v) for k, v in bound.arguments.items() if k != "state"}}
            try:
                return function(state, *args, **kwargs)
            except CoordinatorError as refusal:
                event["error"] = refusal.code
                raise
            finally:
                event["sha256"] = compute_hash(state)
                self.trace.events.append(event)

        return record
