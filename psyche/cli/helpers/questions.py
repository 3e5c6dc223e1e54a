"""Questions of a command: answered by a flag, by a person on a terminal, or by a default."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import typer

from psyche.errors import ConfigError, PsycheError

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Flags:
    folder: Path | None
    model: str | None
    tokenizer: str | None
    data: str | None
    field: str
    members: int | None
    min_members: int | None
    steps: int | None
    server_addr: str | None
    rpc: str | None
    prepare: bool | None
    force: bool


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


class Interviewer:
    """Asks what no flag has answered; off a terminal, without defaults, it collects what is missing.

    Args:
        takes_defaults: nothing is asked; a default answers (`--yes`).
    """

    def __init__(self, *, takes_defaults: bool) -> None:
        self._takes_defaults = takes_defaults
        self._is_asking = not takes_defaults and is_terminal()
        self._missing: list[str] = []

    def ask(self, flag: str, given: object, question: str, default: object, read: Callable[[str], _Answer]) -> _Answer:
        if given is not None:
            return read(str(given))
        if not self._is_asking:
            if not self._takes_defaults:
                self._missing.append(flag)
            return read(str(default))
        while True:
            try:
                return read(str(typer.prompt(question, default=str(default))))
            except PsycheError as error:
                typer.echo(f"  {error}")

    def check(self) -> None:
        if self._missing:
            raise ConfigError(
                f"this is no terminal, so nobody can be asked: name {', '.join(self._missing)}, or take the defaults "
                "with --yes"
            )
