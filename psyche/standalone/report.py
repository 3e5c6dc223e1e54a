"""What a stand-alone training shows: its progress, its result, and a plot of its losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from psyche.errors import ConfigError
from psyche.standalone.settings import OptimizerName, TrainSettings
from psyche.telemetry.text import format_bytes, format_count, format_seconds

if TYPE_CHECKING:  # loads torch
    from psyche.standalone.train import StepProgress, TrainResult

SMOOTHING: Final = 20  # steps of the moving average


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
    if settings.optimizer is OptimizerName.DISTRO:
        dense = 2 * result.parameters
        lines.append(
            f"a peer sends {format_bytes(result.sent_bytes)} per step, a bf16 gradient has {format_bytes(dense)}"
        )  # fmt: skip
    if settings.out is not None:
        lines.append(f"model in {settings.out}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Curve:
    label: str
    losses: Mapping[int, float]
    held_out: Mapping[int, float]


def compute_average(losses: Mapping[int, float], width: int = SMOOTHING) -> dict[int, float]:
    """The mean over each step and the `width - 1` before it."""
    steps, values = list(losses), list(losses.values())
    averages: dict[int, float] = {}
    for place, step in enumerate(steps):
        window = values[max(0, place + 1 - width) : place + 1]
        averages[step] = sum(window) / len(window)
    return averages


def write_loss_plot(path: Path, curves: Sequence[Curve], title: str = "") -> None:
    """Draw training losses (thin lines, averaged) and held-out losses (dots) over steps."""
    from matplotlib.figure import Figure  # no global state, no display

    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        color = f"C{number}"
        average = compute_average(curve.losses)
        axes.plot(list(average), list(average.values()), color=color, linewidth=1.2, label=curve.label)
        measured = {step: loss for step, loss in curve.held_out.items() if step > 0}
        if measured:
            axes.plot(list(measured), list(measured.values()), "o", color=color, label=f"{curve.label}, held out")
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}") from error
