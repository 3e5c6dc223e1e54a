"""Bodies of updates: valid ones with every kind of model, and the same with bytes changed, cut off or added."""

from dataclasses import fields
from random import Random
from typing import Final, NamedTuple

from kits.runs import Run, build_paused_run, build_run

from differential.backends import ACCEPTED, Backend, encode_head
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.bodies import decode_body, encode_body
from psyche.core.rules.apply import BY_TYPE, apply
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Update, UpdateClientVersion
from psyche.core.state.state import (
    ZERO32,
    Architecture,
    Checkpoint,
    CheckpointKind,
    Config,
    DataLocation,
    DataLocationKind,
    HttpLocation,
    HttpLocationKind,
    InnerOptimizer,
    Lookahead,
    LrSchedule,
    Metadata,
    Model,
    Optimizer,
    OptimizerKind,
    Progress,
    RunState,
    ScheduleKind,
    TokenSize,
)
from psyche.errors import WireError
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_model

UPDATE_KINDS: Final = {BY_TYPE[kind].number: kind for kind in (Update, UpdateClientVersion)}
UPDATE, VERSION = UPDATE_KINDS
FLOATS: Final = (0.0, -0.0, 1e-50, 1.4e-45, 1e-3, 0.5, 0.999_999_999, 1.0, 3e38)
STEPS: Final = (0, 1, 7, (1 << 32) - 1)
BYTES: Final = (0x00, 0x01, 0x02, 0x2F, 0x41, 0x7F, 0x80, 0xBF, 0xC3, 0xED, 0xF0, 0xFF)
WORDS: Final = (0x7F80_0000, 0x7FC0_0000, 0xFF80_0000, 0x8000_0000, 0x3F80_0000, 0x3F7F_FFFF, 0x3F80_0001, 1, 0)


class Case(NamedTuple):
    """One instruction to a run in one of its states."""

    account: bytes
    number: int
    body: bytes

    @property
    def data(self) -> bytes:
        return encode_head(START_UNIX, 7, ZERO32, self.number) + self.body


def build_accounts() -> list[bytes]:
    """A new run, paused ones, and one that is going."""
    new = Run(build_run(0).state)
    new.state.run_state = RunState.UNINITIALIZED
    unset = build_paused_run()
    unset.state.config, unset.state.model = build_config(epoch_time=500), build_model(optimizer=Optimizer())
    runs = (new, build_paused_run(), unset, build_run(1).warm_up())
    return [encode_state(run.state) for run in runs]


def draw_case(draw: Random, accounts: list[bytes]) -> Case:
    account = draw.choice(accounts)
    if draw.random() < 0.1:
        text = draw.choice(("", "v1", "é" * 48, "x" * 96))
        return Case(account, VERSION, change_bytes(draw, encode_body(UpdateClientVersion(text))))
    return Case(account, UPDATE, change_bytes(draw, encode_body(draw_update(draw))))


def change_bytes(draw: Random, body: bytes) -> bytes:
    """Most bytes are zero and most others do nothing: most changes hit one that is set, or one beside or behind it."""
    raw = bytearray(body)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        if not raw:
            break
        places = [place for place, byte in enumerate(raw) if byte]
        near = draw.choice(places) + draw.choice((-1, 0, 0, 0, 1, 2)) if places else 0
        place = near % len(raw) if draw.random() < 0.6 else draw.randrange(len(raw))
        ends = [after for after in range(1, len(raw)) if raw[after - 1] and not raw[after]]
        if ends and draw.random() < 0.25:  # a text grows, if need be beyond its field
            place = draw.choice(ends)
        if draw.random() < 0.2 and place + 4 <= len(raw):
            raw[place : place + 4] = draw.choice(WORDS).to_bytes(4, "little")
        else:
            raw[place] = draw.choice((*BYTES, raw[place] ^ 1 << draw.randrange(8)))
    cut = draw.random()
    if cut < 0.02:
        return bytes(raw[: draw.randrange(len(raw) + 1)])
    return bytes(raw) + (draw.randbytes(draw.randint(1, 8)) if cut < 0.04 else b"")


def draw_update(draw: Random) -> Update:
    metadata = Metadata(draw.choice(("", "name", "é" * 32)), draw.choice(("", "d" * 280)), draw.choice(STEPS), 5)
    addresses = tuple(draw.choice(("/", "/ip4/192.0.2.1/tcp/1", "/" + "é" * 63)) for _ in range(draw.randint(0, 4)))
    progress = Progress(draw.choice((0, 1)), draw.choice((1, 5, 900)), draw.choice((0, 77, (1 << 63) - 1)))
    return Update(
        draw.choice((None, draw_config(draw), draw_config(draw))),
        draw.choice((None, draw_model(draw), draw_model(draw))),
        draw.choice((None, None, progress)),
        draw.choice((None, None, metadata)),
        draw.choice((None, None, addresses)),
        draw.choice((*[None] * 12, build_hash("weights"), ZERO32)),
        draw.choice((*[None] * 16, 0, 9)),
    )


