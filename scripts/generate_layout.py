"""Generates the tables of docs/protocol.md and its reference that follow from the code, between their markers.

    python scripts/generate_layout.py           write them
    python scripts/generate_layout.py --check   only report whether a page is stale

A block is between `<!-- BEGIN name -->` and `<!-- END name -->`, on one of the pages.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, IntEnum, IntFlag
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import page_blocks
from page_blocks import format_table

from psyche.core.committee.bloom import BLOOM_BYTES
from psyche.core.committee.elections import compute_liar_bound, compute_quorum
from psyche.core.encoding.bodies import split_body
from psyche.core.encoding.fields import Field
from psyche.core.encoding.header import HEADER, NumericClass, ResultHeader
from psyche.core.encoding.manifest import FILE_NAMES
from psyche.core.encoding.records import FieldLayout, RecordLayout, TaggedLayout
from psyche.core.encoding.tables import ACCOUNT, PARTS
from psyche.core.rules.apply import KINDS, Kind
from psyche.core.state import enums, messages, state
from psyche.core.state.errors import REFUSALS
from psyche.core.state.gossip import Finished, GossipBody, Leave, Ready, ReadyFlag, Result
from psyche.core.state.limits import (
    BLOOM_BITS,
    BLOOM_HASHES,
    BOOTSTRAP_BYTES,
    HEADER_BYTES,
    MAX_CLIENTS,
    MAX_WITNESSES,
    METADATA_BYTES,
    SIGNATURE_BYTES,
    U64_MAX,
)
from psyche.core.state.messages import Between, Sized, WitnessMessage
from psyche.core.state.state import ZERO32, Config, Epoch
from psyche.core.state.timeline import (
    get_applied_height,
    get_attested_height,
    get_drain_rounds,
    is_data_height,
    is_full_digest_height,
    is_last_drain,
)
from psyche.wire.access import ACCESS_KINDS
from psyche.wire.crypto import Identity
from psyche.wire.gossip import encode_gossip, get_signed_bytes, sign_gossip

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGES: Final = (DOCS / "protocol.md", DOCS / "protocol-reference.md")
NUMBERS: Final = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "f": "f32", "d": "f64"}
WIDTHS: Final = {1: "u8 WitnessFlag", 2: "u16", 4: "u32", 32: "bitmap"}  # of numbers in a witness message
TEXTS: Final[dict[Any, str]] = {bytes: "bytes", str: "text", int: "bitmap", tuple: "two f32"}
EXAMPLE_ROUNDS: Final = 3  # rounds with data, in the timelines
WITNESSES: Final = (4, 8, 16, 32)  # committee sizes in the table of risks
BAD_SHARES: Final = (0.10, 0.20, 0.33)

# Stored, and always zero today: marked in the tables. tests/docs checks the list against the code.
NOT_USED_YET: Final[dict[str, frozenset[str]]] = {
    "Config": frozenset({"reveal_gate", "canary_permille"}),
    "Round": frozenset({"tie_breaker_tasks", "voided"}),
    "Client": frozenset(
        {"share", "joined_height", "witness_credits", "audits_passed", "audits_failed", "false_challenges"}
        | {"numeric_class"}
    ),
    "Coordinator": frozenset({"bootstrap"}),
    "Slot": frozenset({"anchor"}),
    "ResultHeader": frozenset({"flags"}),
}
MARK: Final = " †"


@dataclass(frozen=True)
class Row:
    """One row of a byte layout."""

    offset: int
    size: int
    name: str
    kind: str


def format_rows(rows: Iterable[Row]) -> list[str]:
    lines = [(f"{row.offset:,}", f"{row.size:,}", row.name, row.kind) for row in rows]
    return format_table(("offset", "bytes", "field", "type"), lines)


# --- records of the state -------------------------------------------------------------------------------


def get_types(label: str) -> dict[str, Any]:
    """The annotation of every attribute of the dataclass `label`."""
    cls = ResultHeader if label == "ResultHeader" else getattr(state, label, None) or getattr(messages, label)
    types = {field.name: field.type for field in fields(cls)}
    if label == "Coordinator":
        types |= {f"epoch.{field.name}": field.type for field in fields(Epoch)}
    return types


def get_plain(annotation: Any) -> Any:
    """The class inside an annotation: without `| None`, and the element type of a list."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return inner[0] if type(None) in get_args(annotation) else get_origin(annotation) or annotation


