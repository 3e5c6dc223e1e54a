"""The simulator's toy trainer as tests and benchmarks use it: what it does takes no time, unless they say so."""

import random
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.modeling.snapshot import read_model_files
from psyche.sim.payloads import WEIGHTS, PayloadCodec
from psyche.sim.trainer import MachineModel, SimTrainer
from psyche.testing.builders import build_hash
from psyche.wire.trainer import ApplyReply, ApplyRequest

DUMMY_FILES: Final = {"config.json": b"{}"}


def build_weights(name: str) -> NDArray[np.float32]:
    """Weights that belong to this name."""
    return np.frombuffer((build_hash("weights", name) * WEIGHTS)[:WEIGHTS], dtype=np.uint8).astype(np.float32)


class DummyTrainer(SimTrainer):
    """It holds the weights of this name until it loads others.

    Args:
        train_s: how long a batch takes, on trio's clock.
        drift: in full-value mode, makes this trainer's arithmetic differ from others'.
        optimizer: what it trains with; None: DisTrO.
    """

    def __init__(
        self, train_s: float = 0.0, apply_s: float = 0.0, *, one_bit: bool = True, drift: float = 0.0, name: str = "",
        optimizer: Optimizer | None = None,
    ) -> None:  # fmt: skip
        optimizer = optimizer or Optimizer(
            OptimizerKind.DISTRO, compression_decay=0.95, compression_topk=8, compression_chunk=16,
            quantize_1bit=one_bit,
        )  # fmt: skip
        machine = MachineModel(
            sample_s=0.0, step_s=train_s, spread=0.0, apply_s=apply_s, load_s=0.0, snapshot_s=0.0, restart_s=0.0
        )
        super().__init__(PayloadCodec(optimizer), machine, random.Random(0), files=dict(DUMMY_FILES))  # noqa: S311
        self.weights, self.drift = build_weights(name), np.float32(drift)

    def read_model(self, folder: Path) -> dict[str, bytes]:
        """Those of the folder, or, where it has none, those of a model without any."""
        return (read_model_files(folder) if folder.is_dir() else {}) or dict(DUMMY_FILES)

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        reply = await super().apply(request)
        if request.run_update and self.weights is not None:
            self.weights = self.weights + self.drift
        return reply
