"""Configurations, models and keys of small runs. All are deterministic: keys and hashes follow from their names."""

import hashlib
from typing import Any

from psyche.core.state.genesis import create_run
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    Config,
    Coordinator,
    LrSchedule,
    Metadata,
    Model,
    Optimizer,
    OptimizerKind,
)
from psyche.wire.crypto import Identity

START_UNIX = 1_700_000_000


def build_hash(*parts: object) -> bytes:
    """32 bytes that depend only on the texts of the parts."""
    return hashlib.sha256("|".join(map(str, parts)).encode()).digest()


def build_keys(number: int) -> tuple[bytes, bytes]:
    """Signer and p2p key of the run's `number`-th participant."""
    return build_hash("signer", number), build_hash("p2p", number)


def build_identity(*name: object) -> Identity:
    """The key pair that belongs to this name or number."""
    return Identity(build_hash("identity", *name))


def build_config(**overrides: Any) -> Config:
    """A small valid configuration: 2 rounds an epoch, every member a witness, short times."""
    values: dict[str, Any] = {
        "warmup_time": 30,
        "cooldown_time": 5,
        "max_round_train_time": 20,
        "round_witness_time": 4,
        "rounds_per_epoch": 2,
        "total_steps": 1_000,
        "init_min_clients": overrides.get("min_clients", 1),
        "min_clients": 1,
        "global_batch_size_start": 12,
        "global_batch_size_end": 12,
        "waiting_for_members_extra_time": 2,
    }
    return Config(**(values | overrides))


def build_model(**overrides: Any) -> Model:
    """A model that passes the checks; it has no weights."""
    values: dict[str, Any] = {
        "max_seq_len": 16,
        "checkpoint": Checkpoint(CheckpointKind.DUMMY, "test"),
        "lr_schedule": LrSchedule(base_lr=1e-3),
        "optimizer": Optimizer(
            OptimizerKind.DISTRO, compression_decay=0.95, compression_topk=4, compression_chunk=16, quantize_1bit=True
        ),
    }
    return Model(**(values | overrides))


def build_state(
    config: Config | None = None, model: Model | None = None, *, run_id: str = "test-run", start_unix: int = START_UNIX,
    first_weights: bytes = ZERO32,
) -> Coordinator:  # fmt: skip
    """A newly created run that waits for members."""
    return create_run(
        config or build_config(), model or build_model(), run_id, build_hash("run"), Metadata(name="test"), "test",
        start_unix, first_weights=first_weights,
    )  # fmt: skip
