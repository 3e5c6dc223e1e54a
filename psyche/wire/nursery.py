"""A nursery that raises one error where trio's own raises an exception group."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import trio

from psyche.errors import PsycheError


@asynccontextmanager
async def open_plain_nursery() -> AsyncGenerator[trio.Nursery]:
    """Open a nursery in which the first failure, of a task or of the block, cancels the rest and is raised unwrapped.

    Later failures, while the nursery is being cancelled, are dropped if all are `PsycheError`. Any other error is
    a bug, and then all errors are raised in trio's exception group. If the nursery is cancelled from outside
    meanwhile, the cancellation wins over a `PsycheError`.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        error = _choose(group)
    else:
        return
    raise error from error.__cause__  # `from` also hides the cancellation that ended the block


def _choose(group: BaseExceptionGroup[BaseException]) -> BaseException:
    errors = _flatten(group)
    if len(errors) == 1:
        return errors[0]
    cancelled, failures = group.split(trio.Cancelled)
    if failures is None or not all(isinstance(error, PsycheError) for error in _flatten(failures)):
        return group
    return cancelled or _flatten(failures)[0]


def _flatten(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for part in group.exceptions for leaf in _flatten(part)]
