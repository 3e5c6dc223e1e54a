"""A page with its data inside: one file that asks nobody, for a mail or an archive."""

import hashlib
import re
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from psyche.analysis.run_view import RunView
from psyche.core.state.enums import RunState
from psyche.durable import replace_file
from psyche.telemetry.status import PHASES
from psyche.watch.document import describe_all
from psyche.wire.history import HistoryPoint

SMOOTHING: Final = 20  # steps of the moving average
STATIC: Final = Path(__file__).parent / "static"
_PART: Final = re.compile(r'<link rel="stylesheet" href="([\w.]+)">|<script src="([\w.]+)"></script>')
_SPACE: Final = '<script id="data" type="application/json"></script>'


@dataclass(frozen=True, slots=True)
class Losses:
    """Of a training in one process, by step."""

    name: str
    trained: Mapping[int, float]
    held_out: Mapping[int, float]


def write_page(path: Path, views: Sequence[RunView], describe_node: Callable[[str], str] = str) -> None:
    """Write runs as they are now."""
    now = time.time()
    _write(path, now, [describe_all(view, str(place), now, describe_node) for place, view in enumerate(views)])


def write_losses(path: Path, found: Sequence[Losses]) -> None:
    """Write trainings in one process side by side: the loss of each step, their mean, and the held-out loss."""
    now = time.time()
    runs = [describe_all(_view_losses(one), str(place), now) for place, one in enumerate(found)]
    for run, one in zip(runs, found, strict=True):
        run["history"]["series"] = [
            {"name": name, "step": list(losses), "loss": list(losses.values()), "points": is_dotted}
            for name, losses, is_dotted in (("each step", one.trained, False), ("held out", one.held_out, True))
            if losses
        ]
    _write(path, now, runs)


def _view_losses(one: Losses) -> RunView:
    view = RunView(one.name)
    view.phase, view.step = PHASES[RunState.FINISHED], max(one.trained, default=0)
    view.total_steps = view.step
    for step, loss in compute_average(one.trained).items():
        view.take_history([make_point(step, loss)])
    return view


def make_point(step: int, loss: float) -> HistoryPoint:
    return HistoryPoint(
        step=step, unix=0, seconds=0.0, members=1, results=1, loss=loss, least=None, greatest=None, tokens_per_s=0.0,
        tokens=0,
    )  # fmt: skip


def compute_average(losses: Mapping[int, float], width: int = SMOOTHING) -> dict[int, float]:
    """The mean over each step and the `width - 1` before it."""
    steps, values = list(losses), list(losses.values())
    averages: dict[int, float] = {}
    for place, step in enumerate(steps):
        window = values[max(0, place + 1 - width) : place + 1]
        averages[step] = sum(window) / len(window)
    return averages


def _write(path: Path, now: float, runs: Sequence[dict[str, Any]]) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        replace_file(path, build_page({"taken": now, "runs": runs}), part)
    finally:
        part.unlink(missing_ok=True)


def build_page(data: dict[str, Any]) -> bytes:
    """The page with its styles, scripts and data in it; only these scripts may run in it."""
    hashes: list[str] = []

    def fill(match: re.Match[str]) -> str:
        style, script = match.groups()
        text = (STATIC / (style or script)).read_text(encoding="utf-8")
        if style:
            return f"<style>{text}</style>"
        hashes.append("'sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'")
        return f"<script>{text}</script>"

    page = _PART.sub(fill, (STATIC / "index.html").read_text(encoding="utf-8"))
    allowed = f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data:"
    page = page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{allowed}">', 1)
    # No text of a stranger can end the element: JSON has another way to write this character.
    told = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    return page.replace(_SPACE, _SPACE.replace("></", f">{told}</")).encode()
