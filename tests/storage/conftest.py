"""A folder of files behind caddy, and a clock on which waits are short."""

from collections.abc import AsyncGenerator, Generator

import pytest
from kits.clocks import SteadyClock
from kits.storage.faults import FaultyWay, open_way
from kits.storage.servers import serve_folder, write_files


@pytest.fixture
def quick_clock() -> SteadyClock:
    return SteadyClock(rate=40.0)


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("served")
    write_files(folder)
    with serve_folder(folder) as address:
        yield address


@pytest.fixture
async def way(served: str) -> AsyncGenerator[FaultyWay]:
    async with open_way(served) as way:
        yield way
