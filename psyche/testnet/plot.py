"""The plot of a run's loss."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from psyche.testnet.report import ClientReport

SMOOTH: Final = 8  # rounds in the window of the mean, centred
SIZE_INCHES: Final = (8.0, 4.5)
DOTS: Final = 120


def compute_mean_loss(clients: Sequence[ClientReport]) -> list[tuple[int, float]]:
    """Per step the mean over the clients that trained it, smoothed over `SMOOTH` steps; at the ends over half of them
    at least, so that the curve does not end in one batch's noise."""
    sums: defaultdict[int, list[float]] = defaultdict(list)
    for client in clients:
        for step, loss in client.losses:
            sums[step].append(loss)
    means = [(step, sum(losses) / len(losses)) for step, losses in sorted(sums.items())]
    smooth: list[tuple[int, float]] = []
    half = SMOOTH // 2
    for index, (step, _) in enumerate(means):
        window = [loss for _, loss in means[max(0, index - half) : index + half + 1]]
        smooth.append((step, sum(window) / len(window)))
    return smooth


def write_plot(clients: Sequence[ClientReport], title: str, path: Path) -> bool:
    """Plot every client's loss by step, and their mean; return false if there is nothing to plot.

    matplotlib is imported only here; without it there is no plot and no error.
    """
    if not any(client.losses for client in clients):
        return False
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=SIZE_INCHES, dpi=DOTS)
    try:
        _draw(axes, clients, title)
        part = path.with_suffix(".part.png")
        figure.savefig(part, bbox_inches="tight")
        part.replace(path)
    finally:
        plt.close(figure)
    return True


def _draw(axes: Any, clients: Sequence[ClientReport], title: str) -> None:
    for client in clients:
        points = sorted(client.losses)
        axes.plot([s for s, _ in points], [loss for _, loss in points], lw=0.6, alpha=0.5, label=client.name)
    mean = compute_mean_loss(clients)
    axes.plot([s for s, _ in mean], [loss for _, loss in mean], lw=2.0, color="black", label="mean")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
