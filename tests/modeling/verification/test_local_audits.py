"""Rounds of local steps whose inner state begins anew: tables of them, and audits of others (V2, V8)."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from auditing_kit import get_seed
from kits.tier import IS_WHOLE, few

from psyche.core.committee.verdicts import compute_distance
from psyche.core.encoding.work import WorkRow, compute_difference, decode_table
from psyche.core.state.state import InnerOptimizer, Optimizer, OptimizerKind
from psyche.errors import TrainerError
from psyche.modeling.trainer.batch import Cancelled
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.wire.data import NOT_COUNTED
from psyche.wire.trainer import (
    ApplyRequest,
    AuditReply,
    AuditRequest,
    AuditTarget,
    Contribution,
    LoadRequest,
    LocalTarget,
    MergeRequest,
    TrainReply,
    TrainRequest,
    WorkRequest,
)

SAMPLES, LENGTH, STEPS, MERGE = 8, 16, 4, 3
RATES = (1e-2, 8e-3)
OPTIMIZER = Optimizer(
    OptimizerKind.LOCAL_STEPS, clip_grad_norm=1.0, weight_decay=0.1, inner_steps=STEPS, merge_step=MERGE,
    compression_topk=4, compression_chunk=8, value_bits=2, error_decay=0.95, outer_rate=1.0,
    inner_optimizer=InnerOptimizer.ADAMW_ANEW,
)  # fmt: skip
ANEW = [InnerOptimizer.ADAMW_ANEW, InnerOptimizer.MUON_ANEW]


def draw_tokens(number: int, samples: int = SAMPLES) -> bytes:
    return np.random.default_rng(number).integers(0, 64, size=(samples, LENGTH), dtype="<u4").tobytes()


class LocalMember:
    """Alone in its run: the guess about what is in flight is right, so that merging it changes nothing."""

    def __init__(self, load: LoadRequest, micro_batch_size: int = SAMPLES, **optimizer: object) -> None:
        model = replace(load.model, optimizer=replace(OPTIMIZER, **optimizer))
        self.engine = TrainerEngine()
        self.engine.load(
            msgspec.structs.replace(load, model=model, verifies=True, micro_batch_size=micro_batch_size)
        )  # fmt: skip
        self.replies: list[TrainReply] = []
        self.sets: list[ApplyRequest] = []

    def run(self, rounds: int, **changes: object) -> "LocalMember":
        for height in range(len(self.replies), len(self.replies) + rounds):
            self.apply(height)
            request = TrainRequest(
                epoch=0, height=height, step=height + 1, lr=RATES[0], next_lr=RATES[1], lookahead_lr=0.0,
                tokens=draw_tokens(height), samples=SAMPLES, sequence_length=LENGTH, decided=(), in_flight=True,
                own=self.get_own(height),
                work=WorkRequest(
                    seed=get_seed(height), piece_samples=1,
                    calibration=draw_tokens(0)[: 4 * LENGTH] if not height else b"",
                ),
            )  # fmt: skip
            reply = self.engine.train(msgspec.structs.replace(request, **changes))
            if reply.waits_for_merge:
                reply = self.engine.merge(MergeRequest(held=self.get_own(height)))
            self.replies.append(reply)
        return self

    def get_own(self, height: int) -> tuple[Contribution, ...]:
        """What is in flight in a round: its own result of the one before."""
        sent = self.replies[height - 1 : height] if height else []
        return tuple(Contribution(payload=one.payload, inner_steps=one.inner_steps) for one in sent)

    def apply(self, height: int) -> None:
        due = self.replies[height - 2 : height - 1] if height >= 2 else []
        self.sets.append(
            ApplyRequest(
                height=height, lr=RATES[0], payloads=tuple(one.payload for one in due), run_update=height >= 2,
                full_digest=True, random_seed=0, inner_steps=tuple(one.inner_steps for one in due),
            )
        )  # fmt: skip
        self.engine.apply(self.sets[-1])

    def read_table(self, height: int) -> tuple[WorkRow, ...]:
        work = self.replies[height].work
        assert work is not None
        return decode_table(work.table, MERGE if height else STEPS, is_calibrated=not height)

    def make_target(self, height: int, **changes: object) -> AuditTarget:
        own = self.get_own(height)
        in_flight = own[0].inner_steps if own else 0
        how = LocalTarget(rates=RATES, done=STEPS * height, merge_step=MERGE if height else 0, in_flight=in_flight)
        target = AuditTarget(
            tokens=draw_tokens(height), samples=SAMPLES, sequence_length=LENGTH, piece_samples=0, numeric_class=0,
            pieces=tuple(range(MERGE)), local=how, last_body=own[0].payload if own else b"",
        )  # fmt: skip
        return msgspec.structs.replace(target, **changes)

    def audit(self, height: int, *targets: AuditTarget, beat: Callable[[], None] = lambda: None) -> AuditReply:
        applies = tuple(self.sets[height - height % 4 + 1 : height + 1])
        seeds = (get_seed(height), get_seed(height + 1))
        return self.engine.audit(AuditRequest(height=height, seeds=seeds, targets=targets, applies=applies), beat)

    def read_all(self) -> list[bytes]:
        replica = self.engine._get_loaded().replica
        state = {**replica.parameters, **replica.get_momentum()}
        return [tensor.detach().numpy().tobytes() for tensor in (*state.values(), torch.get_rng_state())]


def compare(teller: LocalMember, height: int, reply: AuditReply) -> list[float]:
    """E of each inner step that was computed again."""
    table, (found,) = teller.read_table(height), reply.targets
    assert not found.refused
    return [compute_distance(compute_difference(table, one.piece), one.values[0]) for one in found.pieces]


@pytest.mark.parametrize("kind", few(ANEW))
def test_v8_every_inner_step_before_the_merge_is_computed_again_by_another_trainer(
    load_request: LoadRequest, kind: InnerOptimizer
) -> None:
    rounds, heights = (6, (2, 4, 5)) if IS_WHOLE else (2, (1,))
    member = LocalMember(load_request, inner_optimizer=kind).run(rounds)
    auditor = LocalMember(load_request, micro_batch_size=1, inner_optimizer=kind).run(rounds)
    for height in heights:
        before = auditor.read_all()
        distances = compare(member, height, auditor.audit(height, member.make_target(height)))
        assert len(distances) == MERGE
        assert max(distances) < 1e-3, "the least tolerance of fp32"
        assert auditor.read_all() == before, "an audit changes nothing"


def test_v2_a_table_has_a_row_for_each_inner_step_and_the_calibration_of_the_first_round(
    load_request: LoadRequest,
) -> None:
    member = LocalMember(load_request).run(1)
    *steps, calibration = member.read_table(0)
    assert len(steps) == STEPS, "at an epoch's start nothing is in flight, and nothing is merged"
    assert sum(row.loss for row in steps) == pytest.approx(member.replies[0].loss * member.replies[0].tokens)
    row = AuditTarget(
        tokens=draw_tokens(0)[: 4 * LENGTH], samples=1, sequence_length=LENGTH, piece_samples=1, numeric_class=0,
        pieces=(0,),
    )  # fmt: skip
    (found,) = member.audit(0, row).targets
    assert compute_distance(calibration.values, found.pieces[0].values[0]) < 1e-5, "V6: a gradient, not a step"


@pytest.mark.parametrize(
    "cheat",
    [
        {"tokens": draw_tokens(77)},
        {"tokens": draw_tokens(4)[:256] * 2},
        {"last_body": b""},
    ],
    ids=["other data", "half of the data", "nothing in flight"],
)
def test_v10_inner_steps_of_other_data_or_weights_are_far_away(
    load_request: LoadRequest, cheat: dict[str, object]
) -> None:
    member = LocalMember(load_request).run(5)
    reply = member.audit(4, member.make_target(4, **cheat))
    assert max(compare(member, 4, reply)) > 0.12, "it fails even where the tolerance is the largest"


def test_ls8_a_round_that_was_given_up_does_not_count_towards_the_rate(load_request: LoadRequest) -> None:
    def give_up() -> None:
        beats.append(1)
        if len(beats) == STEPS:
            raise Cancelled

    member, beats = LocalMember(load_request), list[int]()
    member.apply(0)
    request = TrainRequest(
        epoch=0, height=0, step=1, lr=RATES[0], next_lr=RATES[1], lookahead_lr=0.0, tokens=draw_tokens(0),
        samples=SAMPLES, sequence_length=LENGTH, decided=(), in_flight=True,
    )  # fmt: skip
    assert member.engine.train(request, give_up).cancelled
    member.run(1)
    assert max(compare(member, 0, member.audit(0, member.make_target(0)))) < 1e-3


def test_v2_inner_batches_without_labels_move_nothing_and_their_rows_cannot_be_audited(
    load_request: LoadRequest,
) -> None:
    tokens = np.frombuffer(draw_tokens(1), "<u4").reshape(SAMPLES, LENGTH)
    labels = tokens.copy()
    labels[:2] = NOT_COUNTED & 0xFFFFFFFF  # of the first inner batch
    places = np.broadcast_to(np.arange(LENGTH, dtype="<u4"), tokens.shape)
    raw = np.stack([tokens, labels, places], axis=-1).tobytes()
    member = LocalMember(load_request).run(1).run(1, tokens=raw, has_labels=True)
    (*_, before, last), done = member.read_table(1), member.replies[1].inner_steps
    assert (done, last) == (STEPS - 1, WorkRow(0.0, before.values))
    target = member.make_target(1, tokens=raw, has_labels=True, pieces=(0, 1))
    assert max(compare(member, 1, member.audit(1, target))) < 1e-3
    refused = member.audit(1, msgspec.structs.replace(target, pieces=(MERGE - 1,))).targets[0].refused
    assert refused == f"audit: no such inner step of {MERGE - 1}"


@pytest.mark.parametrize("pieces", [(), (STEPS,), (-1,)])
def test_an_inner_step_that_does_not_exist_is_refused_alone(load_request: LoadRequest, pieces: tuple[int, ...]) -> None:
    member = LocalMember(load_request).run(1)
    reply = member.audit(0, member.make_target(0, pieces=pieces), member.make_target(0, pieces=(0,)))
    assert [one.refused for one in reply.targets] == [f"audit: no such inner step of {STEPS}", ""]


def test_a_round_that_waits_for_its_merge_is_not_given_up_for_an_audit(load_request: LoadRequest) -> None:
    member = LocalMember(load_request).run(2)
    member.apply(2)
    request = TrainRequest(
        epoch=0, height=2, step=3, lr=RATES[0], next_lr=RATES[1], lookahead_lr=0.0, tokens=draw_tokens(2),
        samples=SAMPLES, sequence_length=LENGTH, decided=(), in_flight=True, own=member.get_own(2),
    )  # fmt: skip
    assert member.engine.train(request).waits_for_merge
    assert member.audit(0, member.make_target(0)).cancelled
    assert member.engine.merge(MergeRequest(held=())).inner_steps == STEPS


def test_a_trainer_whose_inner_state_goes_on_cannot_audit(load_request: LoadRequest) -> None:
    member = LocalMember(load_request, inner_optimizer=InnerOptimizer.ADAMW).run(1)
    assert member.replies[0].work is not None
    assert member.replies[0].work.table == b""
    with pytest.raises(TrainerError, match="keeps no copies"):
        member.audit(0, member.make_target(0))
