"""The numbers behind names: whoever speaks the protocol needs the same ones. tests/docs has its sizes and limits."""

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
    enums.AuditStatus: "PASSED DOUBTED CHALLENGED",
    enums.AuditReason: "NONE UNCLEAR GRADIENT REPEATED SIGNS WITHHELD PATHS MOMENTUM SELECTION LINK",
    enums.ChallengeState: "FREE OPEN UNDECIDED",
    enums.Role: "VERIFIER TRAINER",
    enums.StopReason: "NONE EPOCH_LENGTH TOTAL_STEPS PAUSE MIN_CLIENTS MASS_DROP NO_DIGEST VOID",
    enums.Architecture: "HF_LLAMA HF_DEEPSEEK HF_AUTO TORCHTITAN",
    enums.DataType: "PRETRAINING FINETUNING",
    enums.TokenSize: "TWO_BYTES FOUR_BYTES",
    enums.CheckpointKind: "EPHEMERAL DUMMY HUB P2P GCS P2P_GCS LOCAL",
    enums.DataLocationKind: "DUMMY SERVER LOCAL HTTP WEIGHTED_HTTP PREPROCESSED",
    enums.HttpLocationKind: "SINGLE_URL NUMBERED_FILES GCP",
    enums.ScheduleKind: "CONSTANT LINEAR COSINE WARMUP_STABLE_DECAY",
    enums.OptimizerKind: "DUMMY ADAMW DISTRO LOCAL_STEPS",
    enums.InnerOptimizer: "ADAMW MUON ADAMW_ANEW MUON_ANEW",
    enums.Lookahead: "MOMENTUM OWN",
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


@pytest.mark.parametrize("kind", list(NAMES), ids=lambda kind: kind.__name__)
def test_an_enumeration_counts_from_zero_in_this_order(kind: type[IntEnum]) -> None:
    assert [(member.name, member.value) for member in kind] == [
        (name, number) for number, name in enumerate(NAMES[kind].split())
    ]


@pytest.mark.parametrize("kind", list(FLAGS), ids=lambda kind: kind.__name__)
def test_flags_have_these_bits(kind: Any) -> None:
    assert {flag.name: flag.value for flag in kind} == FLAGS[kind]


def test_the_bounds_that_no_run_reaches_are_the_same_in_every_backend() -> None:
    assert limits.MAX_DATA_INDEX == 9_223_372_036_854_775_807
    assert limits.MAX_HEIGHT == 4_294_967_294
    assert limits.MAX_EPOCH_ROUNDS == 2_147_483_648
    assert limits.MAX_NONCE == 4_611_686_018_427_387_904


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