def describe(field: Field, layout: FieldLayout, annotation: Any) -> str:
    """Describe a field's bytes in words."""
    if field.is_pad:
        return "zero"
    if field.constant is not None:
        return describe_constant(field.constant, field.code)
    if field.codec is not None:
        number, label = field.size // field.codec.size, getattr(field.codec, "label", "")
        return label if number == 1 else f"{number} of {label}"
    if get_args(annotation) == (str,):
        return f"up to {field.size // BOOTSTRAP_BYTES} texts"
    plain = get_plain(annotation)
    if plain is float and field.code not in NUMBERS:
        return f"f{8 * field.size}"
    return describe_number(field, layout, plain) if field.code in NUMBERS else TEXTS[plain]


def describe_constant(value: int | bytes, code: str) -> str:
    if isinstance(value, int):
        return f"{NUMBERS[code]}, always {value}"
    return f"always {value.decode('ascii') if value.isascii() else value.hex()}"


def describe_number(field: Field, layout: FieldLayout, plain: Any) -> str:
    number = NUMBERS[field.code]
    if plain is list:
        return f"{number}, how many"
    if not field.is_later and any(later.name == field.name and later.is_later for later in layout.fields):
        return f"{number}, 1 if set"
    if plain is bool:
        return f"{number}, 0 or 1"
    return f"{number} {plain.__name__}" if isinstance(plain, type) and issubclass(plain, Enum) else number


def list_rows(layout: FieldLayout, label: str, base: int = 0) -> Iterator[Row]:
    """The fields of a layout; `label` is the dataclass with their attributes."""
    types, unused = get_types(label), NOT_USED_YET.get(label, frozenset())
    offset = base
    for field in layout.fields:
        name = "" if field.is_pad else field.name.removeprefix("epoch.")
        yield Row(
            offset, field.size, name + MARK * (field.name in unused), describe(field, layout, types.get(field.name))
        )
        offset += field.size


def find_records(fields_: Iterable[Field]) -> Iterator[RecordLayout[Any] | TaggedLayout[Any]]:
    """All nested records, in order of appearance."""
    for field in fields_:
        match field.codec:
            case RecordLayout() as record:
                yield record
                yield from find_records(record.fields)
            case TaggedLayout() as tagged:
                yield tagged
                yield from find_records(inner for layout in tagged.variants.values() for inner in layout.fields)
            case _:
                pass


def generate_account() -> list[str]:
    """The state from its first byte to its last."""
    parts = [name for name, _, part in PARTS for _ in part]
    rows = list(list_rows(ACCOUNT, "Coordinator"))
    lines = [(part, f"{r.offset:,}", f"{r.size:,}", r.name, r.kind) for part, r in zip(parts, rows, strict=True)]
    assert rows[-1].offset + rows[-1].size == ACCOUNT.size, "the rows cover the account"
    return [*format_table(("part", "offset", "bytes", "field", "type"), lines), "", f"In all {ACCOUNT.size:,} bytes."]


def generate_records() -> list[str]:
    """All records inside the state; offsets count from the record's start."""
    records = {record.label: record for record in find_records(ACCOUNT.fields)}
    lines: list[str] = []
    for label, record in records.items():
        lines += ["", f"**{label}**, {record.size:,} bytes", ""]
        lines += format_rows(list_rows(record, label)) if isinstance(record, RecordLayout) else generate_tagged(record)
    return lines[1:]


def generate_tagged(tagged: TaggedLayout[Any]) -> list[str]:
    """A record whose first u32 selects the fields that follow; kinds with equal fields are grouped."""
    kinds = vars(tagged)["_kinds"]
    variants = [
        (f"{n} {kinds[n].name}", tuple(list_rows(layout, tagged.label, 4))) for n, layout in tagged.variants.items()
    ]
    lines: list[tuple[str, ...]] = []
    for rows, group in groupby(variants, key=lambda variant: variant[1]):
        names = ", ".join(name for name, _ in group)
        found = [(f"{r.offset:,}", f"{r.size:,}", r.name, r.kind) for r in rows] or [("", "", "", "nothing")]
        lines += [((names if place == 0 else ""), *line) for place, line in enumerate(found)]
    return format_table(("kind: u32 at 0", "offset", "bytes", "field", "type"), lines)


def generate_enumerations() -> list[str]:
    """The names and numbers of the enumerations."""
    kinds = [kind for kind in vars(enums).values() if isinstance(kind, type) and issubclass(kind, IntEnum | IntFlag)]
    kinds = [*(kind for kind in kinds if kind not in (IntEnum, IntFlag)), NumericClass, ReadyFlag]
    return format_table(("name", "values"), ((k.__name__, ", ".join(f"{int(m)} {m.name}" for m in k)) for k in kinds))


def generate_refusals() -> list[str]:
    """The numbers of the refusals, with the first line of each class's documentation."""
    rows = ((number, f"`{one.__name__}`", (one.__doc__ or "").splitlines()[0]) for number, one in REFUSALS.items())
    return format_table(("number", "refusal", "meaning"), rows)


