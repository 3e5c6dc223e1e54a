"""Local steps that fit a line: how many inner steps, how much of each chunk, and when others' results are merged."""

import math
from typing import Final

from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.forecast.workload import compute_even_shapes, compute_payload_bytes

LINE_SHARE: Final = 0.7  # of a round that its payloads may take of the line
INNER_STEPS: Final = (4, 8, 16, 32, 64, 128, 256)  # the fewer, the better they train
TOPK: Final = (256, 128, 64, 32, 16)
CHUNK: Final = 64
EARLIEST_MERGE: Final = 0.25  # of a round


def propose_local_steps(
    parameters: int, members: int, mbit_s: float, inner_s: float, base: Optimizer
) -> Optimizer | None:
    """The fewest inner steps, each of `inner_s`, whose payloads fit a line of `mbit_s`, with the largest payloads."""
    shapes = compute_even_shapes(parameters, CHUNK)
    for inner_steps in INNER_STEPS:
        for topk in TOPK:
            optimizer = Optimizer(
                OptimizerKind.LOCAL_STEPS, base.clip_grad_norm, base.weight_decay, compression_topk=topk,
                compression_chunk=CHUNK, inner_steps=inner_steps, value_bits=2, error_decay=0.95, outer_rate=1.0,
            )  # fmt: skip
            share = compute_line_share(compute_payload_bytes(shapes, optimizer), members, mbit_s, inner_steps * inner_s)
            if share <= LINE_SHARE:
                merge = math.ceil(max(EARLIEST_MERGE, share) * inner_steps)
                optimizer.merge_step = min(merge, inner_steps - 1)
                return optimizer
    return None


def compute_line_share(payload_bytes: int, members: int, mbit_s: float, round_s: float) -> float:
    """The share of a round that sending its payload to all others takes of a member's line."""
    return payload_bytes * (members - 1) * 8e-6 / mbit_s / round_s


def describe_local_steps(optimizer: Optimizer) -> str:
    names = ("inner_steps", "merge_step", "compression_topk")
    return "LocalSteps with " + ", ".join(f"{name} = {getattr(optimizer, name)}" for name in names)
