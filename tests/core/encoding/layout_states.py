"""Any value of every record of the account, for tests of its bytes."""

import struct
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

from hypothesis import strategies as st

from psyche.core.committee.schedule import round_f32
from psyche.core.encoding.records import TaggedLayout
from psyche.core.encoding.tables import LR_SCHEDULE, OPTIMIZER
from psyche.core.state.settings import Key, get_keys
from psyche.core.state.state import (
    Audit,
    AuditReason,
    AuditStatus,
    Challenge,
    ChallengeState,
    Checkpoint,
    CheckpointKind,
    Client,
    ClientFlag,
    ClientState,
    Config,
    Coordinator,
    DataLocation,
    DataLocationKind,
    Epoch,
    HttpLocation,
    HttpLocationKind,
    LrSchedule,
    Mark,
    Metadata,
    Model,
    Optimizer,
    OptimizerKind,
    Progress,
    Registry,
    Round,
    RoundFlag,
    RunState,
    ScheduleKind,
    Slot,
    SlotState,
    StartCandidate,
    StopReason,
    TokenSize,
    WitnessFlag,
    WitnessRecord,
)


def u(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def text(size: int) -> st.SearchStrategy[str]:
    alphabet = st.characters(codec="utf-8", exclude_characters="\0")
    return st.text(alphabet, max_size=size // 4) | st.just("x" * size)


HASH = st.binary(min_size=32, max_size=32)
BITS = u(256)
F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
F64 = st.floats(allow_nan=False, allow_infinity=False)


def few(strategy: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=most)


def draw_value(key: Key, kind: Any) -> st.SearchStrategy[Any]:
    if key.width in ("enum", "text"):
        return st.sampled_from(kind) if key.width == "enum" else text(key.limit)
    return st.none() | BY_WIDTH[key.width] if "None" in str(kind) else BY_WIDTH[key.width]


def build_record(record: type[Any], *names: str, **parts: Any) -> st.SearchStrategy[Any]:
    """A record of settings with any values of its keys, or of those named, as their widths allow."""
    kinds = {one.name: one.type for one in fields(record)}
    keys = {name: one for name, one in get_keys(record).items() if not names or name in names}
    drawn = {name: draw_value(one, kinds[name]) for name, one in keys.items()}
    return st.builds(record, **drawn, **parts)


def build_kind(record: type[Any], layout: TaggedLayout[Any], kind: IntEnum) -> st.SearchStrategy[Any]:
    """A record of this kind, with the keys that the layout has of it."""
    names = layout.variants[kind].places
    return build_record(record, *names, kind=st.just(kind)) if names else st.just(record(kind))


BY_WIDTH: dict[str, st.SearchStrategy[Any]] = {
    "u8": u(8), "u16": u(16), "u32": u(32), "u64": u(64), "bool": st.booleans(), "hash": HASH, "f32": F32, "f64": F64,
    "f32 pair": st.tuples(F32, F32),
}  # fmt: skip
REPOSITORIES = [kind for kind in CheckpointKind if kind not in (CheckpointKind.EPHEMERAL, CheckpointKind.LOCAL)]
CHECKPOINT = st.one_of(
    st.just(Checkpoint()),
    st.builds(Checkpoint, st.sampled_from(REPOSITORIES), text(64), st.none() | text(64)),
    st.builds(Checkpoint, st.just(CheckpointKind.LOCAL), text(128)),
)
HTTP = st.one_of(
    st.builds(HttpLocation, st.just(HttpLocationKind.SINGLE_URL), text(192)),
    st.builds(HttpLocation, st.just(HttpLocationKind.GCP), text(64), text(192)),
    st.builds(HttpLocation, st.just(HttpLocationKind.NUMBERED_FILES), text(64), st.just(""), u(32), u(8), u(32)),
)
URLS = [DataLocationKind.LOCAL, DataLocationKind.WEIGHTED_HTTP, DataLocationKind.PREPROCESSED]
DATA_LOCATION = st.one_of(
    st.just(DataLocation()),
    st.builds(DataLocation, st.just(DataLocationKind.SERVER), text(64)),
    st.builds(DataLocation, st.sampled_from(URLS), text(192)),
    st.builds(DataLocation, st.just(DataLocationKind.HTTP), st.just(""), HTTP, st.sampled_from(TokenSize),
              st.none() | HASH),
)  # fmt: skip
MODELS = build_record(
    Model,
    checkpoint=CHECKPOINT,
    extra_checkpoints=st.lists(CHECKPOINT, min_size=3, max_size=3),
    data_location=DATA_LOCATION,
    lr_schedule=st.one_of([build_kind(LrSchedule, LR_SCHEDULE, kind) for kind in ScheduleKind]),
    optimizer=st.one_of([build_kind(Optimizer, OPTIMIZER, kind) for kind in OptimizerKind]),
)
CONFIGS = build_record(Config)
WITNESS_FLAGS = st.integers(0, 7).map(WitnessFlag)
RECORDS = st.builds(
    WitnessRecord, u(8), WITNESS_FLAGS, u(32), BITS, BITS, BITS, st.binary(min_size=320, max_size=320), HASH, HASH
)
AUDITS = st.builds(Audit, u(16), u(16), st.sampled_from(AuditStatus), st.sampled_from(AuditReason), u(16), HASH)
ROUND = st.builds(
    Round, HASH, BITS, BITS, HASH, HASH, HASH, u(64), u(64), u(64), u(64), u(32), u(32), u(16), st.integers(0, 256),
    st.integers(0, 32), u(16), u(16), u(16), st.integers(0, 127).map(RoundFlag), BITS, BITS, few(RECORDS, 2),
    few(AUDITS, 2),
)  # fmt: skip
CLIENT_FLAGS = st.sets(st.sampled_from(list(ClientFlag))).map(lambda some: ClientFlag(sum(some)))
CLIENT = st.builds(
    Client, HASH, HASH, st.sampled_from(ClientState), u(8), u(8), u(8), CLIENT_FLAGS, u(8), u(8),
    u(32), u(32), u(32), u(16), u(16), u(8), u(8), u(8), u(8), u(32),
)  # fmt: skip
CANDIDATE = st.builds(StartCandidate, HASH.filter(any), u(16))
EPOCHS = st.builds(
    Epoch, u(32), u(32), u(32), u(16), u(64), u(64), u(8), u(8), u(8), st.booleans(), st.booleans(),
    st.sampled_from(StopReason), few(CANDIDATE, 4), u(64), u(8),
)  # fmt: skip
CHALLENGE = st.builds(
    Challenge, HASH, HASH, *[u(32)] * 3, u(16), u(16), st.sampled_from(ChallengeState), st.sampled_from(AuditReason),
    u(8), u(8), u(16), u(16), BITS,
)  # fmt: skip
SLOT = st.builds(
    Slot, HASH, HASH, *[u(64)] * 5, u(16), u(16), st.sampled_from(SlotState), u(8), u(16), HASH, st.booleans(), u(8),
    u(8),
)  # fmt: skip
MARK = st.builds(Mark, HASH, u(16), u(16), u(32), u(64))
STATES = st.builds(
    Coordinator,
    build_record(Metadata),
    text(96),
    text(32),
    HASH,
    st.sampled_from(RunState),
    u(64),
    st.booleans(),
    MODELS,
    CONFIGS,
    build_record(Progress),
    HASH,
    MARK,
    MARK,
    EPOCHS,
    st.lists(ROUND, min_size=4, max_size=4),
    few(CLIENT, 3),
    st.builds(lambda challenge: [challenge, *[Challenge() for _ in range(15)]], CHALLENGE),
    st.builds(Registry, u(16), *[u(64)] * 5, few(SLOT, 3)),
    u(64),
    few(text(128).filter(bool), 4),
)
# Shrinking a whole state would take minutes and make nothing clearer: the error names the field.


def make_state() -> Coordinator:
    """A state in which every number differs from its neighbours and every list has an entry."""
    counter = iter(range(1, 10_000))
    state = Coordinator(
        metadata=Metadata("A name", "and what it is"),
        client_version="v1",
        run_id="läuft",
        bootstrap=["/dns4/a.example/tcp/1", "/ip4/192.0.2.1/tcp/4001"],
        clients=[Client(), Client()],
        registry=Registry(slots=[Slot(), Slot(), Slot()]),
    )
    state.epoch.start_candidates = [StartCandidate()]
    state.rounds[1].witnesses = [WitnessRecord(), WitnessRecord()]
    state.rounds[2].audits = [Audit()]
    state.model.checkpoint = Checkpoint(CheckpointKind.HUB, "org/model", "main")
    state.model.extra_checkpoints[1] = Checkpoint(CheckpointKind.LOCAL, "models/tiny")
    http = HttpLocation(HttpLocationKind.GCP, "bucket", "folder")
    state.model.data_location = DataLocation(DataLocationKind.HTTP, "", http, TokenSize.FOUR_BYTES, b"\x07" * 32)
    state.model.lr_schedule = LrSchedule(ScheduleKind.COSINE, 4e-4, 1e-6, 250, 25_000, 4e-5)
    state.model.optimizer = Optimizer(OptimizerKind.DISTRO, 1.0, None, round_f32(0.999), 8, 64, quantize_1bit=True)
    _number(state, counter)
    state.registry.slots[2].proven = True
    for i, round_ in enumerate(state.rounds):
        round_.witnesses_expected = 29 + i
    return state


def _number(node: Any, counter: Any) -> None:
    """Give every plain integer and hash in the tree its own value, in order of the dataclasses' fields."""
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, list):
            for item in value:
                if is_dataclass(item):
                    _number(item, counter)
        elif is_dataclass(value):
            if not isinstance(value, (Checkpoint, DataLocation, LrSchedule, Optimizer)):
                _number(value, counter)
        elif type(value) is int:
            setattr(node, field.name, next(counter) % 251)
        elif type(value) is bytes and len(value) in (32, 320):
            setattr(node, field.name, struct.pack("<H", next(counter)) * (len(value) // 2))
