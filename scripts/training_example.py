"""The model, the settings, the payloads and the results of the examples in docs/peer-training.md."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.schedule import get_lr_bits, round_f32
from psyche.core.encoding.account import get_config_preimage
from psyche.core.encoding.header import NumericClass, ResultHeader, encode_header
from psyche.core.encoding.manifest import FileEntry, encode_manifest
from psyche.core.encoding.plan import PlanGroup, TransformPlan, compute_plan, encode_plan
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    Config,
    Coordinator,
    DataLocation,
    DataLocationKind,
    LrSchedule,
    Model,
    Optimizer,
    OptimizerKind,
    Round,
)
from psyche.modeling.distro.codec import ChunkSets, encode_payload
from psyche.modeling.weights import compute_entries
from psyche.wire.crypto import (
    Identity,
    blake3_hash,
    blob_id_of,
    compute_chain_digest,
    compute_commitment,
    compute_data_hash,
    compute_state_digest,
)

ALICE, BOB, CAROL = (Identity(bytes([byte]) * 32) for byte in (1, 2, 3))
RUN_UID, SEED, CERTIFIED = (bytes([byte]) * 32 for byte in (7, 8, 0x0D))
LR, DECAY = round_f32(0.001), round_f32(0.1)
CONFIG_JSON: Final = b'{"model_type": "llama"}'
CHUNK, TOPK = 4, 2
FIRST_SAMPLE, ROW_LENGTH = 1_000, 3
EPOCH, HEIGHT, STEP = 3, 0, 7  # of the round whose results are shown
ALICES, BOBS, CAROLS = 5, 1, 4
OVERLAP_APPLIES: Final = 2  # rounds from training to applying

Signs = Sequence[Sequence[dict[int, int]]]

# positions with the sign of each, by group and chunk
PAYLOADS: Final[dict[int, tuple[Identity, Signs]]] = {
    ALICES: (ALICE, (
        ({0: 1},), ({0: 1, 2: -1}, {1: 1}),
        ({0: 1, 5: -1}, {}, {3: 1}, {}, {}, {1: 1}, {4: -1}, {15: 1}),
    )),
    BOBS: (BOB, (
        ({0: 1},), ({0: -1, 1: 1}, {1: -1}),
        ({0: -1, 6: 1}, {7: 1}, {3: 1}, {}, {}, {1: -1}, {4: -1}, {}),
    )),
    CAROLS: (CAROL, (
        ({0: -1},), ({0: -1}, {}),
        ({0: 1}, {}, {}, {}, {8: 1}, {1: 1}, {}, {2: -1, 15: 1}),
    )),
}  # fmt: skip
NAMES: Final = {ALICES: "Alice", BOBS: "Bob", CAROLS: "Carol"}


def make_weights() -> dict[str, torch.Tensor]:
    """All tensors of the model; the plan has only those that are trained."""
    return {
        "heads.weight": (torch.arange(64) / 64).view(2, 8, 4).contiguous(),
        "lin.weight": (torch.arange(64) / 32 - 1).view(8, 8).contiguous(),
        "norm.offset": torch.tensor([0.5, -0.5]),
        "norm.weight": torch.ones(6),
        "scale": torch.tensor(2.0),
    }


def get_trained(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters: `norm.offset` is a buffer."""
    return {name: weight for name, weight in weights.items() if name != "norm.offset"}


def make_plan() -> TransformPlan:
    shapes = {name: tuple(weight.shape) for name, weight in get_trained(make_weights()).items()}
    return compute_plan(shapes, CHUNK, TOPK, one_bit=True)


def make_files() -> tuple[FileEntry, ...]:
    return (FileEntry("config.json", len(CONFIG_JSON), blob_id_of(CONFIG_JSON)),)


