"""A member of a run that verifies, alone with a real trainer, and what auditors ask about it."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import torch

from psyche.core.committee.verdicts import compute_distance
from psyche.core.encoding.work import compute_difference, compute_piece_samples, compute_pieces, decode_table
from psyche.core.state.enums import Lookahead
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.testing.builders import build_hash
from psyche.wire.trainer import (
    ApplyRequest,
    AuditReply,
    AuditRequest,
    AuditTarget,
    Contribution,
    LinkRequest,
    LoadRequest,
    OpenRequest,
    TrainReply,
    TrainRequest,
    WorkRequest,
)

SAMPLES, LENGTH, OPENED = 12, 16, 7
PIECE = compute_piece_samples(SAMPLES)
PIECES = compute_pieces(SAMPLES, PIECE)
RATE = float(np.float32(1e-2))


def draw_tokens(number: int, samples: int = SAMPLES) -> bytes:
    return np.random.default_rng(number).integers(0, 64, size=(samples, LENGTH), dtype="<u4").tobytes()


def get_seed(height: int) -> bytes:
    return build_hash("seed", height)


class Member:
    """A trainer with overlap and an own look-ahead, alone in its run; it applies its own results two rounds later."""

    def __init__(self, load_request: LoadRequest, **load: object) -> None:
        optimizer = replace(load_request.model.optimizer, lookahead=Lookahead.OWN)
        model = replace(load_request.model, optimizer=optimizer)
        self.engine = TrainerEngine()
        self.load = msgspec.structs.replace(load_request, model=model, **{"verifies": True, **load})
        self.plan = self.engine.load(self.load).plan
        self.replies: list[TrainReply] = []
        self.sets: list[ApplyRequest] = []
        self.parts: list[bytes] = []

    def apply(self) -> None:
        height = len(self.sets)
        due = (self.replies[height - 2].payload,) if height >= 2 else ()
        self.sets.append(
            ApplyRequest(
                height=height, lr=RATE, payloads=due, run_update=height >= 2, full_digest=True, random_seed=height
            )
        )
        self.parts.append(self.engine.apply(self.sets[-1]).weight_part)

    def make_request(self, height: int, **changes: object) -> TrainRequest:
        work = WorkRequest(
            seed=get_seed(height), piece_samples=PIECE,
            calibration=draw_tokens(0)[: 4 * LENGTH] if not height else b"",
        )  # fmt: skip
        own = tuple(Contribution(payload=reply.payload) for reply in self.replies[height - 1 : height])
        request = TrainRequest(
            epoch=0, height=height, step=height + 1, lr=RATE, lookahead_lr=RATE if height else 0.0,
            tokens=draw_tokens(height), samples=SAMPLES, sequence_length=LENGTH, decided=(), in_flight=True, own=own,
            work=work,
        )  # fmt: skip
        return msgspec.structs.replace(request, **changes)

    def run(self, rounds: int, **changes: object) -> "Member":
        for _ in range(rounds):
            self.apply()
            self.replies.append(self.engine.train(self.make_request(len(self.replies), **changes)))
        return self

    def make_target(self, height: int, **changes: object) -> AuditTarget:
        target = AuditTarget(
            tokens=draw_tokens(height), samples=SAMPLES, sequence_length=LENGTH, piece_samples=PIECE, numeric_class=0,
            pieces=tuple(range(PIECES)), lookahead_lr=RATE if height else 0.0,
            last_body=self.replies[height - 1].payload if height else b"",
        )  # fmt: skip
        return msgspec.structs.replace(target, **changes)

    def make_link(self, height: int, raw: bytes | None = None) -> LinkRequest:
        reply = self.replies[height]
        assert reply.work is not None
        seed = get_seed(height + 1)
        if raw is None:
            raw = self.engine.open(OpenRequest(height=height, seed=seed, opened_chunks=OPENED)).opening
        return LinkRequest(
            momentum_before=reply.work.momentum_before, momentum_after=reply.work.momentum_after, opening=raw,
            seed=seed, opened_chunks=OPENED, lr=RATE,
            taken_out=tuple(one.payload for one in self.replies[height - 1 : height]),
        )  # fmt: skip

    def audit(self, height: int, *targets: AuditTarget, beat: Callable[[], None] = lambda: None) -> AuditReply:
        sets = tuple(self.sets[height - height % 4 + 1 : height + 1])
        seeds = (get_seed(height), get_seed(height + 1))
        request = AuditRequest(height=height, seeds=seeds, targets=targets, applies=sets)
        return self.engine.audit(request, beat)

    def read_all(self) -> list[bytes]:
        replica = self.engine._get_loaded().replica
        state = {**replica.parameters, **replica.get_momentum()}
        return [tensor.detach().numpy().tobytes() for tensor in (*state.values(), torch.get_rng_state())]

    def compute_distances(self, height: int, reply: AuditReply, number: int = 0) -> list[float]:
        """E of each audited piece against the member's own table."""
        work = self.replies[height].work
        assert work is not None
        table = decode_table(work.table, PIECES, is_calibrated=not height)
        pieces = reply.targets[number].pieces
        return [compute_distance(compute_difference(table, one.piece), one.values[0]) for one in pieces]
