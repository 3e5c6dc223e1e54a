"""The trainer's engine: load, train, apply, snapshot; synchronous, one call at a time.

`child` runs it in a process of its own.

Every call takes a `beat`, which is called at each safe point (micro-batch, tensor). It may raise
`Cancelled` while a batch trains; the batch's changes are then undone bit for bit (A4). `has_time` cuts a round of local
steps short (LS9).
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from psyche.core.encoding.manifest import FileEntry
from psyche.core.encoding.plan import encode_plan
from psyche.core.state.state import ZERO32, Optimizer, OptimizerKind
from psyche.errors import ConfigError, PsycheError, TrainerError, WireError
from psyche.modeling.architecture import Blueprint, read_blueprint
from psyche.modeling.checkpoint import load_momentum, write_snapshot
from psyche.modeling.device import get_numeric_class, is_out_of_memory, release_memory, select_device, try_device
from psyche.modeling.device_name import describe_verifying
from psyche.modeling.distro.statistics import describe_sums
from psyche.modeling.export import describe_folder, export_model, export_snapshot
from psyche.modeling.inference.scores import Scores
from psyche.modeling.model import enable_checkpointing
from psyche.modeling.snapshot import SnapshotInfo, get_file_entries
from psyche.modeling.trainer.batch import Cancelled, Gradients, count_predicted, decode_tokens
from psyche.modeling.trainer.decoding import PayloadDecoder
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.local_round import HasTime, LocalRound, make_round
from psyche.modeling.trainer.replica import Ahead, Replica
from psyche.modeling.trainer.source import Beat, Source, fit_memory, open_source, read_source_blueprint
from psyche.modeling.trainer.trial import Trial
from psyche.modeling.verification.audits import Auditor, apply_set
from psyche.modeling.verification.copies import WeightCopies, make_copies
from psyche.modeling.verification.roots import MomentumLog
from psyche.modeling.verification.work import MixedSamples, WorkLog
from psyche.modeling.weights import compute_blank_root, compute_weight_part, compute_weight_root
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    AuditReply,
    AuditRequest,
    CheckReply,
    CheckRequest,
    Devices,
    LoadReply,
    LoadRequest,
    MemoryReply,
    MemoryRequest,
    MergeRequest,
    OpenReply,
    OpenRequest,
    ScoreReply,
    ScoreRequest,
    SentResult,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

if TYPE_CHECKING:
    from psyche.modeling.trainer.ranks.group import Group

PENDING_FIELD: Final = "pending"


@dataclass(slots=True)
class _Loaded:
    blueprint: Blueprint
    replica: Replica
    optimizer: Optimizer
    model_files: dict[str, bytes]
    files: tuple[FileEntry, ...]  # the files that the digest covers; they do not change in a run
    micro_batch_size: int
    scores: Scores
    train_count: int = 0
    # The record's decisions about own results that no train call has taken up yet: a cancelled or
    # refused batch changes nothing, so its decisions wait here for the next one.
    pending: dict[int, SentResult] = field(default_factory=dict)
    round: LocalRound | None = None  # of local steps, while it waits for its merge
    roots: MomentumLog | None = None  # where the run verifies, on one device
    copies: WeightCopies | None = None  # where its rounds can be computed again


def _compute_root(loaded: _Loaded, beat: Beat) -> bytes:
    """The full weight part; in full-value mode, which is not exact, the digest leaves out the tensors' values (S2)."""
    if loaded.optimizer.is_exact:
        return compute_weight_root(loaded.replica.tensors, loaded.files, beat)
    return compute_blank_root(loaded.replica.tensors, loaded.files)


def _load_momentum(loaded: _Loaded, info: SnapshotInfo) -> None:
    """Take over a snapshot's momentum; ignore momentum of another plan, which has other chunks."""
    if not info.has_momentum or info.plan != encode_plan(loaded.replica.plan):
        return
    tensors, fields = load_momentum(info)
    loaded.replica.load_momentum(tensors)
    loaded.train_count = info.train_count
    pending = fields.get(PENDING_FIELD, [])
    loaded.pending = {int(h): SentResult(height=int(h), applied=bool(applied)) for h, applied in pending}


