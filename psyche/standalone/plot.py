"""The plot of a training's losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psyche.errors import ConfigError

SMOOTHING = 20  # steps of the moving average


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of one training by step, in nats per token; `held_out` may be empty."""

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
    """Draw training losses (thin lines, averaged) and held-out losses (dots) over steps.

    Raises:
        ConfigError: matplotlib cannot write such a file there.
    """
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
