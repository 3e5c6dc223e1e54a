"""A nursery that ends with one error, as trio's own ends with a group of them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import trio

from psyche.errors import PsycheError


@asynccontextmanager
async def open_plain_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery in which the first failure, of a task or of the block, ends the rest and comes out as it is.

    What fails after it, while it is being ended, is dropped, unless it is no `PsycheError`: then a bug is among
    the errors, and all of them come out in trio's group. Where somebody cancels the nursery from outside
    meanwhile, the cancellation wins over a `PsycheError`.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        error = _choose(group)
    else:
        return
    raise error from error.__cause__  # which also hides the cancellation that the block has ended with


def _choose(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a nursery's group comes to; trio lists errors in the order in which they happened."""
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
