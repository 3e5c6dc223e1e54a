"""Options that are declared apart from the functions of commands: one by one, or for the fields of a record.

Names are those of the original documentation. Where an option may come from the environment, its variable is its name
in capitals (`--run-id` is RUN_ID).
"""

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer

from psyche.cli.helpers.common import require_extra
from psyche.errors import ConfigError
from psyche.telemetry.events import DEFAULT_KEEP

if TYPE_CHECKING:
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog

_Record = TypeVar("_Record")
LogMode = Literal["console", "json", "none", "tui"]
# Options by name. typer knows no groups: it reads the signature of each command, so `command` puts them into it.
Shared = dict[str, inspect.Parameter]
CHECKPOINTING_HELP: Final = (
    "Takes less memory and more time: activations inside the layers are not kept, but computed again. "
    "Changes no bit of a result."
)
OFFLOAD_HELP: Final = (
    "Takes less of a GPU's memory and more time: what a step does not compute with lies in the host's memory "
    "(DisTrO: momentum and look-ahead copy; local steps: error memory, masters and inner state). Changes no bit of a "
    "result."
)


class Option(NamedTuple):
    """What is said of a field's option beside its name, type and default; `more` replaces these, or is typer's."""

    help: str
    flags: tuple[str, ...]
    more: Mapping[str, Any]


def parse_micro_batch_size(text: str) -> int:
    """The number of samples, 0 for `auto`."""
    if text != "auto" and not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"--micro-batch-size {text}: must be auto, or a whole number from 1")
    return 0 if text == "auto" else int(text)


def option(help_: str, *flags: str, **more: Any) -> Option:
    return Option(help_, flags, more)


def share(
    name: str, kind: object, help_: str, *flags: str, default: object = None, envvar: str | None = "", **more: Any
) -> Shared:
    """Declare an option; its variable is its name in capitals unless it has another, or None."""
    long = next((flag for flag in flags if flag.startswith("--")), name)
    variable = long.lstrip("-").replace("-", "_").upper() if envvar == "" else envvar
    info = typer.Option(*flags, envvar=variable, help=help_, **more)
    annotation = Annotated[kind, info]  # pyright: ignore[reportInvalidTypeForm]
    return {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)}


def share_fields(record: type, *, has_variables: bool = False, **options: str | Option) -> Shared:
    """Declare options for fields of a record, with their types and defaults; a text is an option's help."""
    known = {one.name: one for one in fields(record)}
    made: Shared = {}
    for name, declared in options.items():
        help_, flags, more = declared if isinstance(declared, Option) else option(declared)
        kind, default = _describe_field(known[name])
        said: dict[str, Any] = {"kind": kind, "default": default, "envvar": "" if has_variables else None, **more}
        made |= share(name, said.pop("kind"), help_, *flags, **said)
    return made


def _describe_field(field: Field[Any]) -> tuple[Any, Any]:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    is_needed = default is MISSING
    if get_origin(field.type) is not tuple:
        return field.type, inspect.Parameter.empty if is_needed else default
    kind = list[get_args(field.type)[0]]  # typer knows lists alone, and takes no empty one for a default
    return (kind, inspect.Parameter.empty) if is_needed else (kind | None, None)


def build(record: type[_Record], given: Mapping[str, Any]) -> _Record:
    """Make a record of those of these values that have the names of its fields."""
    found = {one.name: (one.type, given[one.name]) for one in fields(record) if one.name in given}  # type: ignore[arg-type]
    return record(**{
        name: tuple(value or ()) if get_origin(kind) is tuple else value for name, (kind, value) in found.items()
    })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Logging:
    """What a server and a client write of their work, and where."""

    logs: LogMode = "console"
    log: str = "info"
    write_log: Path | None = None
    events_dir: Path | None = None
    keep_event_files: int = DEFAULT_KEEP

    def wants_screen(self) -> bool:
        """Whether `psyche watch --tui` is to have the terminal; where there is none, lines do as well.

        Raises:
            ConfigError: the screen is not installed.
        """
        from psyche.testnet.companion import has_terminal

        if self.logs != "tui" or not has_terminal():
            return False
        require_extra("ui", "--logs tui", "textual")
        return True

    @property
    def lines(self) -> Literal["console", "json", "none"]:
        """What is printed where no screen is."""
        return "console" if self.logs == "tui" else self.logs

    def open_screen(self, console: "Console", *words: str) -> "contextlib.AbstractAsyncContextManager[None]":
        """Show what `psyche watch` shows of these words, if the user wants that."""
        from psyche.testnet.companion import WATCH, open_screen

        return open_screen([*WATCH, *words, "--tui"], console) if self.wants_screen() else contextlib.nullcontext()

    def find_folder(self, folder: Path, node: str) -> Path:
        """Where the event log of a node is; `folder` is the place of one that the user has not put elsewhere."""
        return folder if self.events_dir is None else self.events_dir / node

    def open_events(self, folder: Path, node: str) -> "EventLog":
        from psyche.telemetry.events import EventLog

        return EventLog(self.find_folder(folder, node) / "events.jsonl", node=node, keep=self.keep_event_files)


LOGGING: Final = share_fields(
    Logging,
    has_variables=True,
    logs="Lines for people, lines of JSON, none, or tui: a screen as of psyche watch --tui, if there is a terminal.",
    log="Level, also by part: warn,psyche.client=debug.",
    write_log="Also write log lines (JSON) to this file.",
    events_dir="The event log goes to NODE/events.jsonl here. Default: the data folder.",
    keep_event_files=option("Older event files kept, 64 MB each.", min=0),
)
