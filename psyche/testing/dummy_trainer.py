"""A trainer without a model: its weights are a hash, and its work is waiting. For tests and overhead benchmarks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from psyche.core.encoding.manifest import Manifest, TensorEntry, blank_values, encode_manifest
from psyche.core.encoding.plan import TransformPlan, compute_plan, encode_plan, get_payload_bytes
from psyche.core.state.state import ZERO32
from psyche.durable import write_file
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
from psyche.wire.crypto import blake3_hash, blob_id_of
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    LoadReply,
    LoadRequest,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

DUMMY_FILES: Final = {"config.json": b"{}"}


@dataclass(slots=True)
class DummyTrainer:
    """Implements `wire.ports.Trainer` with a hash as its weights, kept and shared as a tensor of eight fp32 values.

    `train_s` and `apply_s` are spent on trio's clock. Payloads have the plan's full length and depend
    on weights and batch, so that digests are equal only if the histories are.
    """

    train_s: float = 0.0
    apply_s: float = 0.0
    parameters: int = 65_536
    one_bit: bool = True
    drift: bytes = b""  # full-value mode: makes this trainer's arithmetic differ from others'
    weights: bytes = ZERO32
    files: Mapping[str, bytes] = field(default_factory=lambda: DUMMY_FILES)  # the model's small files
    trained: int = 0
    _cancel: trio.Event | None = None

    @property
    def plan(self) -> TransformPlan:
        """The plan of the imaginary model."""
        return compute_plan({"weight": (self.parameters // 256, 256)}, chunk=64, topk=8, one_bit=self.one_bit)

    async def start(self) -> None:
        """Do nothing: there is no process."""
        await trio.lowlevel.checkpoint()

    async def restart(self) -> None:
        """Lose the weights, as a crashed trainer does."""
        self.weights = ZERO32
        await trio.lowlevel.checkpoint()

    async def load(self, request: LoadRequest) -> LoadReply:
        """Load a snapshot's weights, or the fixed initial weights."""
        await trio.lowlevel.checkpoint()
        chain = prev = ZERO32
        if request.is_snapshot:
            info = read_snapshot_info(Path(request.path))
            self.weights, self.files = get_tensor_path(info.path, 0).read_bytes(), read_snapshot_files(info)
            chain, prev = info.chain, info.prev_commitment
        else:
            self.weights = blake3_hash(b"configured")
            self.files = _read_files(Path(request.path)) or DUMMY_FILES
        return LoadReply(
            plan=encode_plan(self.plan),
            weight_root=self._get_part(),
            parameters=self.parameters,
            vocab_size=256,
            numeric_class=0,
            device="dummy",
            chain=chain,
            train_count=self.trained,
            prev_commitment=prev,
        )

    def _get_entry(self) -> TensorEntry:
        return TensorEntry("weight", (8,), blob_id_of(self.weights))

    def _get_manifest(self) -> Manifest:
        return Manifest((self._get_entry(),), get_file_entries(self.files))

    def _get_part(self) -> bytes:
        manifest = self._get_manifest() if self.one_bit else blank_values(self._get_manifest())
        return blake3_hash(encode_manifest(manifest.tensors, manifest.files))

    async def train(self, request: TrainRequest) -> TrainReply:
        """Wait, then return a payload."""
        self._cancel = trio.Event()
        with trio.move_on_after(self.train_s):
            await self._cancel.wait()
        cancelled = self._cancel.is_set()
        self.trained += not cancelled
        size = get_payload_bytes(self.plan)
        seed = blake3_hash(self.weights, request.tokens)
        return TrainReply(
            payload=b"" if cancelled else (seed * (size // len(seed) + 1))[:size],
            loss=1.0,
            grad_norm=1.0,
            tokens=request.samples * request.sequence_length,
            seconds=self.train_s,
            compute_seconds=self.train_s,
            micro_batch_size=1,
            train_count=self.trained,
            cancelled=cancelled,
        )

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """Fold the payloads into the hash."""
        await trio.sleep(self.apply_s)
        if request.run_update:
            self.weights = blake3_hash(b"update", self.weights, self.drift, *request.payloads)
        return ApplyReply(weight_part=self._get_part(), is_full=True, seconds=self.apply_s)

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        """Write a snapshot for `load`."""
        await trio.to_thread.run_sync(self._write, request)
        return SnapshotReply(path=request.path, size_bytes=32, weight_root=self._get_part(), seconds=0.0)

    def _write(self, request: SnapshotRequest) -> None:
        path, manifest = Path(request.path), self._get_manifest()
        root = blake3_hash(encode_manifest(manifest.tensors, manifest.files))
        info = SnapshotInfo(
            path=path, epoch=request.epoch, step=request.step, data_index=request.data_index, chain=request.chain,
            digest=request.digest, weight_root=root, plan=encode_plan(self.plan),
            prev_commitment=request.prev_commitment, train_count=self.trained, has_momentum=False,
            entries=manifest.tensors, files=manifest.files,
        )  # fmt: skip
        with write_folder(path) as folder:
            (folder / TENSORS_NAME).mkdir()
            write_file(get_tensor_path(folder, 0), self.weights)
            write_file(folder / MANIFEST_NAME, info.manifest)
            write_model_files(folder / MODEL_NAME, self.files)
            write_info(folder, info, None)

    async def cancel(self) -> None:
        """Cancel the running training."""
        if self._cancel is not None:
            self._cancel.set()
        await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        """Do nothing: there is no process."""
        await self.cancel()


def _read_files(folder: Path) -> dict[str, bytes]:
    return read_model_files(folder) if folder.is_dir() else {}
