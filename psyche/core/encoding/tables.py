"""The tables of the account, field by field (`docs/protocol-reference.md`, section State).

Conventions:

- pads align every number to a multiple of its size and fill each part to its length;
- settings lie as `core.state.settings` declares them, the model behind a u32 that is 0 (LLM);
- an optional value follows a byte (for the shuffle seed a u32) that is 1 if it is present and 0 if not;
- data location, HTTP: location (tag and 256), token_size u32, has_shuffle u32, shuffle seed 32;
- learning rates f64, steps u32, settings of optimizers float32.
"""

import hashlib
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from itertools import chain
from typing import Any, Final

from psyche.core.committee.bloom import BLOOM_BYTES
from psyche.core.encoding.fields import (
    Field,
    bitmap,
    boolean,
    constant,
    count,
    entries,
    enum,
    exactly,
    f32,
    f32_pair,
    f64,
    flags,
    nested,
    optional,
    pad,
    present,
    raw,
    text,
    texts,
    u8,
    u16,
    u32,
    u64,
    until_zero,
    up_to,
)  # fmt: skip
from psyche.core.encoding.records import ALIGNMENT, RecordLayout, TaggedLayout
from psyche.core.state.enums import (
    AuditReason,
    AuditStatus,
    ChallengeState,
    CheckpointKind,
    ClientFlag,
    ClientState,
    DataLocationKind,
    HttpLocationKind,
    InnerOptimizer,
    Lookahead,
    OptimizerKind,
    RoundFlag,
    RunState,
    ScheduleKind,
    SlotState,
    StopReason,
    TokenSize,
    WitnessFlag,
)  # fmt: skip
from psyche.core.state.limits import (
    BOOTSTRAP_BYTES,
    CLIENT_VERSION_BYTES,
    LOCAL_PATH_BYTES,
    MAX_AUDITS,
    MAX_BOOTSTRAP,
    MAX_CHALLENGES,
    MAX_CLIENTS,
    MAX_START_CANDIDATES,
    MAX_WITNESSES,
    RUN_ID_BYTES,
    STATE_BYTES,
    STORED_ROUNDS,
    STRING_BYTES,
    URL_BYTES,
)  # fmt: skip
from psyche.core.state.settings import Key, get_keys
from psyche.core.state.state import (
    Audit,
    Challenge,
    Checkpoint,
    Client,
    Config,
    Coordinator,
    DataLocation,
    Epoch,
    HttpLocation,
    LrSchedule,
    Mark,
    Metadata,
    Model,
    Optimizer,
    Progress,
    Registry,
    Round,
    Slot,
    StartCandidate,
    WitnessRecord,
)  # fmt: skip

DISCRIMINATOR: Final = hashlib.sha256(b"account:CoordinatorAccount").digest()[:8]
VERSION: Final = 1  # preset "chain"

_HUB: Final = (text("name", STRING_BYTES), present("revision"), optional(text("revision", STRING_BYTES)))

CHECKPOINT: Final = TaggedLayout(
    Checkpoint,
    CheckpointKind,
    136,
    {
        CheckpointKind.EPHEMERAL: (),
        CheckpointKind.DUMMY: _HUB,
        CheckpointKind.HUB: _HUB,
        CheckpointKind.P2P: _HUB,
        CheckpointKind.GCS: _HUB,
        CheckpointKind.P2P_GCS: _HUB,
        CheckpointKind.LOCAL: (text("name", LOCAL_PATH_BYTES),),
    },
)

HTTP_LOCATION: Final = TaggedLayout(
    HttpLocation,
    HttpLocationKind,
    260,
    {
        HttpLocationKind.SINGLE_URL: (text("url", URL_BYTES),),
        HttpLocationKind.NUMBERED_FILES: (
            text("url", STRING_BYTES), u32("start_index"), u32("num_files"), u8("n_left_pad_zeros"), pad(3),
        ),
        HttpLocationKind.GCP: (text("url", STRING_BYTES), text("filter_directory", URL_BYTES)),
    },
)  # fmt: skip

DATA_LOCATION: Final = TaggedLayout(
    DataLocation,
    DataLocationKind,
    304,
    {
        DataLocationKind.DUMMY: (),
        DataLocationKind.SERVER: (text("address", STRING_BYTES),),
        DataLocationKind.LOCAL: (text("address", URL_BYTES),),
        DataLocationKind.HTTP: (
            nested("http", HTTP_LOCATION), enum("token_size", TokenSize, "I"), present("shuffle_seed", "I"),
            optional(raw("shuffle_seed")),
        ),
        DataLocationKind.WEIGHTED_HTTP: (text("address", URL_BYTES),),
        DataLocationKind.PREPROCESSED: (text("address", URL_BYTES),),
    },
)  # fmt: skip

_WARMUP: Final = (pad(4), f64("base_lr"), f64("warmup_init_lr"))
_DECAY: Final = (*_WARMUP, f64("final_lr"), u32("warmup_steps"), u32("total_steps"))

