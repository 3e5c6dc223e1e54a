"""A trainer whose model is a few hundred weights: exact arithmetic, real payloads, the timings of a described machine.

A batch's payload depends on weights, tokens and the trainer's own momentum. So the payloads of different
trainers, rounds and histories differ, and two trainers have equal weights only if their histories are equal. An
apply folds the payloads in the order given, and each weighs twice as much as the one before: sums of full values
depend on their order in the last bits, these in the first. float32, equal on every machine.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import trio
from blake3 import blake3
from numpy.typing import NDArray

from psyche.core.encoding.manifest import Manifest, TensorEntry, blank_values, encode_manifest
from psyche.core.encoding.plan import encode_plan
from psyche.core.encoding.work import compute_pieces
from psyche.core.state.state import ZERO32, AuditReason
from psyche.errors import TrainerError
from psyche.modeling.snapshot import (
    MANIFEST_NAME,
    MODEL_NAME,
    TENSORS_NAME,
    SnapshotInfo,
    get_file_entries,
    get_tensor_path,
    read_model_files,
    read_snapshot_files,
    read_snapshot_info,
    write_folder,
    write_info,
    write_model_files,
)
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.sim.payloads import TENSOR, WEIGHTS, PayloadCodec
from psyche.sim.works import SimWorks
from psyche.wire.crypto import blake3_hash, blob_id_of
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    AuditedPiece,
    AuditedTarget,
    AuditReply,
    AuditRequest,
    AuditTarget,
    Contribution,
    LoadReply,
    LoadRequest,
    MergeRequest,
    OpenReply,
    OpenRequest,
    ScoreReply,
    ScoreRequest,
    ScoreRow,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

MOST_PARTS: Final = 99  # the tensors' names have two digits
VOCAB: Final = 256
WHOLE_AGREES, PIECE_AGREES = 0.95, 0.7  # of the signs that an honest trainer sends: what was measured of real ones
LATEST_OUTCOME: Final = 3  # rounds after its own by which a member knows a result's outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineModel:
    sample_s: float = 0.5  # training on one sample
    step_s: float = 0.0  # the fixed time per batch: the optimizer, and making the payload
    spread: float = 0.1  # how much a batch's time varies to both sides, as a share of it; uniformly distributed
    apply_s: float = 0.05  # applying a set
    score_s: float = 0.01  # scoring the choices after a context
    load_s: float = 0.3  # loading weights
    snapshot_s: float = 0.1  # writing a snapshot
    restart_s: float = 3.0  # restarting a failed trainer
    noise: float = 0.0  # of the work tables that it shows and checks
    numeric_class: int = 0  # the class of its gradient arithmetic; machines of one class compute equal gradients


@dataclass(slots=True)
class _Batch:
    """A round's samples in training: so many local steps, or a single one."""

    request: TrainRequest
    steps: int
    step_s: float
    deadline: float
    done: int = 0
    is_cut: bool = False  # no further step is done


@dataclass(slots=True)
class TrainerFaults:
    crash: bool = False  # at its next request
    hang_s: float = 0.0  # in its next training; the watchdog ends it
    flip: int | None = None  # this weight is wrong after the next apply: a memory error
    struck: int = 0  # the number of faults that have hit it


