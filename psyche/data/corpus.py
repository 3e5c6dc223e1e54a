"""The demo's corpus: the source code of Python's standard library, which every machine has.

Installed packages are left out, because they differ from machine to machine; tests are left out too. Files are
taken in the order of their paths.
"""

import json
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from psyche.data.tokenize import get_part_path, tokenize
from psyche.errors import DataError

HELD_OUT_BYTES: Final = 200_000
VERSION: Final = 1  # raise it when the choice or treatment of files changes, so that the corpus is built anew
LEFT_OUT: Final = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
_STAMP: Final = "corpus.json"


@dataclass(frozen=True, slots=True)
class DemoCorpus:
    """The files of the corpus; each byte of text is one token id, stored in two bytes."""

    train_folder: Path
    held_out: Path
    train_tokens: int
    held_out_tokens: int
    documents: int


def find_library_sources() -> list[Path]:
    """Find the .py files of the standard library, sorted by path."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [path for path in root.rglob("*.py") if not LEFT_OUT.intersection(path.relative_to(root).parts)]
    if not found:
        raise DataError(f"{root}: contains no source files of the standard library; use your own text instead")
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def build_demo_corpus(
    out_dir: Path,
    held_out_bytes: int = HELD_OUT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> DemoCorpus:
    """Write `train/corpus.bin` and `held-out/corpus.bin` below `out_dir`; reuse those of an earlier call.

    `progress` is called with (bytes done, total bytes).
    """
    wanted = {"version": VERSION, "python": sys.version, "held_out_bytes": held_out_bytes}
    if (former := _find_former(out_dir, wanted)) is not None:
        return former
    stamp = out_dir / _STAMP
    stamp.unlink(missing_ok=True)
    train, held_out = out_dir / "train" / "corpus.bin", out_dir / "held-out" / "corpus.bin"
    report = tokenize(
        find_library_sources(), train, held_out=held_out, held_out_bytes=held_out_bytes, progress=progress
    )
    assert report.held_out is not None, "a file for it was given"
    corpus = DemoCorpus(
        train.parent, held_out, report.train.tokens, report.held_out.tokens,
        report.train.documents + report.held_out.documents,
    )  # fmt: skip
    counts = {
        "train_tokens": corpus.train_tokens,
        "held_out_tokens": corpus.held_out_tokens,
        "documents": corpus.documents,
    }
    part = get_part_path(stamp)
    part.write_text(json.dumps(wanted | counts, indent=1) + "\n", encoding="utf-8")
    part.replace(stamp)  # last: the stamp says that all other files are complete
    return corpus


def _find_former(out_dir: Path, wanted: dict[str, Any]) -> DemoCorpus | None:
    """The corpus that an earlier call built from the same sources; None if it is missing or incomplete."""
    try:
        stamp = cast("dict[str, Any]", json.loads((out_dir / _STAMP).read_bytes()))
        if any(stamp[key] != value for key, value in wanted.items()):
            return None
        train, held_out = out_dir / "train", out_dir / "held-out" / "corpus.bin"
        counts = stamp["train_tokens"], stamp["held_out_tokens"]
        sizes = (train / "corpus.bin").stat().st_size, held_out.stat().st_size
        if sizes != (2 * counts[0], 2 * counts[1]):
            return None
        return DemoCorpus(train, held_out, counts[0], counts[1], stamp["documents"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
