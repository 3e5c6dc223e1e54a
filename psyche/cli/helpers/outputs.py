"""Where long commands write: files and folders, which are checked before the work begins, and experiment trackers."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from psyche.cli.helpers.common import require_extra
from psyche.cli.helpers.errors import describe_reason
from psyche.cli.helpers.options import option, share_fields
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.watch.app import Follow

PROJECT: Final = "psyche"  # in wandb, unless the user names another
OFFLINE: Final = frozenset({"offline", "dryrun", "disabled"})  # WANDB_MODE that needs no key


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


@dataclass(frozen=True, slots=True)
class Trackers:
    """Where a run goes beside the screen."""

    wandb_project: str | None = None
    wandb_run: str | None = None
    wandb_group: str | None = None
    wandb_entity: str | None = None
    trackio: str | None = None
    tensorboard: Path | None = None
    csv: Path | None = None

    @property
    def _wants_wandb(self) -> bool:
        return any((self.wandb_project, self.wandb_run, self.wandb_group, self.wandb_entity))

    def check(self) -> None:
        """Refuse what this machine lacks, before anything is started."""
        if self._wants_wandb:
            require_extra("wandb", "--wandb-project", "wandb")
            if not os.environ.get("WANDB_API_KEY") and os.environ.get("WANDB_MODE") not in OFFLINE:
                raise ConfigError(
                    "--wandb-project: set WANDB_API_KEY, which https://wandb.ai/authorize shows, or WANDB_MODE=offline "
                    "for files that `wandb sync` sends later"
                )
        if self.trackio:
            require_extra("trackio", "--trackio", "trackio")
        if self.tensorboard:
            require_extra("tensorboard", "--tensorboard", "tensorboardX")
        check_target_folder("--tensorboard", self.tensorboard)
        check_target("--csv", self.csv)

    def make_words(self) -> list[str]:
        """The same as options of `psyche watch`; empty if none is set."""
        given = {one.name.replace("_", "-"): getattr(self, one.name) for one in fields(self)}
        return [f"--{name}={value}" for name, value in given.items() if value]

    def name_run(self, name: str) -> "Trackers":
        """The same with this name of the run in wandb, unless it has one."""
        return replace(self, wandb_run=self.wandb_run or name) if self._wants_wandb else self

    def open_watch(self, log: Path) -> AbstractAsyncContextManager[object]:
        """Take a log there in a process of its own, for which nothing waits before the end."""
        from psyche.testnet.companion import open_watch

        words = self.make_words()
        return open_watch([log, *words], log.with_name("watch.log")) if words else contextlib.nullcontext()

    def make_followers(self) -> "list[Follow]":
        from psyche.watch.trackers import CsvWriter, ServiceWriter, TensorBoardWriter, Tracking, Wandb, open_trackio

        found: list[Tracking] = []
        if self._wants_wandb:
            wandb = Wandb(
                project=self.wandb_project or PROJECT, run=self.wandb_run or "", group=self.wandb_group or "",
                entity=self.wandb_entity or "",
            )  # fmt: skip
            found.append(Tracking("--wandb-project", lambda say: ServiceWriter(partial(wandb.open_run, say=say))))
        if name := self.trackio:
            found.append(Tracking("--trackio", lambda _say: ServiceWriter(partial(open_trackio, name))))
        if folder := self.tensorboard:
            found.append(Tracking("--tensorboard", lambda _say: TensorBoardWriter(folder)))
        if path := self.csv:
            found.append(Tracking("--csv", lambda _say: CsvWriter(path)))
        return [one.run for one in found]


# Without variables: those of wandb's own would send runs there that nobody asked for.
TRACKERS: Final = share_fields(
    Trackers,
    wandb_project=option(
        f"Log the run to this project of Weights & Biases; {PROJECT} if another --wandb option is given. Needs "
        "WANDB_API_KEY, or WANDB_MODE=offline.",
        metavar="NAME",
    ),
    wandb_run=option("The run's name there. Default: RUN_ID; of a client, RUN_ID and its name.", metavar="NAME"),
    wandb_group=option("The group of the run there.", metavar="NAME"),
    wandb_entity=option("The user or team whose project it is.", metavar="NAME"),
    trackio=option("Log to this project of trackio, which needs no account.", metavar="NAME"),
    tensorboard=option("Write files for TensorBoard below this folder.", metavar="FOLDER"),
    csv=option("Write a line for each round, and one for each member in it.", metavar="FILE"),
)