def make_settings() -> Coordinator:
    """A record with the configuration and the model of the example; its model has two sources of the weights."""
    config = Config(
        warmup_time=120, cooldown_time=60, max_round_train_time=60, round_witness_time=10, total_steps=1_000,
        init_min_clients=3, min_clients=2, global_batch_size_start=10, global_batch_size_end=10, rounds_per_epoch=100,
    )  # fmt: skip
    optimizer = Optimizer(
        OptimizerKind.DISTRO, weight_decay=DECAY, compression_decay=round_f32(0.9), compression_topk=TOPK,
        compression_chunk=CHUNK, quantize_1bit=True,
    )  # fmt: skip
    model = Model(
        max_seq_len=ROW_LENGTH, checkpoint=Checkpoint(CheckpointKind.LOCAL, "shared/first"),
        extra_checkpoints=[Checkpoint(CheckpointKind.HUB, "alice/first", "main"), Checkpoint(), Checkpoint()],
        data_location=DataLocation(DataLocationKind.SERVER, "192.0.2.7:20001"), lr_schedule=LrSchedule(base_lr=0.001),
        optimizer=optimizer,
    )  # fmt: skip
    return Coordinator(config=config, model=model)


def make_sets(group: PlanGroup, chunks: Sequence[dict[int, int]]) -> ChunkSets:
    """The sets of a group whose payload has signs."""
    indices = np.full((len(chunks), group.k), group.area, dtype=np.int32)
    values = np.zeros((len(chunks), group.k), dtype=np.int8)
    for number, chosen in enumerate(chunks):
        indices[number, : len(chosen)], values[number, : len(chosen)] = list(chosen), list(chosen.values())
    return ChunkSets(indices, values)


def make_body(member: int) -> bytes:
    plan, signs = make_plan(), PAYLOADS[member][1]
    return encode_payload(plan, [make_sets(g, chunks) for g, chunks in zip(plan.groups, signs, strict=True)])


def make_round() -> Round:
    members = compute_bits((0, BOBS, CAROLS, ALICES))
    return Round(
        seed=SEED, random_seed=int.from_bytes(SEED[:8], "little"), members=members, electors=members, batch_size=10,
        data_index=FIRST_SAMPLE, clients_len=4, witnesses_expected=4, quorum=3, height=HEIGHT,
    )  # fmt: skip


def get_tokens(first: int, last: int) -> bytes:
    """The ids of samples, as u32: those of sample i are 3 (i - 1,000) + 1, + 2 and + 3."""
    start, end = (ROW_LENGTH * (sample - FIRST_SAMPLE) for sample in (first, last + 1))
    return np.arange(start + 1, end + 1, dtype="<u4").tobytes()


def make_header(member: int) -> ResultHeader:
    start, end = compute_assignments(make_round(), Config())[member]
    trainer, body = PAYLOADS[member][0], make_body(member)
    chain = compute_chain_digest(CERTIFIED, EPOCH, HEIGHT, STEP, get_lr_bits(LR), ())
    return ResultHeader(
        run_uid=RUN_UID, epoch=EPOCH, member=member, height=HEIGHT, step=STEP, lr_bits=get_lr_bits(LR),
        batch_start=start, batch_end=end, plan_hash=blake3_hash(encode_plan(make_plan())),
        config_hash=blake3_hash(get_config_preimage(make_settings())),
        base_digest=compute_state_digest(chain, get_weight_part()), data_hash=compute_data_hash(get_tokens(start, end)),
        prev_commitment=ZERO32, body_hash=blob_id_of(body), body_len=len(body), train_count=1,
        numeric_class=NumericClass.FP32, trainer_key=trainer.public,
    )  # fmt: skip


def get_weight_part() -> bytes:
    return blake3_hash(encode_manifest(compute_entries(make_weights()), make_files()))


def compute_commitments() -> dict[int, bytes]:
    """The commitments to all payloads, in the order of their samples."""
    ordered = sorted(map(make_header, PAYLOADS), key=lambda header: header.batch_start)
    return {header.member: compute_commitment(encode_header(header)) for header in ordered}
