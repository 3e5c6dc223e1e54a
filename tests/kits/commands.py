"""Commands of `psyche`, called in this process."""

from typing import Any

from typer.testing import CliRunner

from psyche.cli.app import app


def run(*words: object, typed: str | None = None, code: int | None = None) -> Any:
    """Run a command; return its exit code and what it printed, checked against `code` if that is given."""
    done = CliRunner().invoke(app, [str(word) for word in words], input=typed)
    assert code in (None, done.exit_code), f"{words}\n{done.output}{done.exception!r}"
    return done


def call(*words: object, typed: str | None = None) -> Any:
    """Run a command that succeeds."""
    return run(*words, typed=typed, code=0)


def refuse(*words: object, typed: str | None = None) -> Any:
    """Run a command that is refused."""
    return run(*words, typed=typed, code=1)