LR_SCHEDULE: Final = TaggedLayout(
    LrSchedule,
    ScheduleKind,
    56,
    {
        ScheduleKind.CONSTANT: (*_WARMUP, u32("warmup_steps")),
        ScheduleKind.LINEAR: _DECAY,
        ScheduleKind.COSINE: _DECAY,
        ScheduleKind.WARMUP_STABLE_DECAY: (
            *_WARMUP, f64("cosine_decay_final_lr"), f64("linear_decay_final_lr"), u32("warmup_steps"),
            u32("stable_steps"), u32("cosine_decay_steps"), u32("linear_decay_steps"),
        ),
    },
)  # fmt: skip

OPTIMIZER: Final = TaggedLayout(
    Optimizer,
    OptimizerKind,
    32,
    {
        OptimizerKind.DUMMY: (),
        OptimizerKind.ADAMW: (
            f32_pair("betas"), f32("eps"), present("weight_decay"), present("clip_grad_norm"), pad(2),
            optional(f32("weight_decay")), optional(f32("clip_grad_norm")),
        ),
        OptimizerKind.DISTRO: (
            present("clip_grad_norm"), present("weight_decay"), boolean("quantize_1bit"),
            enum("lookahead", Lookahead),
            optional(f32("clip_grad_norm")), optional(f32("weight_decay")), f32("compression_decay"),
            u16("compression_topk"), u16("compression_chunk"),
        ),
        OptimizerKind.LOCAL_STEPS: (
            present("clip_grad_norm"), present("weight_decay"), enum("inner_optimizer", InnerOptimizer),
            u8("value_bits"), optional(f32("clip_grad_norm")), optional(f32("weight_decay")), f32("error_decay"),
            f32("outer_rate"), u16("inner_steps"), u16("compression_topk"), u16("compression_chunk"),
            u16("merge_step"),
        ),
    },
)  # fmt: skip

_BY_WIDTH: Final[dict[str, Callable[[str], Field]]] = {
    "u8": u8, "u16": u16, "u32": u32, "u64": u64, "bool": boolean, "hash": raw,
}  # fmt: skip


def _lay_out(record: type, *parts: Field) -> RecordLayout[Any]:
    """The layout of a record of settings: its keys and these parts, in the order of its fields.

    A part that is no field comes first. Pads align every number, so a small key that is declared between larger ones
    takes the place of a pad, and moves nothing.
    """
    names = {one.name for one in dataclass_fields(record)}
    placed = {part.name: part for part in parts}
    keys, laid = get_keys(record), [part for part in parts if part.name not in names]
    for one in dataclass_fields(record):
        made = placed.get(one.name) or _lay_out_key(one.name, keys[one.name], one.type)
        behind = -sum(field.size for field in laid) % ALIGNMENT.get(made.code, 1)
        laid += [pad(behind), made] if behind else [made]
    return RecordLayout(record, laid)


def _lay_out_key(name: str, key: Key, kind: Any) -> Field:
    if key.width == "text":
        return text(name, key.limit)
    return enum(name, kind, "I") if key.width == "enum" else _BY_WIDTH[key.width](name)


MODEL: Final[RecordLayout[Model]] = _lay_out(
    Model, constant("kind", "I", 0), nested("checkpoint", CHECKPOINT), nested("data_location", DATA_LOCATION),
    nested("lr_schedule", LR_SCHEDULE), nested("optimizer", OPTIMIZER), exactly("extra_checkpoints", CHECKPOINT, 3),
)  # fmt: skip

CONFIG: Final[RecordLayout[Config]] = _lay_out(Config)

METADATA: Final[RecordLayout[Metadata]] = _lay_out(Metadata)

PROGRESS: Final[RecordLayout[Progress]] = _lay_out(Progress)

MARK: Final = RecordLayout(Mark, (raw("digest"), u16("epoch"), u16("uploader"), u32("step"), u64("data_index")))

START_CANDIDATE: Final = RecordLayout(StartCandidate, (raw("digest"), u16("count"), pad(6)))

WITNESS: Final = RecordLayout(
    WitnessRecord,
    (
        up_to(MAX_CLIENTS - 1, u16("member")), flags("flags", WitnessFlag), pad(1), u32("at_s"), bitmap("held"),
        bitmap("heard"), bitmap("missing"), raw("broadcast_bloom", BLOOM_BYTES), raw("results_root"),
        raw("state_digest"), pad(24),
    ),
)  # fmt: skip

AUDIT: Final = RecordLayout(
    Audit,
    (
        u16("verifier"),
        u16("target"),
        enum("status", AuditStatus),
        enum("reason", AuditReason),
        u16("piece"),
        raw("commit"),
        pad(24),
    ),
)

ROUND: Final = RecordLayout(
    Round,
    (
        raw("seed"), bitmap("members"), bitmap("agreed_held"), raw("agreed_root"), raw("agreed_digest"), raw("mix"),
        u64("random_seed"), u64("data_index"), u64("started_unix"), u64("entropy_slot"), u32("height"), u32("step"),
        u16("batch_size"), up_to(MAX_CLIENTS, u16("clients_len")), up_to(MAX_WITNESSES, u16("witnesses_expected")),
        u16("quorum"), count("witnesses"), u16("complete_len"), count("audits"), u16("tie_breaker_tasks"),
        flags("flags", RoundFlag), pad(7), bitmap("voided"), bitmap("electors"),
        entries("witnesses", WITNESS, MAX_WITNESSES), entries("audits", AUDIT, MAX_AUDITS),
    ),
)  # fmt: skip