# --- messages -------------------------------------------------------------------------------------------


def generate_header() -> list[str]:
    return format_rows(list_rows(HEADER, "ResultHeader"))


def generate_witness() -> list[str]:
    """The witness message, without the discriminator of a chain instruction."""
    message = WitnessMessage(0, 0, 0, enums.WitnessFlag(0), 0, 0, 0, 0, bytes(BLOOM_BYTES), ZERO32, ZERO32)
    *parts, _ = split_body(message)
    rows, end = list[Row](), 0
    for name, raw in parts:
        kind = "bytes" if isinstance(getattr(message, name), bytes) else WIDTHS[len(raw)]
        rows.append(Row(end, len(raw), name, kind))
        end += len(raw)
    rows += [Row(end, 4, "length of the metadata", "u32"), Row(end + 4, METADATA_BYTES, "metadata, at most", "bytes")]
    total = f"{end + 4:,} to {end + 4 + METADATA_BYTES:,} bytes"
    return [*format_rows(rows), "", f"In all {total}."]


def generate_gossip() -> list[str]:
    """The sizes of signed messages, as the encoder produces them."""
    identity = Identity(bytes(32))
    bodies: tuple[tuple[GossipBody, str], ...] = (
        (Ready(ZERO32, ReadyFlag(0)), "D(h) 32, ReadyFlag u8"),
        (Result(ZERO32, bytes(HEADER_BYTES)), "commitment 32"),
        (Finished(0, ZERO32, 0), "held bitmap 32, results root 32, seen bitmap 32"),
        (Finished(0, ZERO32, 0, Ready(ZERO32, ReadyFlag(0))), "the same, then the body of Ready"),
        (Leave(), "nothing"),
    )
    lines: list[tuple[object, ...]] = []
    for body, content in bodies:
        message = sign_gossip(identity, ZERO32, 0, 0, 0, body)
        signed, total = get_signed_bytes(message), len(encode_gossip(message))
        tag = signed[: signed.index(b"/1") + 2].decode("ascii")
        rest = total - len(signed) - SIGNATURE_BYTES
        lines.append((type(body).__name__, f"`{tag}`", content, len(signed), SIGNATURE_BYTES, rest or "", total))
    return format_table(("message", "tag", "body", "signed bytes", "signature", "header behind", "in all"), lines)


def generate_messages() -> list[str]:
    """All coordinator messages: number, name, fields with their rules, and permitted senders."""
    lines: list[tuple[object, ...]] = []
    for kind in (*KINDS, *ACCESS_KINDS):
        sender = kind.sender.name.lower().replace("_", " ")
        lines.append((kind.number, f"`{kind.name}`", f"`{kind.type.__name__}`", describe_fields(kind), sender))
    return format_table(("number", "name", "type", "fields, in order", "from"), lines)


def describe_fields(kind: Kind) -> str:
    """The fields of a message; fields with a layout of their own appear by name."""
    if kind.type is WitnessMessage:
        return "the bytes of a witness message"
    hints = get_type_hints(kind.type, include_extras=True)
    return "; ".join(f"{f.name}: {describe_rule(hints[f.name])}" for f in fields(kind.type)) or "none"


def describe_rule(hint: Any) -> str:
    """Describe the permitted values of a field in words."""
    if get_origin(hint) is Annotated:
        inner, rule = get_args(hint)[:2]
        return describe_plain(inner, rule)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join("none" if one is NoneType else describe_rule(one) for one in get_args(hint))
    if get_origin(hint) is tuple:
        return f"({', '.join(map(describe_rule, get_args(hint)))})"
    return str(hint.__name__).lower()


def describe_plain(plain: Any, rule: Between | Sized) -> str:
    """Describe a type with its rule."""
    if isinstance(rule, Between):
        return f"{rule.low} to {U64_MAX if rule.high is None else rule.high:,}"
    size = str(rule.low) if rule.low == rule.high else f"{rule.low} to {rule.high}"
    if get_origin(plain) is tuple:
        return f"{size} times {describe_rule(get_args(plain)[0])}"
    if isinstance(plain, type) and is_dataclass(plain):
        return f"{plain.__name__.lower()}, texts of {size} characters"
    return f"text of {size} characters" if plain is str else f"{size} bytes"


# --- timelines and committees ---------------------------------------------------------------------------


