"""What a stand-alone training shows: its progress and its result."""

from typing import TYPE_CHECKING

from psyche.standalone.settings import OptimizerName, TrainSettings
from psyche.telemetry.text import format_bytes, format_count, format_seconds

if TYPE_CHECKING:  # loads torch
    from psyche.standalone.train import StepProgress, TrainResult


def describe_step(progress: "StepProgress") -> str:
    parts = [
        f"loss {progress.report.loss:.3f}",
        *([] if progress.held_out is None else [f"held out {progress.held_out:.3f}"]),
        f"{format_count(progress.tokens / max(progress.seconds, 1e-9))} tokens/s",
        f"lr {progress.lr:.2e}",
    ]
    return ", ".join(parts)


def format_result(settings: TrainSettings, result: "TrainResult") -> str:
    rate = format_count(result.tokens / result.seconds)
    took = f"{format_count(result.tokens)} tokens in {format_seconds(result.seconds)} ({rate} tokens/s)"
    lines = [
        f"{format_count(result.parameters)} parameters, {took}",
        f"loss of the last batch {result.losses[settings.steps]:.3f} nats per token",
    ]
    if result.held_out:
        lines.append(f"held-out loss {result.final_held_out:.3f} nats per token")
    if settings.optimizer is not OptimizerName.ADAMW:
        dense = 2 * result.parameters
        every = "step" if settings.optimizer is OptimizerName.DISTRO else f"{settings.inner_steps} inner steps"
        lines.append(
            f"a peer sends {format_bytes(result.sent_bytes)} per {every}, a bf16 gradient has {format_bytes(dense)}"
        )  # fmt: skip
    if settings.out is not None:
        lines.append(f"model in {settings.out}")
    return "\n".join(lines)
