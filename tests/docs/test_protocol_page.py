"""docs/protocol.md and its reference say what the code does: tables, rules, the diagram, limits, what is not used."""

import copy
import importlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from kits.runs import Run, build_run
from kits.scripts import load

from psyche.core.committee.seeds import Entropy
from psyche.core.rules.apply import PHASES
from psyche.core.state.messages import Pause, Resume
from psyche.core.state.state import RunState

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "protocol.md"
REFERENCE = ROOT / "docs" / "protocol-reference.md"
SCRIPT = load("generate_layout")
MOST_WORDS = 4_300  # of the page, its diagram and tables included: twenty minutes
RULE = re.compile(r"\b[LTRWCASEHMPKVN]\d{1,2}\b")
RULE_IN_TEST_NAME = re.compile(r"(?<=_)[trwcasehmpkvn]\d{1,2}(?=_|\b)")
TEST_NAME = re.compile(r"def (test_\w+)")
EDGE = re.compile(r"^    (\w+) --> (\w+)(?:: (\w+))?$", re.MULTILINE)
LIMIT = re.compile(r"^\| `([a-z_.]+)\.([A-Z_]+)` \| ([\d,.]+) \|", re.MULTILINE)
SECTION = re.compile(r"`docs/protocol-reference\.md`,? (?:section )?(\d+)(?:\.(\d))?")
Edge = tuple[str, str, str]


@cache
def read_page() -> str:
    """The story."""
    return PAGE.read_text(encoding="utf-8")


@cache
def read_reference() -> str:
    """Every rule and byte."""
    return REFERENCE.read_text(encoding="utf-8")


def iterate_sources() -> Iterator[tuple[Path, str]]:
    """Code and tests, without the tests of the documentation itself."""
    for folder in (ROOT / "psyche", ROOT / "tests"):
        for path in sorted(folder.rglob("*.py")):
            if (ROOT / "tests" / "docs") not in path.parents:
                yield path, path.read_text(encoding="utf-8")


@cache
def find_names_in_code() -> dict[str, str]:
    """Every rule that code or a test names, with one of the files that do."""
    found: dict[str, str] = {}
    for path, text in iterate_sources():
        names = set(RULE.findall(text))
        for test_name in TEST_NAME.findall(text):
            names |= {name.upper() for name in RULE_IN_TEST_NAME.findall(test_name)}
        found |= dict.fromkeys(names, str(path.relative_to(ROOT)))
    return found


def get_names_without_code() -> set[str]:
    """The names of which the page says that no code carries them."""
    table = read_reference().partition("stand in no code")[2].partition("\n## ")[0]
    return {row.split("|")[1].strip() for row in table.splitlines() if RULE.match(row.removeprefix("| "))}


def test_the_tables_are_those_of_the_code() -> None:
    stale = SCRIPT.page_blocks.find_stale([PAGE, REFERENCE], SCRIPT.BLOCKS)
    assert stale == {}, "a page is stale: run `python scripts/generate_layout.py`"


def test_the_story_is_short() -> None:
    assert len(read_page().split()) <= MOST_WORDS, "what is for looking up belongs to docs/protocol-reference.md"


def test_every_rule_that_the_story_names_is_in_the_reference() -> None:
    assert set(RULE.findall(read_page())) <= set(RULE.findall(read_reference()))


def test_every_rule_on_the_page_is_named_in_code_or_tests() -> None:
    lacking = set(RULE.findall(read_reference())) - find_names_in_code().keys() - get_names_without_code()
    assert not lacking, f"{sorted(lacking)}: no code or test names them; name them there, or say in section 15 why not"


def test_every_rule_named_in_code_or_tests_is_on_the_page() -> None:
    lacking = {name: path for name, path in find_names_in_code().items() if name not in RULE.findall(read_reference())}
    assert not lacking, f"{lacking}: docs/protocol-reference.md does not know these rules"


def test_rules_that_the_page_calls_unbuilt_are_named_in_no_code() -> None:
    built = {name: find_names_in_code()[name] for name in get_names_without_code() & find_names_in_code().keys()}
    assert not built, f"{built}: section 15 says that no code carries these names; describe the rule and take it out"


def test_every_rule_is_told_once() -> None:
    told = re.findall(r"^- \*\*([A-Z]\d+) ", read_reference(), re.MULTILINE)
    assert len(told) == len(set(told))
    letters = {name[0] for name in told}
    assert letters == set("LTRWCASEHMPKNDV")
    elsewhere = {name for name in RULE.findall(read_reference()) if name not in told and name[0] in letters}
    assert elsewhere <= get_names_without_code() | {"R6"}, "a rule is mentioned but told nowhere"


