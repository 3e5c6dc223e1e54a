"""The numbers behind names, and the sizes and limits of the protocol: whoever speaks it needs the same ones."""

from enum import IntEnum
from typing import Any

import pytest

from psyche.core.encoding import tables
from psyche.core.state import enums, limits
from psyche.core.state.gossip import ReadyFlag
from psyche.core.state.state import (
    Audit,
    Challenge,
    Client,
    HttpLocation,
    HttpLocationKind,
    Optimizer,
    OptimizerKind,
    Registry,
    Round,
    Slot,
    WitnessRecord,
)

NAMES = {
    enums.RunState: "UNINITIALIZED WAITING_FOR_MEMBERS WARMUP ROUND_TRAIN ROUND_WITNESS COOLDOWN FINISHED PAUSED",
    enums.ClientState: "HEALTHY DROPPED WITHDRAWN EJECTED",
    enums.SlotState: "FREE JOINED LEAVING BANNED LEFT",
    enums.Role: "TIE_BREAKER VERIFIER TRAINER",
    enums.StopReason: "NONE EPOCH_LENGTH TOTAL_STEPS PAUSE MIN_CLIENTS MASS_DROP NO_DIGEST VOID",
    enums.Architecture: "HF_LLAMA HF_DEEPSEEK HF_AUTO TORCHTITAN",
    enums.DataType: "PRETRAINING FINETUNING",
    enums.TokenSize: "TWO_BYTES FOUR_BYTES",
    enums.CheckpointKind: "EPHEMERAL DUMMY HUB P2P GCS P2P_GCS LOCAL",
    enums.DataLocationKind: "DUMMY SERVER LOCAL HTTP WEIGHTED_HTTP PREPROCESSED",
    enums.HttpLocationKind: "SINGLE_URL NUMBERED_FILES GCP",
    enums.ScheduleKind: "CONSTANT LINEAR COSINE WARMUP_STABLE_DECAY",
    enums.OptimizerKind: "DUMMY ADAMW DISTRO",
}
FLAGS: dict[Any, dict[str, int]] = {
    enums.ClientFlag: {
        "READY": 1, "DIVERGED": 2, "NEWCOMER": 4, "PROBATION": 8, "CANDIDATE_LOW": 16, "CANDIDATE_HIGH": 32,
    },
    enums.WitnessFlag: {"COMPLETE": 1, "FULL_DIGEST": 2, "NO_DIGEST": 4},
    enums.RoundFlag: {
        "DRAIN": 1, "ROOT": 2, "DIGEST": 4, "FULL": 8, "VOID": 16, "CLOSED": 32, "BY_TIMEOUT": 64,
    },
    ReadyFlag: {"BEHIND": 1, "DIVERGED": 2},
}  # fmt: skip
LIMITS = {
    "MAX_CLIENTS": 256,
    "MAX_WITNESSES": 32,
    "STORED_ROUNDS": 4,
    "MAX_START_CANDIDATES": 4,
    "BLOOM_BITS": 2_560,
    "BLOOM_HASHES": 7,
    "BLOOM_BIT_CAP": 1_400,
    "EVICT_AFTER_ROUNDS": 2,
    "LATE_LIMIT_ROUNDS": 3,
    "GOOD_STREAK_ROUNDS": 8,
    "STRAGGLER_PERCENT": 150,
    "VOID_LIMIT_ROUNDS": 2,
    "DIGEST_LIMIT_ROUNDS": 2,
    "BEHIND_LIMIT_ROUNDS": 2,
    "FULL_DIGEST_EVERY_HEIGHTS": 64,
    "FULL_DIGEST_MAX_PARAMETERS": 100_000_000,
    "WITNESS_SILENCE_LIMIT": 2,
    "WARMUP_FAILURE_LIMIT": 2,
    "WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT": 10,
    "MIN_STRAGGLER_SLACK_S": 2,
    "FOLLOW_WINDOW_S": 5,
    "RECONNECT_S": 15,
    "SHUFFLE_ROUNDS": 90,
    "METADATA_BYTES": 256,
    "HEADER_BYTES": 448,
    "SIGNED_BYTES": 87,
    "NO_UPLOADER": 65_535,
    "STATE_BYTES": 165_192,
    "MAX_ADDRESSES": 8,
    "MAX_MESSAGE_BYTES": 4_096,
}


@pytest.mark.parametrize("kind", list(NAMES), ids=lambda kind: kind.__name__)
def test_an_enumeration_counts_from_zero_in_this_order(kind: type[IntEnum]) -> None:
    assert [(member.name, member.value) for member in kind] == [
        (name, number) for number, name in enumerate(NAMES[kind].split())
    ]


@pytest.mark.parametrize("kind", list(FLAGS), ids=lambda kind: kind.__name__)
def test_flags_have_these_bits(kind: Any) -> None:
    assert {flag.name: flag.value for flag in kind} == FLAGS[kind]


def test_sizes_and_limits_are_those_of_the_protocol() -> None:
    assert {name: getattr(limits, name) for name in LIMITS} == LIMITS


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (tables.AUDIT, Audit()),
        (tables.CHALLENGE, Challenge()),
        (tables.CLIENT, Client()),
        (tables.REGISTRY, Registry()),
        (tables.ROUND, Round()),
        (tables.SLOT, Slot()),
        (tables.WITNESS, WitnessRecord()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_set_is_zero_on_record(codec: Any, value: object) -> None:
    assert codec.write(value) == bytes(codec.size)


@pytest.mark.parametrize("kind", list(HttpLocationKind))
def test_a_location_without_settings_is_zero_behind_its_kind(kind: HttpLocationKind) -> None:
    raw = tables.HTTP_LOCATION.write(HttpLocation(kind))
    assert raw == int(kind).to_bytes(4, "little") + bytes(256)


@pytest.mark.parametrize("kind", list(OptimizerKind))
def test_an_optimizer_without_settings_is_zero_behind_its_kind(kind: OptimizerKind) -> None:
    raw = tables.OPTIMIZER.write(Optimizer(kind))
    assert raw == int(kind).to_bytes(4, "little") + bytes(28)
