"""A timeline picture of a run: one row per client, with training, transfers, applies, waits, cut-offs and absences."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from psyche.analysis.accounts import Accounts, NodeAccount, RoundAccount, What
from psyche.analysis.tally import Span, find_spans, sort_nodes
from psyche.errors import ConfigError

COLORS: Final = {
    What.WAIT: "#d9d9d9", What.SEND: "#8e6bbf", What.WITNESS: "#f0c95c", What.TRANSFER: "#4c8fd0",
    What.TRAIN: "#4daf62", What.VAIN: "#e58a7d", What.APPLY: "#1d5c34", What.AWAY: "#4a4a4a",
}  # fmt: skip
LABELS: Final = {
    What.TRAIN: "trains", What.VAIN: "trains in vain", What.APPLY: "applies", What.TRANSFER: "waits for payloads",
    What.SEND: "sends", What.WITNESS: "witnesses", What.WAIT: "waits for others", What.AWAY: "away",
}  # fmt: skip
CUT_OFF: Final = "#c0392b"
NO_MEMBER: Final = "#f1e4f5"  # white is used only between epochs
ROW_INCHES: Final = 0.2
MAX_INCHES: Final = 40.0
LEGEND_INCHES: Final = 0.55  # below the axis, past its label
WIDTH_INCHES: Final = 13.0
DOTS: Final = 110
MAX_LABELS: Final = 120  # with more rows, names are left out


def check_picture(path: Path) -> None:
    """Check, before anything is computed, that a picture can be drawn and written."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--picture {path}: must end in .png")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--picture {path}: there is no folder {path.absolute().parent}")
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ConfigError('--picture: needs matplotlib: pip install "psyche-train[train]"') from error


@contextmanager
def open_figure(path: Path, inches: tuple[float, float], dots: int) -> Iterator[Any]:
    """The axes of a figure that is written at the end, atomically. matplotlib is imported only here."""
    import matplotlib as mpl

    mpl.use("Agg")  # draws without a screen
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=inches, dpi=dots)
    try:
        yield axes
        part = path.with_suffix(".part.png")
        figure.savefig(part, bbox_inches="tight")
        part.replace(path)
    finally:
        plt.close(figure)


def write_picture(
    accounts: Accounts, title: str, path: Path, describe_node: Callable[[str], str] = lambda name: name
) -> None:
    """Draw all clients of a run; `describe_node` makes the text beside a client's row from its name."""
    nodes = sort_nodes(accounts.nodes.values())
    height = min(MAX_INCHES, 1.6 + ROW_INCHES * max(4, len(nodes)))
    with open_figure(path, (WIDTH_INCHES, height), DOTS) as axes:
        _draw(axes, accounts, nodes, title, describe_node)


def _draw(
    axes: Any, accounts: Accounts, nodes: Sequence[NodeAccount], title: str, describe_node: Callable[[str], str]
) -> None:
    from matplotlib.patches import Patch

    origin = accounts.rounds[0].start if accounts.rounds else accounts.started
    for row, node in enumerate(nodes):
        outside = [(span.start - origin, span.end - span.start) for span in get_absences(accounts, node)]
        axes.broken_barh(outside, (row - 0.4, 0.8), facecolors=NO_MEMBER, linewidth=0)
        for what in COLORS:
            bars = [(span.start - origin, span.end - span.start) for span in get_bars(accounts, node, what)]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=COLORS[what], linewidth=0)
        cut = [(one.start - origin, one.seconds) for one in accounts.rounds if one.place in node.cut_off]
        axes.broken_barh(cut, (row - 0.4, 0.8), facecolors="none", edgecolors=CUT_OFF, linewidth=1.2)
    for one in accounts.rounds:
        axes.axvline(one.start - origin, color="black", lw=0.3, alpha=0.5)
    axes.set_yticks(range(len(nodes)), [describe_node(node.name) for node in nodes] if len(nodes) <= MAX_LABELS else [])
    axes.tick_params(axis="y", labelsize=7)
    # Said and not left to matplotlib: a run without rounds has nothing that limits could be found from.
    axes.set_ylim(max(1, len(nodes)) - 0.5, -0.5)
    last = accounts.rounds[-1].end if accounts.rounds else accounts.ended
    axes.set_xlim(0.0, max(1.0, last - origin))
    begun_s = origin - accounts.started
    since = f"seconds since the first round, which began {begun_s:.0f} s after the start"
    axes.set_xlabel(f"{since}; a thin line is the start of a round")
    axes.set_title(title)
    below = -LEGEND_INCHES / (0.77 * axes.figure.get_figheight())
    handles = [Patch(facecolor=COLORS[what], edgecolor="grey", label=text) for what, text in LABELS.items()]
    handles.append(Patch(facecolor=NO_MEMBER, edgecolor="grey", label="not a member"))
    handles.append(Patch(facecolor="white", edgecolor="grey", label="between epochs"))
    handles.append(Patch(facecolor="none", edgecolor=CUT_OFF, label="its work is in no set"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, below), ncols=len(handles), fontsize=7)


def get_bars(accounts: Accounts, node: NodeAccount, what: What) -> list[Span]:
    present = [one for one in accounts.rounds if one.place in node.present]
    if not accounts.rounds:
        return []
    if what is What.AWAY:  # drawn also while it is no member, and between epochs
        first, last = accounts.rounds[0].start, accounts.rounds[-1].end
        return [Span(max(span.start, first), min(span.end, last)) for span in find_spans(node.spans[what], first, last)]
    if what is What.WAIT:
        return [Span(one.start, one.end) for one in present]
    if what is What.WITNESS:
        return [Span(one.closing, one.end) for one in present if one.end > one.closing]
    return [clip(span, one) for one in present for span in find_spans(node.spans[what], one.start, one.end)]


def get_absences(accounts: Accounts, node: NodeAccount) -> list[Span]:
    return [Span(one.start, one.end) for one in accounts.rounds if one.place not in node.present]


def clip(span: Span, one: RoundAccount) -> Span:
    return Span(max(span.start, one.start), min(span.end, one.end))
