"""The tutorial, as it stands on the page: every command run, in a fresh folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, Reader, read_blocks
from kits.run_files import choose_neighbours

from psyche.testnet.process import stop_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def get_commands() -> Iterator[str]:
    return (block.text for block in read_blocks(PAGE) if block.language == "bash")


def test_every_command_of_the_tutorial_is_one_line() -> None:
    assert all(text.count("\n") == 1 for text in get_commands())


def test_the_tutorial_shows_pause_kill_and_resume() -> None:
    text = "".join(get_commands())
    assert all(word in text for word in ("psyche init", "run pause", "run resume", "kill -9", "client train"))


@pytest.mark.e2e
@pytest.mark.slow
async def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader", {"19400": str(choose_neighbours())})
    reader.folder.mkdir()
    try:
        for block in read_blocks(PAGE):
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
    except BaseException:
        for name, child in reader.terminals.items():
            print(f"--- {name}", *child.get_last_lines(30), sep="\n")
        raise
    finally:
        with trio.move_on_after(60) as scope:
            scope.shield = True
            await stop_all([reader.terminals[name] for name in ("ada", "ben") if name in reader.terminals], 10)
            await stop_all(list(reader.terminals.values()), 10)
    assert {name: child.returncode for name, child in reader.terminals.items()} == {"server": 0, "ada": 130, "ben": 130}
