"""What is shown to people, and no rule reads: what a client says of itself (K8), and what verification has found."""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from psyche.core.state.limits import U32_MAX

MAX_NAME_BYTES: Final = 48
MAX_PHASE_BYTES: Final = 32
MAX_WAIT_BYTES: Final = 240
MAX_ERROR_BYTES: Final = 480
MAX_TOKENS_PER_S: Final = 1e15
MAX_COUNT_BYTES: Final = (1 << 63) - 1
MAX_AUDITED: Final = 8  # members in one client's report
MAX_OUTCOME_CHARS: Final = 200
Distance: TypeAlias = Annotated[float, Meta(ge=0)]
KeyStart: TypeAlias = Annotated[bytes, Meta(min_length=8, max_length=32)]
Unsigned32: TypeAlias = Annotated[int, Meta(ge=0, le=U32_MAX)]


class AuditedMember(msgspec.Struct, frozen=True, array_like=True):
    """How far a member's work was from what a client has computed of it (V10), in the median and at worst.

    `odd_by` is how far its arithmetic is off (V6), as found in the epoch `odd_epoch`; 0: it is not.
    """

    key: KeyStart
    audits: Unsigned32
    median: Distance
    worst: Distance
    odd_by: Distance = 0.0
    odd_epoch: Unsigned32 = 0


class Accusation(msgspec.Struct, frozen=True, array_like=True):
    """A challenge with its votes; `outcome` says in words how it ended, and is empty while its jury decides (V12)."""

    epoch: Unsigned32
    height: Unsigned32
    target: KeyStart
    accuser: KeyStart
    reason: int
    guilty: Unsigned32 = 0
    innocent: Unsigned32 = 0
    outcome: Annotated[str, Meta(max_length=MAX_OUTCOME_CHARS)] = ""


class Verification(msgspec.Struct, frozen=True, array_like=True):
    """What the record says: the audits of the last rounds, challenges, and whose keys are banned from the run."""

    percent: int
    convicts: bool
    passed: Unsigned32 = 0
    doubted: Unsigned32 = 0
    accused: Unsigned32 = 0
    challenges: tuple[Accusation, ...] = ()
    banned: tuple[KeyStart, ...] = ()


class SelfReport(msgspec.Struct, frozen=True, array_like=True):
    """What a client does now, in its own words; nobody checks whether it is true.

    Args:
        name: the client's name in logs.
        phase: the run's phase as the client sees it, or "connecting", "starting", "joining",
            "left the epoch", "ended".
        wait: what it waits for; empty if nothing.
        epoch, height, step: where it is in the run.
        loss: of its last batch, in nats per token; None before the first.
        tokens_per_s: trained per second over the last 30 s.
        error: the last error that it has not overcome; empty if there is none.
        bytes_sent, bytes_received: over its lines to other members, since it started.
        audits: how many pieces of others it has recomputed that were fine, unclear, and failed, since it started (V10).
        audited: the members whose work or arithmetic was off by most.
    """

    name: Annotated[str, Meta(max_length=MAX_NAME_BYTES)] = ""
    phase: Annotated[str, Meta(max_length=MAX_PHASE_BYTES)] = ""
    wait: Annotated[str, Meta(max_length=MAX_WAIT_BYTES)] = ""
    epoch: Unsigned32 = 0
    height: Unsigned32 = 0
    step: Unsigned32 = 0
    loss: float | None = None
    tokens_per_s: Annotated[float, Meta(ge=0, le=MAX_TOKENS_PER_S)] = 0.0
    error: Annotated[str, Meta(max_length=MAX_ERROR_BYTES)] = ""
    bytes_sent: Annotated[int, Meta(ge=0, le=MAX_COUNT_BYTES)] = 0
    bytes_received: Annotated[int, Meta(ge=0, le=MAX_COUNT_BYTES)] = 0
    audits: tuple[Unsigned32, Unsigned32, Unsigned32] = (0, 0, 0)
    audited: Annotated[tuple[AuditedMember, ...], Meta(max_length=MAX_AUDITED)] = ()


def clean_report(report: SelfReport) -> SelfReport:
    """Return the report as it may be sent and shown; its texts may come from anywhere."""
    return msgspec.structs.replace(
        report,
        name=clean_text(report.name, MAX_NAME_BYTES),
        phase=clean_text(report.phase, MAX_PHASE_BYTES),
        wait=clean_text(report.wait, MAX_WAIT_BYTES),
        error=clean_text(report.error, MAX_ERROR_BYTES),
    )


def escape_text(text: str, kept: str = "") -> str:
    """Text of a model, in which nothing commands a terminal or turns the direction of writing; `kept` is left."""
    return "".join(sign if sign.isprintable() or sign in kept else ascii(sign)[1:-1] for sign in text)


def clean_text(text: str, max_bytes: int) -> str:
    """Make one line of a text, at most `max_bytes` long in UTF-8.

    Whatever is not printable becomes a blank, several blanks become one: line ends, the escapes of terminals, and
    characters that turn the direction of writing.
    """
    words = "".join(one if one.isprintable() else " " for one in text).split()
    return " ".join(words).encode()[:max_bytes].decode(errors="ignore").rstrip()