class TrainerEngine:
    """One replica of the model with its momentum. After a failure it has nothing loaded and must load again.

    It is on one device, or divided among the ranks of a group, which the first call starts.
    """

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._trial = Trial()
        self._group: Group | None = None
        self._decoder: PayloadDecoder | None = None  # of what was loaded last

    def check(self, request: CheckRequest, beat: Beat = lambda: None) -> CheckReply:
        device = self._find_device(request, beat)
        if not request.config:
            return CheckReply(device=device)
        found = read_blueprint(Path(request.config), request.max_seq_len)
        return CheckReply(
            device=device, parameters=dict(found.parameters), buffers=dict(found.buffers),
            vocab_size=found.vocab_size, positions=found.positions,
        )  # fmt: skip

    def _find_device(self, asked: Devices, beat: Beat) -> str:
        if asked.ranks > 1:
            return self._open_group(asked, beat).describe()
        device = select_device(asked.device)
        try_device(device)
        return str(device)

    def _open_group(self, asked: Devices, beat: Beat) -> "Group":
        from psyche.modeling.trainer.ranks.group import open_group

        if self._group is None:
            self._group = open_group(asked, beat)
        return self._group

    def predict_memory(self, request: MemoryRequest, beat: Beat = lambda: None) -> MemoryReply:
        """Raise ConfigError unless training fits, where it must, into the free memory; only a config.json is read."""
        return fit_memory(request.load, read_source_blueprint(request.load), beat, must_fit=request.must_fit)

    def load(self, request: LoadRequest, beat: Beat = lambda: None) -> LoadReply:
        """Load weights, and the momentum of a snapshot that was made under the same plan.

        Raises UnusableModelError for first weights that are not finite or fail the trial (AR6), ConfigError for a model
        that breaks another rule of AR1 to AR7, TrainerError for files, optimizers or devices that cannot be used.
        """
        self._loaded = None
        kind = request.model.optimizer.kind
        if kind not in (OptimizerKind.DISTRO, OptimizerKind.LOCAL_STEPS):
            raise TrainerError(
                f"optimizer {kind.name}: a run trains with Distro or LocalSteps; AdamW is for `psyche train`"
            )
        if request.verifies and (problem := describe_verifying(request.ranks)):
            raise ConfigError(problem)
        source = open_source(request)
        if request.batch_size:
            fitted = fit_memory(request, source.blueprint, beat)
            request = msgspec.structs.replace(request, micro_batch_size=fitted.micro_batch_size)
        if request.micro_batch_size < 1:
            raise TrainerError(f"load: micro_batch_size is {request.micro_batch_size}, must be at least 1")
        info, model = source.info, source.load(beat)
        replica = self._make_replica(request, model, source, beat)
        loaded = _Loaded(
            source.blueprint, replica, request.model.optimizer, source.files, get_file_entries(source.files),
            request.micro_batch_size, Scores(replica, source.blueprint.vocab_size, is_asked=request.scores),
        )  # fmt: skip
        root = _compute_root(loaded, beat)
        if info is not None and request.keep_momentum:
            _load_momentum(loaded, info)
        if request.verifies:
            loaded.roots = MomentumLog(replica.plan, replica.memory.coefficients, is_fresh=not loaded.train_count)
            loaded.copies = make_copies(replica.settings, replica.parameters)
        loaded.scores.note(compute_state_digest(ZERO32 if info is None else info.chain, root))
        self._loaded, self._decoder = loaded, replica.decoder
        return self._describe(loaded, info, root)

    def _make_replica(self, request: LoadRequest, model: PreTrainedModel, source: Source, beat: Beat) -> Replica:
        """Try the model, on the device or, if it is to be divided, on the CPU; and make what is trained of it."""
        device = select_device(request.device) if request.ranks == 1 else torch.device("cpu")
        nn.Module.to(model, device)  # in place; transformers types its own `to` as a plain function
        model.train()
        if request.activation_checkpointing:
            enable_checkpointing(model)
        self._trial.run(model, source, request.model, device, beat)
        if request.ranks == 1:
            return Replica(model, request.model.optimizer, device, offload=request.offload)
        from psyche.modeling.trainer.ranks.shard import make_shard

        group = self._open_group(request, beat)
        return make_shard(group, model, request.model.optimizer, request.activation_checkpointing, request.offload)

    def _describe(self, loaded: _Loaded, info: SnapshotInfo | None, root: bytes) -> LoadReply:
        return LoadReply(
            plan=encode_plan(loaded.replica.plan),
            weight_root=root,
            parameters=sum(tensor.numel() for tensor in loaded.replica.tensors.values()),
            vocab_size=loaded.blueprint.vocab_size,
            numeric_class=get_numeric_class(loaded.replica.device),
            device=str(loaded.replica.device) if self._group is None else self._group.describe(),
            chain=ZERO32 if info is None else info.chain,
            train_count=loaded.train_count,
            prev_commitment=ZERO32 if info is None or loaded.train_count == 0 else info.prev_commitment,
            notices=loaded.blueprint.notices + loaded.replica.notices,
        )

    def _get_loaded(self) -> _Loaded:
        """What is loaded; a round that waits for its merge is given up."""
        if self._loaded is None:
            raise TrainerError("trainer: nothing is loaded; load weights first")
        self._end_round(self._loaded)
        return self._loaded

    @staticmethod
    def _end_round(loaded: _Loaded) -> None:
        if loaded.round is not None:
            loaded.round = None
            loaded.replica.abandon_round()

    def train(self, request: TrainRequest, beat: Beat = lambda: None, has_time: HasTime = lambda _: True) -> TrainReply:
        """Train one batch and compress the update.

        Non-finite gradients are refused: the batch sends nothing and leaves the momentum unchanged. If memory runs out
        even with micro-batches of one, TrainerFailure is raised.
        """
        loaded = self._get_loaded()
        started = time.perf_counter()
        tokens = decode_tokens(
            request.tokens, request.samples, request.sequence_length, loaded.blueprint.vocab_size,
            has_labels=request.has_labels,
        )  # fmt: skip
        loaded.pending.update((sent.height, sent) for sent in request.decided)
        if not count_predicted(tokens):
            return self._reply(loaded, started, refused="no label of its samples counts")
        if loaded.optimizer.kind is OptimizerKind.LOCAL_STEPS:
            loaded.replica.begin_round(request.own)
            if loaded.copies is not None:  # others know of its results alone (LS8)
                loaded.replica.local.inner.done = loaded.train_count * loaded.optimizer.inner_steps
            loaded.round = make_round(request, tokens, loaded.replica, is_shown=loaded.copies is not None)
            return self._go_on(loaded, loaded.round, beat, has_time)
        log = WorkLog(request.work, loaded.replica) if request.work and loaded.roots else None
        table = b""
        try:
            gradients = self._compute(loaded, request, tokens, beat, log)
            if log is not None and gradients.finite:
                table = log.finish(request, loaded.blueprint.vocab_size, beat)
        except Cancelled:
            return self._reply(loaded, started, cancelled=True)
        except WireError as error:
            return self._reply(loaded, started, refused=f"step {request.step}: {error}")
        compute_seconds = time.perf_counter() - started
        if not gradients.finite:
            reason = f"non-finite gradient at step {request.step} (loss {gradients.loss})"
            return self._reply(loaded, started, gradients, compute_seconds=compute_seconds, refused=reason)
        payload = self._compress(loaded, request, gradients)
        work = loaded.roots.describe(table) if loaded.roots is not None and table else None
        statistics = describe_sums(loaded.replica.sums)
        return self._reply(
            loaded, started, gradients, compute_seconds=compute_seconds, payload=payload, statistics=statistics,
            work=work,
        )  # fmt: skip

    def prepare(self, payload: bytes) -> None:
        """Have a payload decoded before it is merged or applied; other threads may call it at any time."""
        if self._decoder is not None:
            self._decoder.prepare(payload)

    def merge(self, request: MergeRequest, beat: Beat = lambda: None, has_time: HasTime = lambda _: True) -> TrainReply:
        """Go on with a round of local steps that `train` has begun; the reply is that of the whole round."""
        if self._loaded is None or self._loaded.round is None:
            raise TrainerError("merge: no round waits for it; train first")
        loaded, round_ = self._loaded, self._loaded.round
        round_.pass_merge()
        try:
            loaded.replica.merge(request.held)
        except PsycheError as error:
            self._end_round(loaded)
            raise TrainerError(f"merge at height {round_.request.height}: {error}") from error
        return self._go_on(loaded, round_, beat, has_time)

    def _go_on(self, loaded: _Loaded, round_: LocalRound, beat: Beat, has_time: HasTime) -> TrainReply:
        """Train up to the merge, or to the end of the round, whose masters are then as before it."""
        started = time.perf_counter()
        try:
            refused = self._step(loaded, round_, beat, has_time)
        except Cancelled:
            self._end_round(loaded)
            return self._reply(loaded, round_.started, cancelled=True)
        except BaseException:
            if not loaded.replica.is_group:  # the other ranks may wait for something else
                self._end_round(loaded)
            raise
        round_.compute_seconds += time.perf_counter() - started
        outcome: dict[str, Any] = {"compute_seconds": round_.compute_seconds, "inner_steps": round_.done}
        if round_.waits_for_merge and not refused:
            return self._reply(loaded, round_.started, round_.summarize(), waits_for_merge=True, **outcome)
        payload, refused = (b"", refused) if refused else self._finish(loaded, round_.request)
        if payload:
            outcome["statistics"] = describe_sums(loaded.replica.sums)
            outcome["work"] = None if loaded.roots is None else loaded.roots.describe(round_.encode(loaded.optimizer))
        self._end_round(loaded)
        return self._reply(
            loaded, round_.started, round_.summarize(), payload=payload, refused=refused, **outcome
        )  # fmt: skip

    def _step(self, loaded: _Loaded, round_: LocalRound, beat: Beat, has_time: HasTime) -> str:
        """Take inner steps; return why the round is refused, or nothing."""
        request = round_.request
        round_.calibrate(loaded.blueprint.vocab_size, beat)
        for number, rows in round_.take_batches(has_time):
            try:
                gradients = self._compute(loaded, request, rows, round_.watch(beat, has_time))
            except Cancelled:
                if round_.is_cut:
                    break
                raise
            if not gradients.finite:
                return f"non-finite gradient at step {request.step}, inner step {number} (loss {gradients.loss})"
            loaded.replica.step(number, gradients.tensors, (request.lr, request.next_lr))
            round_.note(gradients)
        return ""

    def _finish(self, loaded: _Loaded, request: TrainRequest) -> tuple[bytes, str]:
        """The payload of a round whose inner steps are done, or why it has none."""
        decided = tuple(loaded.pending[height] for height in sorted(loaded.pending))
        self._loaded = None  # a failure from here on leaves the error memory undefined
        if loaded.roots is not None:
            loaded.roots.begin()
        try:
            payload = loaded.replica.end_round(decided, request.in_flight, request.height, request.with_statistics)
            refused = ""
        except TrainerError as error:
            payload, refused = b"", f"step {request.step}: {error}"
        else:
            if loaded.roots is not None:
                loaded.roots.end(request.height)
            loaded.pending.clear()
            loaded.train_count += 1
        self._loaded = loaded
        return payload, refused

    def _compute(
        self, loaded: _Loaded, request: TrainRequest, tokens: torch.Tensor, beat: Beat, log: WorkLog | None = None
    ) -> Gradients:
        """Compute gradients at the look-ahead point; retry with smaller micro-batches when memory runs out (F20)."""
        size = min(loaded.micro_batch_size, len(tokens))
        ahead = Ahead(request.lookahead_lr, *(one.payload for one in request.own[:1]))
        while True:
            try:
                return loaded.replica.compute(tokens, size, ahead, beat, log and log.begin())
            except MixedSamples:
                continue
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            if loaded.replica.is_group:  # its other ranks wait for what this one can no longer send
                raise TrainerFailure(
                    FailureKind.OUT_OF_MEMORY,
                    f"out of memory at step {request.step} with {size} sequences of {request.sequence_length} tokens a "
                    "device; set a smaller --micro-batch-size",
                )
            release_memory(loaded.replica.device)  # outside the `except`: the traceback kept the tensors alive
            if size == 1:
                raise TrainerFailure(
                    FailureKind.OUT_OF_MEMORY,
                    f"out of memory at step {request.step} with one sequence of {request.sequence_length} tokens on "
                    f"{loaded.replica.device}; use a device with more memory or a smaller model",
                )
            size //= 2
            loaded.micro_batch_size = size

    def _compress(self, loaded: _Loaded, request: TrainRequest, gradients: Gradients) -> bytes:
        self._loaded = None  # a failure from here on leaves the momentum undefined
        if loaded.roots is not None:
            loaded.roots.begin()
        decided = tuple(loaded.pending[height] for height in sorted(loaded.pending))
        payload = loaded.replica.compress(
            gradients.tensors, request.lr, decided, in_flight=request.in_flight, height=request.height,
            is_measured=request.with_statistics,
        )  # fmt: skip
        if loaded.roots is not None:
            loaded.roots.end(request.height)
        loaded.pending.clear()
        loaded.train_count += 1
        self._loaded = loaded
        return payload

    @staticmethod
    def _reply(loaded: _Loaded, started: float, gradients: Gradients | None = None, **outcome: Any) -> TrainReply:
        loss, norm, predicted = (gradients.loss, gradients.norm, gradients.predicted) if gradients else (0.0, 0.0, 0)
        common = {
            "payload": b"", "loss": loss, "grad_norm": norm, "tokens": predicted, "compute_seconds": 0.0,
            "seconds": time.perf_counter() - started, "micro_batch_size": loaded.micro_batch_size,
            "train_count": loaded.train_count,
        }  # fmt: skip
        return TrainReply(**(common | outcome))

    def apply(self, request: ApplyRequest) -> ApplyReply:
        """Apply a decided set exactly, and hash the weights (S2); if a payload is malformed, nothing was applied."""
        loaded = self._get_loaded()
        started = time.perf_counter()
        if request.run_update:
            self._update(loaded, request)
            loaded.scores.note_change()
        if loaded.copies is not None:
            loaded.copies.note(request.height)
        part, is_full = compute_weight_part(
            loaded.replica.tensors, loaded.files, is_exact=loaded.optimizer.is_exact, full=request.full_digest,
            random_seed=request.random_seed,
        )  # fmt: skip
        return ApplyReply(weight_part=part, is_full=is_full, seconds=time.perf_counter() - started)

    def spoil(self) -> None:
        """Change a weight, as memory that fails would; not one that several ranks hold. For tests."""
        first = next(iter(self._get_loaded().replica.tensors.values()))
        first.detach().view(-1)[0] += 1.0

    def _update(self, loaded: _Loaded, request: ApplyRequest) -> None:
        try:
            apply_set(loaded.replica, request)
        except PsycheError as error:
            raise TrainerError(f"apply at height {request.height}: {error}") from error
        except BaseException:
            self._loaded = None  # half applied: no digest would match
            raise

    def open(self, request: OpenRequest) -> OpenReply:
        """Open chunks of the own momenta (V5)."""
        roots = self._get_loaded().roots
        if roots is None:
            raise TrainerError("open: this trainer keeps no momentum to show; load it for a run that verifies")
        return OpenReply(opening=roots.open(request))

    def audit(self, request: AuditRequest, beat: Beat = lambda: None) -> AuditReply:
        """Compute pieces of others (V8); nothing of this trainer changes, and no round that waits is given up."""
        if self._loaded is not None and self._loaded.round is not None:
            return AuditReply(targets=(), seconds=0.0, cancelled=True)
        loaded = self._get_loaded()
        if loaded.copies is None:
            raise TrainerError("audit: this trainer keeps no copies of weights; load it for a run that verifies")
        auditor = Auditor(loaded.replica, loaded.copies, loaded.blueprint.vocab_size, loaded.micro_batch_size)
        return auditor.audit(request, beat)

    def score(self, request: ScoreRequest, beat: Beat = lambda: None, has_time: HasTime = lambda _: True) -> ScoreReply:
        """Score choices after contexts; nothing of this trainer changes, and no round that waits is given up."""
        if self._loaded is not None and self._loaded.round is not None:
            return ScoreReply(rows=(), seconds=0.0, cancelled=True)
        return self._get_loaded().scores.score(request, beat, has_time)

    def snapshot(self, request: SnapshotRequest, beat: Beat = lambda: None) -> SnapshotReply:
        """Write a resume snapshot (kind "resume") or a Hugging Face folder (kind "export"); an error leaves nothing."""
        if request.source:
            return export_snapshot(request)
        loaded = self._get_loaded()
        started = time.perf_counter()
        path = Path(request.path)
        match request.kind:
            case "resume":
                root = self._write_resume(loaded, path, request, beat)
                loaded.scores.note(compute_state_digest(request.chain, root))
            case "export":
                tensors = loaded.replica.tensors
                export_model(path, tensors, loaded.model_files, request.dtype, request.card, loaded.blueprint)
                root = _compute_root(loaded, beat)
            case _:
                raise TrainerError(f"snapshot: kind {request.kind!r}, must be resume or export")
        return describe_folder(path, root, started)

    def _write_resume(self, loaded: _Loaded, path: Path, request: SnapshotRequest, beat: Beat) -> bytes:
        info = SnapshotInfo(
            path=path, epoch=request.epoch, step=request.step, data_index=request.data_index, chain=request.chain,
            digest=request.digest, weight_root=ZERO32, plan=encode_plan(loaded.replica.plan),
            prev_commitment=request.prev_commitment, train_count=loaded.train_count, has_momentum=True,
            entries=(), files=(),
        )  # fmt: skip
        known = {**loaded.pending, **{sent.height: sent for sent in request.decided}}
        pending = [(sent.height, sent.applied) for sent in known.values()]
        momentum = loaded.replica.get_momentum()
        root = write_snapshot(
            info, loaded.replica.tensors, momentum, {PENDING_FIELD: pending}, loaded.model_files, beat
        )
        return root if loaded.optimizer.is_exact else _compute_root(loaded, beat)
