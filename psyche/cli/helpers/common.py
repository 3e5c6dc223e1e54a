"""Shared by all commands: error messages, stopping, and examples in help pages."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

import typer
from typer.core import TyperGroup

from psyche.cli.helpers.errors import EXIT_ERROR, explain_missing, show_errors
from psyche.errors import ConfigError, PsycheError
from psyche.telemetry.loading import EXIT_INTERRUPTED

EXIT_TERMINATED: Final = 128 + signal.SIGTERM


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


def is_terminal() -> bool:
    return sys.stdin.isatty()


def confirm(question: str, change: str, *, yes: bool) -> None:
    """Ask a person before a change, unless --yes answers already; `change` is what it does, as an infinitive."""
    if yes:
        return
    if not is_terminal():
        raise ConfigError(f"nothing was sent: this is no terminal, so nobody can be asked; say --yes to {change}")
    if not typer.confirm(question):
        typer.echo("nothing was sent", err=True)
        raise typer.Exit(1)


def require_extra(extra: str, option: str, module: str) -> None:
    """Say how to install what an option needs, if it is not there."""
    if find_spec(module) is None:
        raise ConfigError(f'{option}: needs {module}: pip install "psyche-train[{extra}]"')


def say(text: str) -> None:
    """Print progress and warnings, on stderr."""
    typer.echo(text, err=True)
