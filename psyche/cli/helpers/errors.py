"""Errors of commands as messages: our own, those of the system, and packages that are not installed."""

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import typer

import psyche
from psyche.errors import ConfigError, PsycheError
from psyche.telemetry.loading import EXIT_INTERRUPTED

EXIT_ERROR: Final = 1
MAX_ERRORS: Final = 20
SENTENCES: Final = {
    errno.ENOENT: "there is no such file or folder",
    errno.EEXIST: "exists already; name another path",
    errno.EISDIR: "is a folder; name a file",
    errno.ENOTDIR: "a part of this path is a file; name a path whose parents are folders",
    errno.EACCES: "permission denied; change its permissions, or name another path",
    errno.EPERM: "the system does not permit this; name another path",
    errno.EROFS: "lies on a read-only disk; name another path",
    errno.ENOSPC: "the disk is full; free some space, or name a path on another disk",
    errno.EDQUOT: "your disk quota is used up; free some space, or name a path on another disk",
    errno.EFBIG: "grows beyond the largest file that is allowed here; see `ulimit -f`",
    errno.EIO: "the disk reports an error; see `dmesg`, and name a path on another disk",
    errno.EMFILE: "this process may not open more files; allow more: ulimit -n 65536",
    errno.ENFILE: "the system cannot open more files; end some programs",
    errno.ENAMETOOLONG: "this name is too long; choose a shorter one",
    errno.ELOOP: "its links lead in a circle; name another path",
    errno.ENOTEMPTY: "is not empty; name another folder",
    errno.EADDRINUSE: "this port is in use; choose another one",
    errno.ENOMEM: "there is not enough memory; end some programs",
}
UNNAMED: Final = "the system refused an operation"
# Packages that not everybody needs: for training (the extra `train`) and for chains (the extra `solana`).
TRAIN: Final = frozenset(
    {
        "httpx2", "hypercorn", "ifaddr", "libp2p", "multiaddr", "numba", "pyarrow", "safetensors", "tokenizers",
        "torch", "transformers",
    }
)  # fmt: skip
SOLANA: Final = frozenset({"solana", "solders", "yaml"})
PACKAGE: Final = Path(psyche.__file__).parent
LOCK: Final = PACKAGE / "requirements" / "train.lock"  # is in the wheel alone
INSTALLER: Final = PACKAGE.parent / "scripts" / "install"  # is in a checkout alone


class Debug:
    on = bool(os.environ.get("PSYCHE_DEBUG"))


def show_errors(error: BaseException) -> None:
    """Print our own errors and those of the system as messages; re-raise anything else, which is a bug."""
    leaves = list(get_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not all(isinstance(leaf, PsycheError | OSError) for leaf in leaves):
        raise error
    if Debug.on:
        traceback.print_exception(error)
    messages = list(dict.fromkeys(describe_os_error(x) if isinstance(x, OSError) else str(x) for x in leaves))
    for message in messages[:MAX_ERRORS]:
        sys.stderr.write(f"error: {message}\n")
    if (code := max(leaf.exit_code if isinstance(leaf, PsycheError) else 1 for leaf in leaves)) > EXIT_ERROR:
        raise typer.Exit(code)


def get_leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from get_leaves(inner)
    else:
        yield error


def describe_os_error(error: OSError) -> str:
    names = [str(name) for name in (error.filename, error.filename2) if name not in (None, "")]
    return f"{' and '.join(names) or UNNAMED}: {describe_reason(error)}"


def describe_reason(error: OSError) -> str:
    return SENTENCES.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__


def get_install_command() -> str:
    """The command that installs what training and chains need.

    In a wheel's environment it installs the versions that the lock names, without their dependencies: libp2p pins a
    release of fastecdsa that has to be compiled, and the lock names one with wheels.
    """
    if not LOCK.is_file():
        return f"bash {shlex.quote(str(INSTALLER))}"
    python, lock = shlex.quote(sys.executable), shlex.quote(str(LOCK))
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{pip} --no-deps -r {lock}"


def explain_missing(error: ModuleNotFoundError) -> Exception:
    """Say how to install a package of an extra; any other missing module is a bug, and returned as it is."""
    name = (error.name or "").partition(".")[0]
    if name not in TRAIN | SOLANA:
        return error
    what = "training needs" if name in TRAIN else "a run on a chain needs, and what training needs"
    return ConfigError(
        f"this command needs {name}, which is not installed here; this installs all that {what}, without a "
        f"compiler: {get_install_command()}"
    )