def generate_timeline(*, overlap: bool) -> list[str]:
    """The timeline of an epoch with three data rounds, round by round."""
    config = Config(overlap=overlap)
    epoch = Epoch(drain_from_height=EXAMPLE_ROUNDS)
    lines: list[tuple[object, ...]] = []
    for height in range(EXAMPLE_ROUNDS + get_drain_rounds(config)):
        applied, attested = get_applied_height(config, epoch, height), get_attested_height(config, epoch, height)
        is_last = is_last_drain(config, epoch, height)
        lines.append(
            (
                f"{height}" if is_data_height(epoch, height) else f"{height}, {'last ' if is_last else ''}drain",
                "nothing" if applied is None else f"R({applied})",
                f"R({height})" if is_data_height(epoch, height) else "nothing",
                "who was heard" if attested is None else f"R({attested})",
                f"D({height})" + (", all weights" if is_full_digest_height(config, epoch, height) else ""),
            )
        )
    return format_table(("round", "applied at its start", "trained", "reported and decided", "digest"), lines)


def compute_tail(bad: int, drawn: int, at_least: int) -> float:
    """The probability that `drawn` of 256 members include at least `at_least` of the `bad` ones."""
    good = MAX_CLIENTS - bad
    ways = sum(math.comb(bad, i) * math.comb(good, drawn - i) for i in range(at_least, drawn + 1))
    return ways / math.comb(MAX_CLIENTS, drawn)


def format_chance(chance: float) -> str:
    return f"{chance:.2f}" if chance >= 0.01 else f"{chance:.0e}".replace("e-0", "e-")


def generate_committees() -> list[str]:
    """The probability per round that liars have a quorum, and that they can block one; 256 members."""
    lines: list[tuple[object, ...]] = []
    for n in WITNESSES:
        q = compute_quorum(n)
        chances: list[str] = []
        for share in BAD_SHARES:
            bad = round(MAX_CLIENTS * share)
            chances.append(" / ".join(format_chance(compute_tail(bad, n, least)) for least in (q, n - q + 1)))
        lines.append((n, q, *chances))
    return format_table(("n", "q", *(f"{share:.0%} bad" for share in BAD_SHARES)), lines)


def compute_stall_chance(n: int, liars: int) -> float:
    """The probability that `f + 1 - liars` or more honest witnesses' filters of 256 others falsely hold one commitment.

    This is an equivocator's chance to stall C3 with that many liars: it chooses afterwards who gets which result.
    """
    clear = (1 - 1 / BLOOM_BITS) ** (BLOOM_HASHES * MAX_CLIENTS)
    seems_held = (1 - clear) ** BLOOM_HASHES
    needed, honest = compute_liar_bound(n) + 1 - liars, n - liars
    return sum(
        math.comb(honest, k) * seems_held**k * (1 - seems_held) ** (honest - k) for k in range(needed, honest + 1)
    )


def generate_decisions() -> list[str]:
    """For every n: q, f, E, and the cost for a member with two results to stay undecided; 256 members."""
    lines: list[tuple[object, ...]] = []
    for n in range(1, MAX_WITNESSES + 1):
        q, f = compute_quorum(n), compute_liar_bound(n)
        enough = [liars for liars in range(1, f + 1) if compute_stall_chance(n, liars) >= 2**-40]
        if not enough:
            lines.append((n, q, f, q - f, "never", "", "", "", ""))
            continue
        chance, least = compute_stall_chance(n, f), enough[0]
        few = f"2^{-math.log2(compute_stall_chance(n, least)):.1f}"
        lines.append((n, q, f, q - f, format_chance(chance), round(1 / chance), least, f + 1 - least, few))
    with_all, with_least = ("chance, f liars", "tries"), ("least L for 2^40", "false positives needed", "tries")
    return format_table(("n", "q", "f", "E", *with_all, *with_least), lines)


def generate_quorums() -> list[str]:
    """q(n) for every n, in one line."""
    pairs = ", ".join(f"{n}→{compute_quorum(n)}" for n in range(1, 33))
    return [f"`{pairs}`"]


def generate_model_files() -> list[str]:
    """The names of a model's small files, in one line."""
    return [", ".join(f"`{name}`" for name in sorted(FILE_NAMES))]


BLOCKS: Final[dict[str, Callable[[], list[str]]]] = {
    "quorums": generate_quorums,
    "timeline with overlap": lambda: generate_timeline(overlap=True),
    "timeline without overlap": lambda: generate_timeline(overlap=False),
    "decisions": generate_decisions,
    "committees": generate_committees,
    "model files": generate_model_files,
    "gossip": generate_gossip,
    "messages": generate_messages,
    "header": generate_header,
    "witness": generate_witness,
    "account": generate_account,
    "records": generate_records,
    "enumerations": generate_enumerations,
    "refusals": generate_refusals,
}


if __name__ == "__main__":
    sys.exit(page_blocks.run("generate_layout.py", __doc__, sys.argv[1:], PAGES, BLOCKS))