@dataclass(slots=True, eq=False)
class SimTrainer:
    """Implements `wire.ports.Trainer`.

    It also checks its owner: every result must be reported to it as applied or not, once and soon, or be given up
    by a load (R8); `complaints` lists the violations. The weights are kept in
    `parts` tensors of equal size.
    """

    codec: PayloadCodec
    machine: MachineModel
    rng: random.Random
    faults: TrainerFaults = field(default_factory=TrainerFaults)
    tamper: Callable[[bytes], bytes] | None = None  # set by a dishonest owner
    spoil: Callable[[AuditRequest, AuditReply], AuditReply] | None = None  # likewise
    weights: NDArray[np.float32] | None = None
    momentum: bytes = ZERO32
    trained: int = 0
    complaints: list[str] = field(default_factory=list)
    parts: int = 1
    works: SimWorks = field(init=False)
    files: dict[str, bytes] = field(default_factory=dict)  # the model's small files; their contents change the payloads
    on_outcome: Callable[[int, int, bool], None] | None = None  # called with epoch, height and outcome of an own result
    is_corrupt: bool = False  # a weight was flipped since the last load
    _sent: set[int] = field(default_factory=set)  # heights of this momentum's results without an outcome yet
    _epochs: dict[int, int] = field(default_factory=dict)  # by height: the epoch in which it was last trained
    _cancel: trio.Event | None = None
    _scoring: trio.Event | None = None
    _batch: "_Batch | None" = None  # the one that is trained, or waits for its merge
    _computing: trio.CancelScope | None = None

    def __post_init__(self) -> None:
        self.works = SimWorks(self.codec.plan, self.codec.optimizer, self.rng, self.machine.noise)

    async def start(self) -> None:
        await trio.sleep(self.machine.restart_s)

    async def restart(self) -> None:
        self._lose()
        await trio.sleep(self.machine.restart_s)

    def _lose(self) -> None:
        self.weights, self.momentum, self.trained = None, ZERO32, 0
        self.works.lose()
        self._batch = None
        self._sent.clear()

    def _check_alive(self) -> None:
        if self._scoring is not None:
            self._scoring.set()  # all else comes first
        if self.faults.crash:
            self.faults.crash = False
            self.faults.struck += 1
            self._lose()
            raise TrainerFailure(FailureKind.CRASHED, "trainer: the process ended")

    def _get_weights(self) -> NDArray[np.float32]:
        if self.weights is None:
            raise TrainerError("trainer: no weights are loaded")
        return self.weights

    async def load(self, request: LoadRequest) -> LoadReply:
        await trio.sleep(self.machine.load_s)
        self._check_alive()
        chain = prev = ZERO32
        self._lose()
        self.is_corrupt = False
        if request.is_snapshot:
            info = read_snapshot_info(Path(request.path))
            raw = [get_tensor_path(info.path, number).read_bytes() for number in range(len(info.entries))]
            if [blob_id_of(part) for part in raw] != [entry.blob_id for entry in info.entries]:
                raise TrainerError(f"snapshot {request.path}: a tensor is damaged")
            self.files = read_snapshot_files(info)
            self.weights = np.frombuffer(b"".join(raw), dtype="<f4").astype(np.float32)
            chain, prev = info.chain, info.prev_commitment
            if request.keep_momentum:
                self.trained, self.momentum = info.train_count, blake3_hash(b"momentum", info.digest)
        else:
            self.files = self.read_model(Path(request.path))
            self.weights = (np.arange(WEIGHTS, dtype=np.float32) - WEIGHTS / 2) / np.float32(WEIGHTS)
        return LoadReply(
            plan=encode_plan(self.codec.plan), weight_root=self.compute_part(), parameters=WEIGHTS,
            vocab_size=VOCAB, numeric_class=self.machine.numeric_class, device="simulated", chain=chain,
            train_count=self.trained, prev_commitment=prev,
        )  # fmt: skip

    def read_model(self, folder: Path) -> dict[str, bytes]:
        """The small files of a model folder."""
        return read_model_files(folder)

    def _get_parts(self) -> list[bytes]:
        raw = self._get_weights().astype("<f4").tobytes()
        size = len(raw) // self.parts
        return [raw[start : start + size] for start in range(0, len(raw), size)]

    def _get_entries(self) -> tuple[TensorEntry, ...]:
        dims = (WEIGHTS // self.parts,)
        parts = self._get_parts()
        return tuple(TensorEntry(f"{TENSOR}.{number:02d}", dims, blob_id_of(raw)) for number, raw in enumerate(parts))

    def compute_root(self) -> bytes:
        """The weight root of what it holds; raises TrainerError where it holds nothing."""
        return blake3_hash(encode_manifest(self._get_entries(), get_file_entries(self.files)))

    def compute_part(self) -> bytes:
        """What a digest is made of: the weight root, without the values where those of members differ (S2)."""
        if self.codec.optimizer.is_exact:
            return self.compute_root()
        blank = blank_values(Manifest(self._get_entries(), get_file_entries(self.files)))
        return blake3_hash(encode_manifest(blank.tensors, blank.files))

    async def train(self, request: TrainRequest) -> TrainReply:
        self._check_alive()
        self._give_up()
        self._note_outcomes(request)
        seconds = request.samples * self.machine.sample_s + self.machine.step_s
        seconds *= 1 + self.machine.spread * (2 * self.rng.random() - 1)
        optimizer = self.codec.optimizer
        steps = max(1, min(request.samples, optimizer.inner_steps))
        self._batch = batch = _Batch(request, steps, seconds / steps, trio.current_time() + request.within_s)
        if not (optimizer.merge_step and request.in_flight and request.height):
            return await self._train_on(batch, request.own)
        if await self._is_cancelled_in(batch, optimizer.merge_step * steps // optimizer.inner_steps):
            return self._cancel_batch(batch)
        if batch.is_cut:
            return await self._train_on(batch, request.own)
        return msgspec.structs.replace(self._reply(batch, b""), waits_for_merge=True)

    async def merge(self, request: MergeRequest) -> TrainReply:
        self._check_alive()
        if self._batch is None:
            raise TrainerError("merge: no round waits for it; train first")
        await self.shorten(request.within_s)
        return await self._train_on(self._batch, request.held)

    async def prepare(self, payload: bytes) -> None:
        """Check that it is what an apply could have."""
        self.codec.get_votes(payload)
        await trio.lowlevel.checkpoint()

    def _give_up(self) -> None:
        if self._batch is not None:
            self._cancel_batch(self._batch)

    def _cancel_batch(self, batch: "_Batch") -> TrainReply:
        """A cancelled batch undoes everything, also the outcomes that it was told (A4)."""
        self._sent.update(outcome.height for outcome in batch.request.decided)
        self._batch = None
        return self._reply(batch, b"", cancelled=True)

    async def _train_on(self, batch: "_Batch", in_flight: Sequence[Contribution]) -> TrainReply:
        """Train to the end; of local steps `in_flight` is what they begin from beside the weights."""
        weights, request = self._get_weights(), batch.request
        if await self._is_cancelled_in(batch, batch.steps):
            return self._cancel_batch(batch)
        self._batch = None
        gradient = bytes([self.machine.numeric_class]) + b"".join(self.files.values())
        seen = b"".join(one.payload for one in in_flight)
        self.momentum = blake3_hash(weights.tobytes(), request.tokens, self.momentum, gradient, seen)
        self.trained += 1
        self._sent.add(request.height)
        self._epochs[request.height] = request.epoch
        payload = self.codec.make(self.momentum)
        self.codec.note_gradient(request.tokens, payload)
        payload = payload if self.tamper is None else self.tamper(payload)
        return msgspec.structs.replace(self._reply(batch, payload), work=self.works.show(request, batch.done))

    async def _is_cancelled_in(self, batch: "_Batch", steps: int) -> bool:
        """Compute until so many steps of a batch are done, or it is cut short (LS9), or it is cancelled."""
        self._cancel = trio.Event()
        if self.faults.hang_s:
            hang_s, self.faults.hang_s = self.faults.hang_s, 0.0
            self.faults.struck += 1
            await trio.sleep(hang_s)
            self._lose()
            raise TrainerFailure(FailureKind.HUNG, f"trainer: no sign of life for {hang_s:g} s")
        while batch.done < steps and not batch.is_cut and not self._cancel.is_set():
            with trio.move_on_after(batch.step_s) as self._computing:
                batch.is_cut = batch.done > 0 and batch.deadline < self._computing.deadline
                if not batch.is_cut:
                    await self._cancel.wait()
            batch.done += not batch.is_cut
        self._computing = None
        self._check_alive()
        return self._cancel.is_set()

    async def shorten(self, within_s: float) -> None:
        if (batch := self._batch) is not None:
            batch.deadline = min(batch.deadline, trio.current_time() + within_s)
            if self._computing is not None and batch.done and batch.deadline < self._computing.deadline:
                batch.is_cut, self._computing.deadline = True, batch.deadline
        await trio.lowlevel.checkpoint()

    def _note_outcomes(self, request: TrainRequest) -> None:
        for outcome in request.decided:
            if outcome.height in self._sent:
                self._sent.remove(outcome.height)
                if self.on_outcome is not None:
                    self.on_outcome(self._epochs[outcome.height], outcome.height, outcome.applied)
            elif outcome.applied:
                self.complaints.append(
                    f"round {request.height}: told of an applied result of {outcome.height}, never sent"
                )
        forgotten = sorted(one for one in self._sent if not request.height - LATEST_OUTCOME <= one < request.height)
        if forgotten:
            self.complaints.append(
                f"round {request.height}: the trainer was never told what became of its results of {forgotten}"
            )

    def _reply(self, batch: "_Batch", payload: bytes, *, cancelled: bool = False) -> TrainReply:
        request, seconds = batch.request, batch.done * batch.step_s
        return TrainReply(
            payload=payload, loss=2.0, grad_norm=1.0, tokens=request.samples * request.sequence_length,
            seconds=seconds, compute_seconds=seconds, micro_batch_size=1, train_count=self.trained, cancelled=cancelled,
            inner_steps=batch.done if self.codec.optimizer.inner_steps else 0,
        )  # fmt: skip

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """Fold the payloads one after another, and move every weight by the rate times the result."""
        self._check_alive()
        await trio.sleep(self.machine.apply_s)
        weights = self._get_weights()
        if request.run_update:
            total = np.zeros(WEIGHTS, dtype=np.float32)
            for one in request.contributions:
                total = total / np.float32(2) + self.codec.get_votes(one.payload) * np.float32(one.inner_steps or 1)
            moved = (weights - np.float32(request.lr) * total).astype(np.float32)
            self._flip(moved)
            self.weights = moved
        self.works.note_weights(request.height, self._get_weights())
        return ApplyReply(weight_part=self.compute_part(), is_full=True, seconds=self.machine.apply_s)

    def _flip(self, weights: NDArray[np.float32]) -> None:
        if self.faults.flip is not None:
            weights[self.faults.flip % WEIGHTS] += np.float32(1)
            self.faults.flip = None
            self.faults.struck += 1
            self.is_corrupt = True

    async def audit(self, request: AuditRequest) -> AuditReply:
        reply = self._compare_signs(request, await self._audit(request))
        return reply if self.spoil is None else self.spoil(request, reply)

    def _compare_signs(self, request: AuditRequest, reply: AuditReply) -> AuditReply:
        """An honest payload agrees with its whole round's gradient at most places, with a part's at fewer (V11)."""
        targets: list[AuditedTarget] = []
        for target, found in zip(request.targets, reply.targets, strict=False):
            share = self.codec.compute_sign_share(target.tokens, target.payload) if target.payload else -1.0
            # there is no payload to compare with local steps
            is_whole = share >= 0 and len(target.pieces) == compute_pieces(target.samples, target.piece_samples)
            agrees = WHOLE_AGREES if is_whole else PIECE_AGREES
            agreement = share * agrees + (1 - share) * (1 - agrees) if share >= 0 else -1.0
            # what is sent is all of the momentum that is simulated
            is_other = target.link is not None and 0 <= share < 1
            targets.append(
                msgspec.structs.replace(
                    found, agreement=agreement, link_distance=-1.0 if target.link is None else 0.0,
                    link_reason=AuditReason.SELECTION if is_other else AuditReason.NONE,
                )
            )  # fmt: skip
        return msgspec.structs.replace(reply, targets=tuple(targets))

    async def _audit(self, request: AuditRequest) -> AuditReply:
        """Recompute piece by piece, until another call cancels it."""
        self._check_alive()
        if not self.works.has(request.height):
            return AuditReply(targets=(), seconds=0.0, refused="the weights of that round are not here")
        self._cancel = cancelled = trio.Event()
        targets: list[AuditedTarget] = []
        for target in request.targets:
            done: list[AuditedPiece] = []
            for piece in target.pieces:
                with trio.move_on_after(self._count_samples(target, piece) * self.machine.sample_s):
                    await cancelled.wait()
                self._check_alive()
                if cancelled.is_set():
                    return AuditReply(targets=tuple(targets), seconds=0.0, cancelled=True)
                done.append(self.works.recompute(request.height, target, piece, request.seeds))
            targets.append(AuditedTarget(pieces=tuple(done)))
        return AuditReply(targets=tuple(targets), seconds=0.0)

    def _count_samples(self, target: AuditTarget, piece: int) -> int:
        """The samples to compute: an inner step again, and all before it."""
        if target.local is None:
            return target.piece_samples
        return (piece + 1) * target.samples // self.codec.optimizer.inner_steps

    async def score(self, request: ScoreRequest) -> ScoreReply:
        """Score rows, until another call cancels it; values depend on the row and the certified weights alone."""
        self._check_alive()
        self._scoring = cancelled = trio.Event()
        done: list[tuple[tuple[float, bool], ...]] = []
        for row in request.rows:
            with trio.move_on_after(self.machine.score_s):
                await cancelled.wait()
            if cancelled.is_set():
                break
            done.append(tuple((value, False) for value in draw_values(request.digest, row)))
        written = tuple(b"These weights: " + request.digest.hex().encode())[: request.tokens]
        return ScoreReply(rows=tuple(done), seconds=0.0, cancelled=len(done) < len(request.rows), written=written)

    async def open(self, request: OpenRequest) -> OpenReply:
        self._check_alive()
        return OpenReply(opening=self.works.open(request))

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        self._check_alive()
        await trio.sleep(self.machine.snapshot_s)
        root = self.compute_root()
        await trio.to_thread.run_sync(self._assemble, request, root)
        return SnapshotReply(path=request.path, size_bytes=4 * WEIGHTS, weight_root=self.compute_part(), seconds=0.0)

    def _assemble(self, request: SnapshotRequest, root: bytes) -> None:
        info = SnapshotInfo(
            path=Path(request.path), epoch=request.epoch, step=request.step, data_index=request.data_index,
            chain=request.chain, digest=request.digest, weight_root=root, plan=encode_plan(self.codec.plan),
            prev_commitment=request.prev_commitment, train_count=self.trained, has_momentum=False,
            entries=self._get_entries(), files=get_file_entries(self.files),
        )  # fmt: skip
        with write_folder(info.path) as folder:
            (folder / TENSORS_NAME).mkdir()
            for number, raw in enumerate(self._get_parts()):
                get_tensor_path(folder, number).write_bytes(raw)
            (folder / MANIFEST_NAME).write_bytes(info.manifest)
            write_model_files(folder / MODEL_NAME, self.files)
            write_info(folder, info, None)

    async def cancel(self) -> None:
        if self._cancel is not None:
            self._cancel.set()
        await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        await self.cancel()


def draw_values(digest: bytes, row: ScoreRow) -> list[float]:
    drawn = [blake3(digest + msgspec.msgpack.encode((row.context, one))).digest(length=4) for one in row.choices]
    return [-int.from_bytes(one, "little") / 2**32 for one in drawn]
