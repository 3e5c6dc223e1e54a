"""Pieces of others, computed at the weights of an earlier round; the own ones are put back bit for bit (V8, V10, V11).

An audit changes nothing: not the weights, the momentum or a generator. What ends it early loses only what is not done.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from psyche.core.encoding.header import NumericClass
from psyche.core.encoding.work import compute_pieces
from psyche.errors import PsycheError, TrainerError
from psyche.modeling.device import is_out_of_memory, release_memory
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.trainer.batch import (
    Cancelled,
    PieceLog,
    clip_gradients,
    compute_gradients,
    count_predicted,
    decode_tokens,
)
from psyche.modeling.trainer.local_round import split_round
from psyche.modeling.trainer.replica import STAY, Ahead, Replica
from psyche.modeling.verification.copies import WeightCopies
from psyche.modeling.verification.links import check_link, compute_sign_share
from psyche.modeling.verification.sketch import Sketch
from psyche.modeling.verification.work import clone, subtract
from psyche.wire.trainer import (
    ApplyRequest,
    AuditedPiece,
    AuditedTarget,
    AuditReply,
    AuditRequest,
    AuditTarget,
    Contribution,
    LocalTarget,
    get_applied_heights,
)

Beat = Callable[[], None]


@dataclass(slots=True)
class Auditor:
    """Audits with a trainer's replica; `micro_batch_size` is the one that its memory allows."""

    replica: Replica
    copies: WeightCopies
    vocab_size: int
    micro_batch_size: int
    _done: list["_Pieces"] = field(default_factory=list)

    def audit(self, request: AuditRequest, beat: Beat) -> AuditReply:
        started = time.perf_counter()
        copy = self.copies.find(request.height)
        if copy is None:
            reason = f"the weights of round {request.height} are not here: a copy is made every four rounds"
            return AuditReply(targets=(), seconds=0.0, refused=reason)
        self._done, is_cancelled = [], False
        sketches = [Sketch(seed, self.replica.device) for seed in request.seeds]
        devices = [self.replica.device] if self.replica.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), self.copies.lend(copy, lambda: self._advance(request)):
                for target in request.targets:
                    self._done.append(_Pieces(sketches, keeps_sum=bool(target.payload)))
                    self._audit(target, self._done[-1], beat)
        except Cancelled:
            is_cancelled = True
        targets = tuple(one.report() for one in self._done)
        return AuditReply(targets=targets, seconds=time.perf_counter() - started, cancelled=is_cancelled)

    def _advance(self, request: AuditRequest) -> None:
        """From the copy's round on, apply what was applied then.

        Raises:
            TrainerError: these are not the sets of the rounds up to the one that is asked for.
        """
        if [one.height for one in request.applies] != [*get_applied_heights(request.height)]:
            raise TrainerError(f"audit: the sets do not lead to the weights of round {request.height}")
        for one in request.applies:
            apply_set(self.replica, one)

    def _audit(self, target: AuditTarget, found: "_Pieces", beat: Beat) -> None:
        try:
            self._compute(target, found, beat)
        except PsycheError as error:
            found.refused = str(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            found.refused = "out of memory"
            release_memory(self.replica.device)

    def _compute(self, target: AuditTarget, found: "_Pieces", beat: Beat) -> None:
        replica = self.replica
        rows = decode_tokens(
            target.tokens, target.samples, target.sequence_length, self.vocab_size, has_labels=target.has_labels
        )
        if target.local is not None:
            self._replay(target, target.local, rows, found, beat)
            return
        count, predicted = compute_pieces(target.samples, target.piece_samples), count_predicted(rows)
        if not predicted or any(piece >= count for piece in target.pieces):
            raise TrainerError(f"audit: no such piece of {count}, or no token of the batch counts")
        with replica.at(Ahead(target.lookahead_lr, target.last_body) if target.last_body else STAY):
            for piece in target.pieces:
                found.begin(piece)
                compute_gradients(
                    replica.model, replica.parameters, rows.split(target.piece_samples)[piece],
                    micro_batch_size=self.micro_batch_size, device=replica.device, clip=None, check=beat,
                    pieces=found, predicted=predicted, numeric_class=NumericClass(target.numeric_class),
                )  # fmt: skip
        if target.payload:
            self._compare(target, found)

    def _replay(self, target: AuditTarget, how: LocalTarget, rows: Tensor, found: "_Pieces", beat: Beat) -> None:
        """Take a member's inner steps again, from the round's start up to the last one that is asked for."""
        replica = self.replica
        batches = split_round(rows, replica.settings.inner_steps)
        batches = [one for one in batches if not how.merge_step or one[0] < how.merge_step]
        own = (Contribution(payload=target.last_body, inner_steps=how.in_flight),) if target.last_body else ()
        if not target.pieces or max(target.pieces) >= len(batches) or min(target.pieces) < 0:
            raise TrainerError(f"audit: no such inner step of {len(batches)}")
        with replica.local.replay(replica.decode(own), how.done):
            for piece, (number, batch) in enumerate(batches[: max(target.pieces) + 1]):
                before = clone(replica.parameters) if piece in target.pieces else {}
                done = compute_gradients(
                    replica.model, replica.parameters, batch, micro_batch_size=self.micro_batch_size,
                    device=replica.device, clip=replica.settings.clip_grad_norm, check=beat,
                    numeric_class=NumericClass(target.numeric_class),
                )  # fmt: skip
                if not done.finite:
                    raise TrainerError(f"audit: the gradient of inner step {number} is not finite")
                replica.step(number, done.tensors, how.rates)
                if before:
                    found.begin(piece)
                    found.add([done.loss * done.predicted], subtract(before, replica.parameters))

    def _compare(self, target: AuditTarget, found: "_Pieces") -> None:
        """Hold the payload against the sum of the pieces."""
        replica = self.replica
        payload = decode_payload(replica.plan, target.payload)
        clip_gradients(list(found.sum.values()), replica.settings.clip_grad_norm)
        gradient = replica.distro.transform(found.sum)
        found.agreement = compute_sign_share(payload, gradient)
        if target.link is not None:
            finding = check_link(replica.plan, target.link, payload, gradient, replica.settings.compression_decay)
            found.link_reason, found.link_distance = int(finding.reason), finding.distance


class _Pieces(PieceLog):
    """What was found of one target: a `PieceLog` whose pieces each begin anew."""

    def __init__(self, sketches: Sequence[Sketch], *, keeps_sum: bool) -> None:
        self.piece_samples = 0  # each call computes one piece
        self.sum: dict[str, Tensor] = {}
        self.agreement = self.link_distance = -1.0
        self.link_reason, self.refused = 0, ""
        self._sketches, self._keeps_sum = sketches, keeps_sum
        self._piece, self._pieces = 0, list[AuditedPiece]()

    def begin(self, piece: int) -> None:
        self._piece = piece

    def add(self, losses: Sequence[float], gradients: Mapping[str, Tensor]) -> None:
        values = tuple(sketch.compute(gradients) for sketch in self._sketches)
        self._pieces.append(AuditedPiece(piece=self._piece, loss=math.fsum(losses), values=values))
        if self._keeps_sum:
            for name, gradient in gradients.items():
                self.sum[name] = self.sum[name] + gradient if name in self.sum else gradient

    def report(self) -> AuditedTarget:
        return AuditedTarget(
            pieces=tuple(self._pieces), agreement=self.agreement, link_reason=self.link_reason,
            link_distance=self.link_distance, refused=self.refused,
        )  # fmt: skip


def apply_set(replica: Replica, request: ApplyRequest) -> None:
    """Apply a decided set, if the round has one (S1)."""
    if request.run_update:
        replica.apply(request.contributions, request.lr, replica.settings.weight_decay or 0.0)
