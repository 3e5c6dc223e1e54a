"""Loops that numba compiles: how they are found, and how threads share them. Importing this needs no numba.

Without fastmath numba neither fuses nor reorders operations on floats, so compiled loops and their NumPy or torch
counterparts can give the same bytes.
"""

import hashlib
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import structlog

from psyche.core.encoding.plan import TransformPlan

LEAST_BYTES: Final = 1 << 16  # with less to code, loading numba takes longer than NumPy does
LEAST_PARAMETERS: Final = 1 << 21
_log: Final = structlog.get_logger("psyche.kernels")


def compile_loops(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code that lets other threads run, made at its first call and kept on disk.

    numba makes it anew when its file has changed. What it calls in other files is compiled into it, so their hash is a
    part of the name it is kept under.
    """
    import numba

    loop.__qualname__ += f".{hash_sources(Path(__file__).parent)}"
    return numba.njit(cache=True, nogil=True, fastmath=False)(loop)


@cache
def hash_sources(folder: Path) -> str:
    """16 hex digits of all Python files in a folder."""
    sources = sorted(folder.rglob("*.py"))
    return hashlib.sha256(b"".join(hashlib.sha256(source.read_bytes()).digest() for source in sources)).hexdigest()[:16]


@cache
def find_kernels(module: str) -> Any:
    """A module of compiled loops, or None where numba does not work: NumPy and torch do the same, slower."""
    return import_module(module) if _has_numba() else None


def find_fast_distro(plan: TransformPlan, device: str) -> Any:
    """The compiled loops of DisTrO, for a model on a CPU that is not so small that loading them takes longer."""
    parameters = sum(group.chunks * group.area for group in plan.groups)
    is_fit = plan.one_bit and device == "cpu" and parameters >= LEAST_PARAMETERS
    return find_kernels("psyche.modeling.distro.kernels") if is_fit else None


def find_coding(size_bytes: int) -> Any:
    """The compiled coding of payloads, if numba is loaded or there is so much to code that it is worth loading it."""
    is_worth = size_bytes >= LEAST_BYTES or "numba" in sys.modules
    return find_kernels("psyche.modeling.distro.codec_kernels") if is_worth else None


@cache
def _has_numba() -> bool:
    try:
        compile_loops(lambda: None)  # looks for a place for its cache
    except (ImportError, RuntimeError) as error:
        _log.warning(
            "payloads are coded and applied several times slower, since numba does not work here; install it with "
            "`pip install 'numba>=0.62,<1'`, and set NUMBA_CACHE_DIR if it finds no folder for its cache",
            reason=str(error),
        )
        return False
    return True


def share(rows: int, run: Callable[[int, int], None], unit: int = 1) -> None:
    """Let as many threads as torch has do their part of the rows; parts begin at multiples of `unit`."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    parts = min(threads, -(-rows // unit))
    if parts <= 1:
        run(0, rows)
        return
    edges = [rows * number // parts // unit * unit for number in range(parts)]
    for _ in _open_pool(threads).map(run, edges, [*edges[1:], rows]):
        pass


@lru_cache(maxsize=1)
def _open_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "kernels")
