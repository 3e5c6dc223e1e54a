"""The page about fine-tuning as it stands: its script and every command run, in a fresh folder."""

import json
from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, DOCS, open_reader, read_blocks
from kits.run_files import choose_neighbours


@pytest.mark.e2e
async def test_the_page_about_fine_tuning_works_as_it_stands(tmp_path: Path) -> None:
    blocks = read_blocks(DOCS / "fine-tuning.md")
    (script,) = [block.text for block in blocks if block.language == "python"]
    async with open_reader(tmp_path / "reader", {"19400": str(choose_neighbours())}) as reader:
        (reader.folder / "rows.py").write_text(script, encoding="utf-8")
        for block in [block for block in blocks if block.language == "bash"]:
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
        path = reader.folder / "trained" / "events" / "client-1" / "events.jsonl"
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    trained = [event for event in events if event["kind"] == "trained"]
    assert len(trained) >= 30
    answers = trained[0]["tokens"] / 8
    assert answers < 32, "of 128 tokens of a row, only those of answers count"
