"""Open files: the limit that a program may raise itself is raised, and a shortage is one line a minute."""

import errno
import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psyche.wire.line import descriptors


@contextmanager
def limited_to(soft: int) -> Iterator[None]:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


def test_the_limit_is_raised_as_far_as_the_system_lets_it() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with limited_to(200):
        descriptors.raise_limit()
        assert descriptors.get_limit() == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


def test_places_are_what_open_spare_and_kept_files_leave() -> None:
    limit = 200 + max(int(one.name) for one in Path("/proc/self/fd").iterdir())  # of other tests too
    with limited_to(limit):
        left = descriptors.count_places()
        taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
        try:
            assert descriptors.count_places(kept=3) == left - 8
            assert descriptors.count_places(kept=1_000) == 0
            assert not descriptors.is_spare(taken[-1])
            assert descriptors.is_spare(limit - descriptors.SPARE // 2)
        finally:
            for one in taken:
                os.close(one)


def test_a_shortage_that_lasts_is_told_in_one_line_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    descriptors.raise_limit()
    log = logging.getLogger("trio.serve_listeners")
    for _ in range(120):
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError:
            log.exception("accept returned %s (%s); retrying in %s seconds", "EMFILE", "Too many open files", 0.1)
    (record,) = caplog.records
    assert record.exc_info is None
    assert (
        "EMFILE (Too many open files), tried again every 0.1 s; allow more before you start it: ulimit -n"
        in caplog.text
    )
