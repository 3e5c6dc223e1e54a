"""Output files and folders of long commands: checked before the work begins; files are written at its end."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from psyche.cli.helpers.errors import describe_reason
from psyche.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Output:
    name: str  # what it is, for people
    path: Path | None  # None: it is not wanted
    write: Callable[[Path], object]
    hint: str = ""  # what to do with it


def check_target(option: str, path: Path | None) -> None:
    """Minutes later would be too late to learn that a file cannot be written."""
    if path is None:
        return
    parent = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder, must be a file")
    if not parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {parent}")
    try:
        _try_to_write(path, parent)
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written: {error.strerror}") from error


def _try_to_write(path: Path, parent: Path) -> None:
    """Test writing without changing an existing file; a pipe is not opened, because that would wait for a reader."""
    if path.is_file():
        with path.open("ab"):
            return
    if path.exists():
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        return
    with tempfile.TemporaryFile(dir=parent):
        return


def check_page_name(option: str, path: Path | None) -> None:
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{option} {path}: is a page for browsers, so its name must end in .html")


def check_target_folder(option: str, path: Path | None) -> None:
    """Check that files can be written in a folder, which need not be there yet; nothing is made."""
    if path is None:
        return
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{option} {path}: is a file; name a folder")
        nearest = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"x")  # a full disk takes names, but no bytes
            file.flush()
    except OSError as error:
        raise ConfigError(f"{option} {path}: {describe_reason(error)}") from error


def check_source_folder(option: str, path: Path) -> None:
    try:
        with os.scandir(path):
            return
    except NotADirectoryError:
        raise ConfigError(f"{option} {path}: is a file, or below one; name a folder") from None
    except OSError as error:
        raise ConfigError(f"{option} {path}: {describe_reason(error)}") from error


def write_outputs(outputs: Sequence[Output], say: "Speaker") -> bool:
    """Write each that is wanted; what fails is told on stderr and costs no other one. Whether all went well."""
    is_well = True
    for one in outputs:
        if one.path is None:
            continue
        try:
            one.write(one.path)
        except (OSError, ValueError, RuntimeError) as error:
            is_well = False
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            sys.stderr.write(f"error: {one.name} {one.path}: cannot be written: {why}\n")
        else:
            say(f"{one.name}: {one.path}{one.hint}")
    return is_well


class Speaker:
    """Writes to standard output; where that fails, what else there is to do goes on, and the end is an error."""

    def __init__(self) -> None:
        self.problem = ""

    def __call__(self, text: str) -> None:
        if self.problem:
            return
        try:
            typer.echo(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.problem = f"standard output cannot be written: {error.strerror}"
            drop_stdout()

    def check(self) -> None:
        if self.problem:
            raise ConfigError(self.problem)


def drop_stdout() -> None:
    """What is left in its buffer would fail once more when the interpreter ends."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
