"""Draws docs/img/floors.svg from the floors in pyproject.toml, and docs/img/run.svg: who talks to whom in a run.

    python scripts/generate_architecture.py           write them
    python scripts/generate_architecture.py --check   only report whether they are stale

The SVG is plain, so that a small change of the code is a small change of the picture.
"""

import ast
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "img"
WIDTH: Final = 860
LINE: Final = 15
FONT: Final = "font-family='Helvetica, Arial, sans-serif'"
COLORS: Final = ("#e8eefc", "#e3f4ea", "#fdf3dc", "#fbe6e3", "#eee8f8", "#e5f3f6", "#f4f4f4", "#eaeaea", "#dddddd")
INK: Final = "#1f2937"


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    title: str
    text: str
    fill: str

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


def draw_text(x: float, y: float, text: str, *, size: int = 12, bold: bool = False, anchor: str = "middle") -> str:
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}'{weight} text-anchor='{anchor}' fill='{INK}'>"
        f"{escape(text)}</text>"
    )


def wrap(text: str, limit: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > limit:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def get_limit(width: float) -> int:
    """The number of characters that fit in a line of a box."""
    return int(width / 6.4)


def draw_box(box: Box) -> str:
    frame = f"<rect x='{box.x:g}' y='{box.y:g}' width='{box.width:g}' height='{box.height:g}' rx='8'"
    parts = [f"{frame} fill='{box.fill}' stroke='{INK}' stroke-opacity='0.35'/>"]
    middle, _ = box.middle
    parts.append(draw_text(middle, box.y + 20, box.title, size=14, bold=True))
    for number, line in enumerate(wrap(box.text, get_limit(box.width))):
        parts.append(draw_text(middle, box.y + 38 + LINE * number, line, size=11))
    return "\n".join(parts)


def draw_arrow(start: tuple[float, float], end: tuple[float, float], label: str = "", *, dashed: bool = False) -> str:
    dash = " stroke-dasharray='5 4'" if dashed else ""
    line = (
        f"<line x1='{start[0]:g}' y1='{start[1]:g}' x2='{end[0]:g}' y2='{end[1]:g}' stroke='{INK}' stroke-width='1.4' "
        f"marker-start='url(#tip)' marker-end='url(#tip)'{dash}/>"
    )
    if not label:
        return line
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    lines = label.split("\n")
    width = max(map(len, lines)) * 5.9 + 8
    height = 14 * len(lines) + 4
    back = f"<rect x='{x - width / 2:g}' y='{y - height / 2:g}' width='{width:g}' height='{height:g}' fill='white'/>"
    words = [draw_text(x, y - height / 2 + 13 + 14 * n, text, size=11) for n, text in enumerate(lines)]
    return "\n".join([line, back, *words])


def wrap_svg(height: float, parts: list[str]) -> str:
    tip = (
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
        f"orient='auto-start-reverse'><path d='M0,0 L8,4 L0,8 z' fill='{INK}'/></marker></defs>"
    )
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:g}' width='{WIDTH}' height='{height:g}'>"
    )
    return "\n".join([head, tip, f"<rect width='{WIDTH}' height='{height:g}' fill='white'/>", *parts, "</svg>", ""])


def read_floors() -> list[list[str]]:
    """The layers that import-linter enforces, highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (floors,) = [contract for contract in contracts if contract["type"] == "layers"]
    return [[name.strip().removeprefix("psyche.") for name in layer.split("|")] for layer in floors["layers"]]


def read_purpose(package: str) -> str:
    """The first sentence of a package's docstring."""
    folder = ROOT / "psyche" / package
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def draw_floors() -> str:
    gap, y = 10.0, 16.0
    parts: list[str] = []
    for row, packages in enumerate(read_floors()):
        width = (WIDTH - 2 * gap - (len(packages) - 1) * gap) / len(packages)
        purposes = {package: read_purpose(package) for package in packages}
        height = 34 + LINE * max(len(wrap(text, get_limit(width))) for text in purposes.values())
        for column, (package, purpose) in enumerate(purposes.items()):
            x = gap + column * (width + gap)
            parts.append(draw_box(Box(x, y, width, height, package, purpose, COLORS[row % len(COLORS)])))
        y += height + gap
    parts.append(draw_text(WIDTH / 2, y + 12, "a package imports only from floors below its own"))
    return wrap_svg(y + 28, parts)


def draw_run() -> str:
    job = "keeps the record; a journal on disk; serves data to whom it is assigned"
    server = Box(300, 20, 260, 66, "coordinator server", job, COLORS[0])
    columns = [
        Box(30 + 290 * n, 180, 220, 52, f"client {n + 1}", "round engine, libp2p node", COLORS[1]) for n in range(3)
    ]
    trainers = [Box(c.x + 20, 296, 180, 52, "trainer", "torch: weights, momentum", COLORS[2]) for c in columns]
    parts = [draw_box(box) for box in (server, *columns, *trainers)]
    for number, client in enumerate(columns):
        x = client.middle[0]
        start = (min(max(x, server.x + 30), server.x + server.width - 30), server.y + server.height)
        is_middle = number == 1
        parts.append(
            draw_arrow(start, (x, client.y), "TCP: state, witness messages,\nbatches of tokens" if is_middle else "")
        )
        end = (x, trainers[number].y)
        parts.append(draw_arrow((x, client.y + client.height), end, "socket pair" if is_middle else ""))
    for left, right in ((0, 1), (1, 2)):
        y = columns[left].middle[1]
        parts.append(draw_arrow((columns[left].x + columns[left].width, y), (columns[right].x, y), "libp2p"))
    caption = "everybody with everybody: announcements by gossip, updates and weights as content-addressed blobs"
    parts.append(draw_text(WIDTH / 2, 378, caption))
    return wrap_svg(394, parts)


def main(arguments: list[str]) -> int:
    stale = False
    for name, text in (("floors.svg", draw_floors()), ("run.svg", draw_run())):
        path = IMAGES / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale = True
        if "--check" not in arguments:
            IMAGES.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    if stale and "--check" in arguments:
        print("docs/img is stale: python scripts/generate_architecture.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
