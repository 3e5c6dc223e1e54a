"""docs/configuration.md says which keys there are, what they take and what they are when left out."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kits.scripts import load

from psyche.config.load import LoadedRun, load_data, load_run
from psyche.config.problems import ConfigProblems
from psyche.config.profile import load_profile
from psyche.config.rewrite import Value, set_values
from psyche.config.rules import find_unsupported
from psyche.config.scanner import KeyPath
from psyche.core.state.state import OptimizerKind, ScheduleKind

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.*?) \| (.*?) \| (.+?) \| (.+) \|$", re.MULTILINE)
KIND = re.compile(r"^\| `(\w+)` \| (.+?) \| (yes|not yet) \| .+ \|$", re.MULTILINE)
EXAMPLE = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = (ROOT / "config" / "demo" / "run.toml").read_text(encoding="utf-8")
CHOICES = ("checkpoint", "data_location", "lr_schedule", "optimizer")  # keys of [model.LLM] that have variants


def read_rows(heading: str) -> dict[str, tuple[str, ...]]:
    """The rows of the table below a heading, by key."""
    block = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2].partition("\n#")[0]
    return {row[0]: row[1:] for row in ROW.findall(block)}


def test_the_page_is_that_of_the_code() -> None:
    script = load("generate_settings")
    assert script.page_blocks.find_stale([PAGE], script.BLOCKS) == {}, (
        "stale: run `python scripts/generate_settings.py`"
    )


@pytest.mark.parametrize(
    ("heading", "key", "row"),
    [
        ("`[config]`", "straggler_percent",
         ("whole number", "percent", "0 to 65,535", "`150`",
          ("how long a round waits for the slowest: percent of the time that two thirds of the members took; "
           "0: for all"))),
        ("`[config]`", "total_steps",
         ("whole number", "steps", "1 to 2^32 - 1", "**needed**",
          "step at which the run ends; the steps before it are trained, beginning with 1")),
        ("`[config]`", "data_root",
         ("hex digits", "", "64 hex digits", "none",
          "blob id of the data manifest; by itself that of data.manifest beside the file")),
        ("`[model.LLM.data_location.Http]`", "shuffle",
         ("one of `DontShuffle`, `Seeded`", "", "", "**needed**",
          'the order, "DontShuffle" or { Seeded = [32 numbers] }')),
        ("`[[access.authorization]]`", "delegates",
         ("list of texts of hex digits", "", "at most 4,096, each 64 hex digits", "none",
          "public keys of its machines")),
        ("`[[class]]`", "share",
         ("number", "", "above 0 to 1", "none", "share of the machines left over by counts; or count")),
    ],
)  # fmt: skip
def test_a_row_tells_kind_unit_range_default_and_meaning(heading: str, key: str, row: tuple[str, ...]) -> None:
    assert read_rows(heading)[key] == row


def test_a_table_that_stands_at_two_places_is_drawn_once() -> None:
    assert "final_lr" in read_rows("`[model.LLM.lr_schedule.Linear]`, `[model.LLM.lr_schedule.Cosine]`")


def read_block(name: str) -> str:
    """What the page says of one file."""
    return PAGE.read_text(encoding="utf-8").partition(f"<!-- BEGIN {name} -->")[2].partition(f"<!-- END {name} -->")[0]


def find_place(example: str) -> str:
    """The table that an example is about, as in `model.LLM.optimizer.Distro`."""
    return example.partition("[")[2].partition("]")[0].lstrip("[") if example.startswith("[") else ""


def load_example(example: str, folder: Path) -> LoadedRun:
    """Load the demo's run with an example in the place of the demo's own table.

    Raises:
        ConfigProblems: the real loader refuses it.
    """
    place = find_place(example)
    levels = place.split(".")
    choice = ".".join(levels[:3]) if len(levels) > 3 else place
    kept = [part for part in re.split(r"(?m)^(?=\[)", RUN) if not part.startswith((f"[{choice}.", f"[{choice}]"))]
    return load_run(write(folder, "run.toml", "".join(kept) + "\n" + get_parent(place) + example))


def get_parent(place: str) -> str:
    """What a table needs above it: [model.LLM.data_location.Http] for the location of its files."""
    if ".location." not in place:
        return ""
    return '[model.LLM.data_location.Http]\ntoken_size_in_bytes = "TwoBytes"\nshuffle = "DontShuffle"\n'


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


RUN_EXAMPLES = {find_place(example): example for example in EXAMPLE.findall(read_block("run.toml"))}
KINDS = {key: KIND.findall(read_block("run.toml").partition(f"| kinds of `{key}` |")[2].partition("\n\n")[0])
         for key in CHOICES}  # fmt: skip


@pytest.mark.parametrize("place", RUN_EXAMPLES)
def test_an_example_loads_with_the_values_that_it_shows(place: str, tmp_path: Path) -> None:
    if "P2P" in place:  # S10: the schema knows it, and the core refuses it in a new run
        return
    example = RUN_EXAMPLES[place]
    run = load_example(example, tmp_path)
    shown: Any = tomllib.loads(example)
    for level in place.split("."):
        shown = shown[level]
    if place == "config":
        assert {name: getattr(run.config, name) for name in shown} == shown
    if place.startswith("model.LLM.lr_schedule."):
        assert {name: getattr(run.model.lr_schedule, name) for name in shown} == shown


def test_every_schedule_and_optimizer_has_an_example(tmp_path: Path) -> None:
    schedules = [place for place in RUN_EXAMPLES if place.startswith("model.LLM.lr_schedule.")]
    optimizers = [place for place in RUN_EXAMPLES if place.startswith("model.LLM.optimizer.")]
    loaded = [load_example(RUN_EXAMPLES[place], tmp_path).model for place in (*schedules, *optimizers)]
    assert {model.lr_schedule.kind for model in loaded} == set(ScheduleKind)
    assert {model.optimizer.kind for model in loaded} == set(OptimizerKind) - {OptimizerKind.DUMMY}


def spell(key: str, spelling: str) -> str:
    """The text of a run.toml for what a table of kinds says is written."""
    if spelling.startswith("the table"):
        return RUN_EXAMPLES.get(spelling.split("`[")[1].rstrip("]`"), spelling.split("`")[1] + "\n")
    return f"[model.LLM]\n{spelling.strip('`')}\n"


@pytest.mark.parametrize(("key", "name"), [(key, row[0]) for key in CHOICES for row in KINDS[key]])
def test_a_kind_is_written_and_runs_as_its_table_says(key: str, name: str, tmp_path: Path) -> None:
    spelling, runs = next(row[1:] for row in KINDS[key] if row[0] == name)
    if name in ("Ephemeral", "P2P", "P2PGcs"):  # old checkpoints, that no new run can begin with
        assert runs == "not yet"
        return
    text = re.sub(rf"(?ms)^\[model\.LLM\.{key}\b.*?(?=^\[|\Z)", "", RUN)
    added = spell(key, spelling)
    if added.startswith("[model.LLM]\n"):
        text = text.replace("[model.LLM]\n", added)
    else:
        text += "\n" + added
    run = load_run(write(tmp_path, "run.toml", text))
    assert getattr(run.model, key).kind.name.replace("_", "").lower() == name.lower()
    assert (find_unsupported(run.model) == []) == (runs == "yes")


def test_the_examples_of_the_other_files_load(tmp_path: Path) -> None:
    (data,) = EXAMPLE.findall(read_block("data.toml"))
    loaded = load_data(write(tmp_path, "data.toml", data))
    assert (loaded.sequence_length, loaded.token_size_bytes) == (512, 2)
    profile = "\n".join(EXAMPLE.findall(read_block("profile.toml")))
    (one,) = load_profile(write(tmp_path, "profile.toml", profile)).classes
    assert (one.name, one.share) == ("gaming PC", 1.0)


NUMBER = r"\d[\d,]*|2\^\d+ - 1"
RANGE = re.compile(rf"({NUMBER}|\w+) to ({NUMBER}|\w+)")


def parse_limit(text: str, values: Mapping[str, Any]) -> int:
    """A limit of a range: a number, or the value of another key."""
    if text.startswith("2^"):
        return 2 ** int(text[2:].partition(" ")[0]) - 1
    return int(text.replace(",", "")) if text[0].isdigit() else values[text]


def read_ranges() -> list[tuple[str, str]]:
    return [(key, row[2]) for key, row in read_rows("`[config]`").items() if RANGE.fullmatch(row[2])]


@pytest.mark.parametrize(("key", "told"), read_ranges())
def test_a_range_is_what_the_loader_takes(key: str, told: str, tmp_path: Path) -> None:
    """Both ends are taken; what lies one beyond them is refused, and the message names the key."""
    values = tomllib.loads(RUN)["config"] | {"init_min_clients": 3, "min_clients": 2}
    matched = RANGE.fullmatch(told)
    assert matched is not None
    least, most = (parse_limit(text, values) for text in matched.groups())
    others = get_room(key)

    def get_problem(value: int) -> str:
        changed: dict[KeyPath, Value] = {("config", name): number for name, number in {**others, key: value}.items()}
        try:
            load_run(write(tmp_path, "run.toml", set_values(RUN, changed)))
        except ConfigProblems as error:
            return str(error)
        return ""

    assert (get_problem(least), get_problem(most)) == ("", "")
    assert f" {key}" in get_problem(least - 1).replace("config.", "")
    assert f" {key}" in get_problem(most + 1).replace("config.", "")


def get_room(key: str) -> dict[str, int]:
    """Values of other keys with which this one may have every value of its range."""
    if key == "global_batch_size_start":
        return {"global_batch_size_end": 65_535}
    if key == "rounds_per_epoch":
        return {"epoch_time": 1_000}
    if key == "epoch_time":
        return {"warmup_time": 0}
    return {}
