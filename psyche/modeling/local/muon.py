"""Muon with the formula of `torch.optim.Muon`, but with float32 where torch orthogonalizes in bf16.

In bf16 a gradient that differs in its last bits moves weights by some percent more or less, so that nobody could replay
a round closely. A GPU, which computes gradients in bf16, multiplies with the 10 bits of TF32 here: eight times finer.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)  # of Keller Jordan's quintic, as in torch/optim/_muon.py
_ITERATIONS: Final = 5
_EPS: Final = 1e-7
_RMS: Final = 0.2  # of a step, as large as AdamW's, so that one learning rate does for both ("match_rms_adamw")


class Muon(torch.optim.Muon):
    """Takes the place of torch's with `adjust_lr_fn="match_rms_adamw"`; its state is the same."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None, "gradients are in their place"
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                kept = state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
                move = orthogonalize(weight.grad.lerp(kept, momentum))
                weight.mul_(1 - lr * group["weight_decay"]).sub_(move, alpha=lr * _RMS * math.sqrt(max(weight.shape)))


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """About U V^T of a matrix U S V^T, by Newton and Schulz's iteration in float32."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if is_tall else matrix
    wide = wide / wide.norm().clamp(min=_EPS)
    precision = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # of a CPU it changes nothing
    try:
        for _ in range(_ITERATIONS):
            gram = wide @ wide.T
            wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    finally:
        torch.backends.cuda.matmul.fp32_precision = precision
    return wide.T if is_tall else wide