def draw_config(draw: Random) -> Config:
    config = build_config(
        epoch_time=draw.choice((0, 31, 100, 4_000_000_000)), rounds_per_epoch=draw.choice((0, 1, 7)),
        witness_nodes=draw.choice((0, 32)), overlap=draw.random() < 0.5, verification_percent=draw.choice((0, 99)),
        init_min_clients=draw.choice((1, 256)), canary_permille=draw.choice((0, 1_000)),
        reveal_gate=draw.random() < 0.5, min_stake=draw.choice((0, 9)), data_root=draw.choice((ZERO32, build_hash(1))),
        total_steps=draw.choice((2, 1_000, (1 << 32) - 1)), global_batch_size_end=draw.choice((12, 65_535)),
    )  # fmt: skip
    if draw.random() < 0.2:  # most fields must not be zero
        setattr(config, draw.choice([one.name for one in fields(config) if type(getattr(config, one.name)) is int]), 0)
    return config


def draw_model(draw: Random) -> Model:
    kind = draw.choice([one for one in CheckpointKind if one is not CheckpointKind.EPHEMERAL])
    local = kind is CheckpointKind.LOCAL
    checkpoint = Checkpoint(kind, "x" * 128 if local else "org/é", None if local else draw.choice((None, "", "main")))
    return Model(
        max_seq_len=draw.choice((1, 16, (1 << 32) - 1)), cold_start_warmup_steps=draw.choice((0, 0, 3)),
        cooldown_sources=draw.choice((0, 4)), architecture=draw.choice(list(Architecture)), checkpoint=checkpoint,
        data_location=draw_location(draw), lr_schedule=draw_schedule(draw), optimizer=draw_optimizer(draw),
        extra_checkpoints=[draw.choice((Checkpoint(), checkpoint)) for _ in range(3)],
    )  # fmt: skip


def draw_location(draw: Random) -> DataLocation:
    kind = draw.choice(list(DataLocationKind))
    if kind is DataLocationKind.DUMMY:
        return DataLocation()
    if kind is not DataLocationKind.HTTP:
        return DataLocation(kind, address="host:1")
    shape = draw.choice(list(HttpLocationKind))
    http = HttpLocation(shape, "http://x")
    if shape is HttpLocationKind.NUMBERED_FILES:
        http = HttpLocation(shape, "http://x-{}", start_index=3, num_files=draw.choice((0, 1, 9)), n_left_pad_zeros=4)
    elif shape is HttpLocationKind.GCP:
        http = HttpLocation(shape, "bucket", filter_directory=draw.choice(("", "folder")))
    return DataLocation(
        kind, http=http, token_size=draw.choice(list(TokenSize)), shuffle_seed=draw.choice((None, build_hash(2)))
    )


def draw_schedule(draw: Random) -> LrSchedule:
    kind = draw.choice(list(ScheduleKind))
    high, middle, low = sorted((draw.choice(FLOATS) for _ in range(3)), reverse=True)
    if kind is ScheduleKind.CONSTANT:
        return LrSchedule(kind, high, low, warmup_steps=draw.choice(STEPS))
    if kind is ScheduleKind.WARMUP_STABLE_DECAY:
        return LrSchedule(
            kind, high, low, warmup_steps=1, stable_steps=draw.choice(STEPS), cosine_decay_steps=3,
            linear_decay_steps=draw.choice(STEPS), cosine_decay_final_lr=middle, linear_decay_final_lr=low,
        )  # fmt: skip
    steps = sorted(draw.choice(STEPS) for _ in range(2))
    return LrSchedule(kind, high, low, warmup_steps=steps[0], total_steps=steps[1], final_lr=middle)


def draw_optimizer(draw: Random) -> Optimizer:
    kind = draw.choice(list(OptimizerKind))
    maybe = (None, *FLOATS)
    if kind is OptimizerKind.DUMMY:
        return Optimizer()
    shared = {"weight_decay": draw.choice(maybe), "clip_grad_norm": draw.choice(maybe)}
    if kind is OptimizerKind.ADAMW:
        return Optimizer(kind, betas=(draw.choice(FLOATS), draw.choice(FLOATS)), eps=draw.choice(FLOATS), **shared)
    shared |= {
        "compression_topk": draw.choice((0, 1, 4, 65_535)), "compression_chunk": draw.choice((0, 1, 16, 64, 65)),
    }  # fmt: skip
    if kind is OptimizerKind.DISTRO:
        quantize_1bit = draw.random() < 0.5
        lookahead = draw.choice(list(Lookahead))
        return Optimizer(
            kind, compression_decay=draw.choice(FLOATS), quantize_1bit=quantize_1bit, lookahead=lookahead, **shared
        )
    return Optimizer(
        kind, inner_optimizer=draw.choice(list(InnerOptimizer)), inner_steps=draw.choice((0, 1, 8, 8, 2_048, 2_049)),
        merge_step=draw.choice((0, 0, 1, 7, 8)), value_bits=draw.choice((0, 1, 2, 2, 3)),
        error_decay=draw.choice(FLOATS), outer_rate=draw.choice((*FLOATS, 16.0, 16.1)), **shared,
    )  # fmt: skip


def judge_by_core(case: Case) -> tuple[bool, bytes]:
    """Whether core accepts the instruction, and the account after it."""
    state = decode_state(case.account)
    try:
        apply(state, START_UNIX, 7, ZERO32, decode_body(UPDATE_KINDS[case.number], case.body))
    except (WireError, CoordinatorError):
        return False, case.account
    return True, encode_state(state)


def judge_by_backend(backend: Backend, case: Case) -> tuple[bool, bytes]:
    """Whether the Rust rules accept the instruction, and the account after it."""
    backend.load(case.account)
    return backend.send(case.data) == ACCEPTED, backend.read()
