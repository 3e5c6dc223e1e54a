"""The tutorial, as it stands on the page: every command run, in a fresh folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, open_reader, read_blocks
from kits.run_files import choose_neighbours

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def get_commands() -> Iterator[str]:
    return (block.text for block in read_blocks(PAGE) if block.language == "bash")


def test_every_command_of_the_tutorial_is_one_line() -> None:
    assert all(text.count("\n") == 1 for text in get_commands())


def test_the_tutorial_shows_pause_kill_and_resume() -> None:
    text = "".join(get_commands())
    assert all(word in text for word in ("psyche init", "run pause", "run resume", "kill -9", "client train"))


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    async with open_reader(tmp_path / "reader", {"19400": str(choose_neighbours())}, first=("ada", "ben")) as reader:
        for block in read_blocks(PAGE):
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
    assert {name: child.returncode for name, child in reader.terminals.items()} == {"server": 0, "ada": 130, "ben": 130}
