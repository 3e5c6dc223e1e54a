"""Shared by all commands: error messages, stopping, and examples in help pages."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import typer
from typer.core import TyperGroup

from psyche.cli.helpers.os_errors import describe_os_error
from psyche.cli.helpers.packages import explain_missing
from psyche.errors import ConfigError, PsycheError
from psyche.telemetry.loading import EXIT_INTERRUPTED

EXIT_ERROR: Final = 1
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
MAX_ERRORS: Final = 20
KEY_BYTES: Final = 32


class Debug:
    on = bool(os.environ.get("PSYCHE_DEBUG"))


class PsycheGroup(TyperGroup):
    """A command group that shows errors as one clear message, and exits with 130 on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:  # click.Context, which some versions of typer bring along under another name
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except typer.Abort:  # Ctrl-C or the end of the input at a question
            typer.echo("\nStopped; nothing was changed.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            raise  # a reader that went away: click ends the command quietly
        except (PsycheError, OSError) as error:
            show_errors(error)
        except ModuleNotFoundError as error:
            show_errors(explain_missing(error))
        except BaseExceptionGroup as group:
            show_errors(group)
        raise typer.Exit(EXIT_ERROR)


def show_errors(error: BaseException) -> None:
    """Print our own errors and those of the system as messages; re-raise anything else, which is a bug.

    Raises:
        BaseException: `error` itself, if it contains anything but `PsycheError` and `OSError`.
        typer.Exit: 130 if it was Ctrl-C in several tasks, or the exit code of an error that has one of its own.
    """
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


def make_group(text: str, *examples: str, has_completion: bool = False) -> typer.Typer:
    """Create a group of commands with its explanation and examples; `has_completion` offers `--install-completion`."""
    return typer.Typer(
        cls=PsycheGroup,
        help=text,
        epilog=format_examples(*examples),
        no_args_is_help=True,
        add_completion=has_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 110,
            "token_normalize_func": lambda token: token.replace("_", "-"),  # --run_id is --run-id
        },
    )


def format_examples(*examples: str) -> str:
    """Examples for the end of a help page, kept as they stand; `# ...` after a command explains it."""
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])


def run_async(function: Any, *args: Any) -> Any:
    """Run an async function on trio, which is imported only now."""
    import trio

    return trio.run(function, *args)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C while the block runs, so that it cleans up; the exit code is 143.

    Both end it too where SIGINT was ignored at the start, as a shell script lets `psyche ... &` do.
    """
    is_ended = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_ended
        is_ended = True
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGTERM: end, signal.SIGINT: signal.default_int_handler}  # trio takes no other one over
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except BaseException:
        if is_ended:
            raise typer.Exit(EXIT_TERMINATED) from None
        raise
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def parse_hex(name: str, text: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{name}: must be 64 hex digits")
    return key
