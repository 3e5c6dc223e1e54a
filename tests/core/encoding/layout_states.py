"""Any value of every record of the account, for tests of its bytes."""

import struct
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import strategies as st

from psyche.core.committee.schedule import round_f32
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import (
    Architecture,
    Audit,
    Challenge,
    Checkpoint,
    CheckpointKind,
    Client,
    ClientFlag,
    ClientState,
    Config,
    Coordinator,
    DataLocation,
    DataLocationKind,
    DataType,
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
OPT_F32 = st.none() | F32


def few(strategy: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=most)


REVISION = st.none() | text(64)
CHECKPOINT = st.one_of(
    st.just(Checkpoint()),
    st.builds(
        Checkpoint,
        st.sampled_from([k for k in CheckpointKind if k not in (CheckpointKind.EPHEMERAL, CheckpointKind.LOCAL)]),
        text(64),
        REVISION,
    ),
    st.builds(Checkpoint, st.just(CheckpointKind.LOCAL), text(128)),
)
HTTP = st.one_of(
    st.builds(HttpLocation, st.just(HttpLocationKind.SINGLE_URL), text(192)),
    st.builds(HttpLocation, st.just(HttpLocationKind.GCP), text(64), text(192)),
    st.builds(
        HttpLocation,
        st.just(HttpLocationKind.NUMBERED_FILES),
        text(64),
        start_index=u(32),
        n_left_pad_zeros=u(8),
        num_files=u(32),
    ),
)
DATA_LOCATION = st.one_of(
    st.just(DataLocation()),
    st.builds(DataLocation, st.just(DataLocationKind.SERVER), text(64)),
    st.builds(
        DataLocation,
        st.sampled_from([DataLocationKind.LOCAL, DataLocationKind.WEIGHTED_HTTP, DataLocationKind.PREPROCESSED]),
        text(192),
    ),
    st.builds(
        DataLocation,
        st.just(DataLocationKind.HTTP),
        http=HTTP,
        token_size=st.sampled_from(TokenSize),
        shuffle_seed=st.none() | HASH,
    ),
)
SCHEDULE = st.one_of(
    st.builds(LrSchedule, st.just(ScheduleKind.CONSTANT), F64, F64, u(32)),
    st.builds(LrSchedule, st.sampled_from([ScheduleKind.LINEAR, ScheduleKind.COSINE]), F64, F64, u(32), u(32), F64),
    st.builds(
        LrSchedule,
        st.just(ScheduleKind.WARMUP_STABLE_DECAY),
        F64,
        F64,
        u(32),
        stable_steps=u(32),
        cosine_decay_steps=u(32),
        cosine_decay_final_lr=F64,
        linear_decay_steps=u(32),
        linear_decay_final_lr=F64,
    ),
)
OPTIMIZER = st.one_of(
    st.just(Optimizer()),
    st.builds(Optimizer, st.just(OptimizerKind.ADAMW), OPT_F32, OPT_F32, betas=st.tuples(F32, F32), eps=F32),
    st.builds(Optimizer, st.just(OptimizerKind.DISTRO), OPT_F32, OPT_F32, F32, u(16), u(16), st.booleans()),
)
MODELS = st.builds(
    Model,
    st.sampled_from(Architecture),
    st.sampled_from(DataType),
    u(32),
    u(32),
    CHECKPOINT,
    st.lists(CHECKPOINT, min_size=3, max_size=3),
    DATA_LOCATION,
    SCHEDULE,
    OPTIMIZER,
    u(8),
)
CONFIGS = st.builds(
    Config, *[u(64)] * 6, u(32), *[u(16)] * 5, u(8), u(8), u(32), u(16), st.booleans(), *[u(8)] * 4, st.booleans(),
    u(32), u(32), u(16), u(16), u(64), HASH,
)  # fmt: skip
WITNESS_FLAGS = st.integers(0, 7).map(WitnessFlag)
RECORDS = st.builds(
    WitnessRecord, u(8), WITNESS_FLAGS, u(32), BITS, BITS, BITS, st.binary(min_size=320, max_size=320), HASH, HASH
)
AUDITS = st.builds(Audit, u(16), u(16), u(8), u(8), HASH)
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
    Challenge, HASH, HASH, *[u(32)] * 3, u(16), u(16), *[u(8)] * 4, st.lists(u(16), min_size=16, max_size=16)
)
SLOT = st.builds(
    Slot, HASH, HASH, *[u(64)] * 5, u(16), u(16), st.sampled_from(SlotState), u(8), u(16), HASH, st.booleans(), u(8)
)  # fmt: skip
MARK = st.builds(Mark, HASH, u(16), u(16), u(32), u(64))
STATES = st.builds(
    Coordinator,
    st.builds(Metadata, text(64), text(280), u(64), u(64)),
    text(96),
    text(32),
    HASH,
    st.sampled_from(RunState),
    u(64),
    st.booleans(),
    MODELS,
    CONFIGS,
    st.builds(Progress, u(16), u(32), u(64)),
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
WITNESSES = st.builds(
    WitnessMessage, u(16), u(32), u(16), WITNESS_FLAGS, u(32), BITS, BITS, BITS,
    st.binary(min_size=320, max_size=320), HASH, HASH, st.binary(max_size=256),
)  # fmt: skip

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