CLIENT: Final = RecordLayout(
    Client,
    (
        raw("signer"), raw("p2p"), enum("state", ClientState), u8("missed"), u8("late"), u8("witness_missed"),
        flags("flags", ClientFlag), u8("share"), up_to(MAX_CLIENTS - 1, u16("slot")), u32("joined_height"),
        u32("exited_height"), u32("credits"), u16("witness_credits"), u16("audits_passed"), u8("audits_failed"),
        u8("false_challenges"), u8("numeric_class"), u8("good_streak"), u32("witness_checked_height"), pad(32),
    ),
)  # fmt: skip

CHALLENGE: Final = RecordLayout(
    Challenge,
    (
        raw("target_commitment"), raw("evidence"), u32("height"), u32("opened_height"), u32("deadline_height"),
        u16("verifier"), u16("target"), enum("state", ChallengeState), enum("reason", AuditReason), u8("guilty"),
        u8("innocent"), u16("epoch"), u16("piece"), bitmap("voters"), pad(8),
    ),
)  # fmt: skip

SLOT: Final = RecordLayout(
    Slot,
    (
        raw("signer"), raw("p2p"), u64("earned"), u64("slashed"), u64("stake"), u64("joined_unix"),
        u64("expires_unix"), pad(8), u16("active"), u16("last_epoch"), enum("state", SlotState), u8("strikes"),
        u16("until"), raw("anchor"), boolean("proven"), u8("fruitless"), u8("false_challenges"),
        pad(37),
    ),
)  # fmt: skip

REGISTRY: Final = RecordLayout(
    Registry,
    (
        count("slots"), u16("next_active"), pad(4), u64("current_earning_rate"), u64("current_slashing_rate"),
        u64("future_earning_rate"), u64("future_slashing_rate"), u64("carry"), pad(16),
        entries("slots", SLOT, MAX_CLIENTS),
    ),
)  # fmt: skip

_EPOCH: Final = (
    u32("epoch.rounds_head"), u32("epoch.start_step"), u32("epoch.drain_from_height"), count("clients"),
    u16("epoch.ready_len"), u64("epoch.start_timestamp"), u64("epoch.ready_quorum_unix"), u8("epoch.void_streak"),
    u8("epoch.digest_streak"), u8("epoch.warmup_failures"), boolean("epoch.first_round"),
    boolean("epoch.cold_start"), enum("epoch.stop_reason", StopReason), pad(2),
    until_zero("epoch.start_candidates", START_CANDIDATE, MAX_START_CANDIDATES), u64("epoch.credit_total"),
    u8("epoch.checkpoint_sources"), pad(47),
)  # fmt: skip

PARTS: Final[tuple[tuple[str, int, tuple[Field, ...]], ...]] = (
    ("file", 16, (constant("discriminator", "8s", DISCRIMINATOR), constant("version", "Q", VERSION))),
    ("metadata", 456, (nested("metadata", METADATA), text("client_version", CLIENT_VERSION_BYTES))),
    (
        "run",
        88,
        (
            text("run_id", RUN_ID_BYTES), raw("run_uid"), enum("run_state", RunState), pad(7),
            u64("state_start_unix"), boolean("pending_pause"), pad(7),
        ),
    ),
    ("model", 960, (nested("model", MODEL),)),
    ("config", 128, (nested("config", CONFIG),)),
    (
        "progress",
        144,
        (nested("progress", PROGRESS), raw("last_seed"), nested("certified", MARK), nested("checkpoint", MARK)),
    ),
    ("epoch", 256, _EPOCH),
    ("rounds", STORED_ROUNDS * 18_752, (exactly("rounds", ROUND, STORED_ROUNDS),)),
    ("clients", MAX_CLIENTS * 128, (entries("clients", CLIENT, MAX_CLIENTS),)),
    ("challenges", MAX_CHALLENGES * 128, (exactly("challenges", CHALLENGE, MAX_CHALLENGES),)),
    ("registry", 64 + MAX_CLIENTS * 192, (nested("registry", REGISTRY),)),
    ("end", 4_104, (u64("nonce"), texts("bootstrap", BOOTSTRAP_BYTES, MAX_BOOTSTRAP), pad(3_584))),
)  # fmt: skip

for _name, _size, _fields in PARTS:
    assert sum(field.size for field in _fields) == _size, f"the part {_name} has {_size} bytes"

ACCOUNT: Final = RecordLayout(Coordinator, tuple(chain.from_iterable(part[2] for part in PARTS)), {"epoch": Epoch})

assert ACCOUNT.size == STATE_BYTES, "the account's size is fixed"
assert WITNESS.size == 512, "a witness record has 512 bytes"
assert ROUND.size == 320 + MAX_WITNESSES * WITNESS.size + MAX_AUDITS * AUDIT.size, "a round has 18,752 bytes"
