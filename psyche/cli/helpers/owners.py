"""An owner's access to a run, and the key that commands."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import typer

from psyche.cli.helpers.common import confirm, run_async

if TYPE_CHECKING:
    from psyche.backends.port import AccessAdministration, Administration, Person, Target, TargetOptions
    from psyche.wire.backend import RunStatus
    from psyche.wire.messages import AnyMessage

_Found = TypeVar("_Found")
_Part = TypeVar("_Part", bound="Administration")


def say(text: str) -> None:
    typer.echo(text, err=True)


def make_person(*, yes: bool, is_quiet: bool = False) -> "Person":
    """Make the one who gives a command; `yes` answers questions beforehand."""
    from psyche.backends.port import Person

    return Person((lambda _text: None) if is_quiet else say, partial(confirm, yes=yes))


@dataclass(frozen=True)
class Owner:
    """Who commands a run, or asks how it goes."""

    options: "TargetOptions"
    yes: bool = False

    @cached_property
    def target(self) -> "Target":
        """Where the run is."""
        from psyche.backends.target import parse_target

        return parse_target(self.options)

    def run(
        self, function: "Callable[[Administration], Awaitable[_Found]]", *, as_anybody: bool = False,
        is_quiet: bool = False,
    ) -> _Found:  # fmt: skip
        """Call an async function with the run; return its result. `as_anybody` needs no key where none is named."""
        person = make_person(yes=self.yes, is_quiet=is_quiet)
        return self.call(function, self.target.open_administration(person, as_anybody=as_anybody))

    def run_with_access(self, function: "Callable[[AccessAdministration], Awaitable[_Found]]", instead: str) -> _Found:
        """Call an async function with a run that keeps a list of who may join; `instead` is what to do elsewhere."""
        from psyche.errors import ConfigError

        if self.target.open_access is None:
            raise ConfigError(f"this command is for a run on a server; on a chain use {instead}")
        return self.call(function, self.target.open_access(make_person(yes=self.yes)))

    def call(
        self, function: "Callable[[_Part], Awaitable[_Found]]", opening: "AbstractAsyncContextManager[_Part]"
    ) -> _Found:
        """Call an async function with the run as it is opened by `opening`."""
        from psyche.cli.helpers.refusals import call_in_words

        async def call() -> _Found:
            async with opening as administration:
                return await call_in_words(function, administration, self.target.write_command)

        return run_async(call)

    def command(self, message: "AnyMessage") -> "RunStatus":
        return self.run(lambda administration: administration.command(message))