def test_sections_that_the_code_points_to_are_there() -> None:
    pointers = {(path.name, *found) for path, text in iterate_sources() for found in SECTION.findall(text)}
    assert pointers
    for name, number, item in pointers:
        section = re.search(rf"^## {number}\. .*?(?=^## |\Z)", read_reference(), re.MULTILINE | re.DOTALL)
        assert section, f"{name} points to section {number}"
        assert not item or re.search(rf"^{item}\. ", section[0], re.MULTILINE), f"{name} points to {number}.{item}"


# --- the diagram --------------------------------------------------------------------------------------------


@dataclass
class WatchedRun(Run):
    """A run that notes how its state changes, and by what: a command, or nothing but a tick."""

    edges: set[Edge] = field(default_factory=set)

    def tick(self, entropy: Entropy | str = "drawn") -> bool:
        before = self.state.run_state
        changed = super().tick(entropy)
        self.note(before, "")
        return changed

    def command(self, name: str) -> None:
        before = self.state.run_state
        self.apply(Pause() if name == "pause" else Resume())
        self.note(before, name)

    def note(self, before: RunState, label: str) -> None:
        if self.state.run_state is not before:
            self.edges.add((before.name, self.state.run_state.name, label))


def build_watched(**config: int) -> WatchedRun:
    return WatchedRun(build_run(3, rounds_per_epoch=2, **config).state)


def drive_into(run: WatchedRun, wanted: RunState) -> WatchedRun:
    """Let honest members bring the run to a state, tick by tick."""
    for _ in range(50):
        if run.state.run_state is wanted:
            return run
        if run.state.run_state is RunState.WARMUP and not run.state.epoch.ready_len:
            run.show(*run.get_members())
        if run.state.run_state is RunState.ROUND_TRAIN and not run.state.current.witnesses:
            run.now += 1
            run.witness_all()
        if not run.tick():
            run.now += 5
    raise AssertionError(f"the run does not come to {wanted.name}")


def drive_runs() -> set[Edge]:
    """All ways in which the state can change."""
    states = (RunState.WAITING_FOR_MEMBERS, RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
    runs = [build_watched(), build_watched(total_steps=3), build_watched()]
    drive_into(drive_into(runs[0], RunState.COOLDOWN), RunState.WAITING_FOR_MEMBERS)
    drive_into(runs[1], RunState.FINISHED)
    drive_into(runs[2], RunState.WARMUP).wait(runs[2].state.config.warmup_time)  # nobody loads anything
    for wanted in (*states, RunState.COOLDOWN):
        for steps in (1_000, 3):  # a run that goes on, one that is done when it is resumed
            run = drive_into(build_watched(total_steps=steps), wanted)
            run.command("pause")
            drive_into(run, RunState.PAUSED).command("resume")
            runs.append(run)
    new = WatchedRun(copy.deepcopy(build_run().state))
    new.state.run_state = RunState.UNINITIALIZED
    new.command("resume")
    return new.edges.union(*(run.edges for run in runs))


def test_the_diagram_has_the_changes_of_state_that_runs_make() -> None:
    drawn = set(EDGE.findall(read_page()))
    assert drawn == drive_runs()
    by_tick = {source for source, _, label in drawn if not label}
    assert by_tick == {state.name for state in PHASES}


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "name", "value"), LIMIT.findall(REFERENCE.read_text(encoding="utf-8")))
def test_limits_have_the_values_of_the_code(module: str, name: str, value: str) -> None:
    assert getattr(importlib.import_module(f"psyche.{module}"), name) == Fraction(value.replace(",", ""))


def test_the_table_of_limits_is_read_whole() -> None:
    rows = read_reference().partition("## 17. Limits")[2].partition("\n## ")[0].count("\n| `")
    assert rows == len(LIMIT.findall(read_reference())) > 30


def test_fields_marked_as_not_used_are_used_nowhere_in_core() -> None:
    plumbing = {"state.py", "settings.py", "tables.py", "header.py", "owner.py", "config_checks.py"}
    core = [path for path, _ in iterate_sources() if path.relative_to(ROOT).parts[:2] == ("psyche", "core")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in core if path.name not in plumbing)
    read_by_elections = {"joined_height", "numeric_class", "flags"}  # always zero all the same
    read_by_elections |= {"false_challenges"}  # of slots, which have a field of this name too
    for label, names in SCRIPT.NOT_USED_YET.items():
        for name in names - read_by_elections:
            assert not re.search(rf"\.{name}\b", text), f"{label}.{name} is used: take it out of NOT_USED_YET"
    for name in ("joined_height",):
        assert not re.search(rf"\b{name} ?=[^=]", text), f"{name} is set: take it out of NOT_USED_YET"
