"""The scanner finds the line of every key that tomllib reads, whatever the document looks like."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.config.rewrite import format_value, set_values
from psyche.config.scanner import KeyPath, find_lines, find_value_spans
from psyche.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "config").glob("*/*.toml"))
AWKWARD = '''\
# comment = "no key"
title = "a # no comment" # a comment = 1
"quoted key" . 'and another' = 1
dotted.deep.key = [1, 2, # three
  3, { inner = "]" }, """
long
"""]
after = 1979-05-27 07:32:00
long = """
[no.table]
key = 1 \\""" more
""""
literal = \'\'\'
a = 'b' \\\'\'\'
empty = {}
point = { x = 1, y.z = [ {w = 2} ] }

[ table . "sub table" ]
escaped = "quote \\" = [x"
single = 'C:\\'
[[items]]
name = 1
[items.inner]
deep = true
[[items]]
name = 2
[[items.more]]
last = 1
'''


def walk(node: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path of the document."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from walk(inner, (*path, key))


def test_every_key_of_an_awkward_document_has_its_line() -> None:
    lines = find_lines(AWKWARD)
    assert set(walk(tomllib.loads(AWKWARD))) == set(lines)
    assert lines["quoted key", "and another"] == 3
    assert lines["dotted", "deep", "key", 3, "inner"] == 5
    assert lines["after",] == 8
    assert lines["literal",] == 13
    assert lines["point", "y", "z", 0, "w"] == 16
    assert lines["table", "sub table", "escaped"] == 19
    assert lines["items", 0, "inner", "deep"] == 24
    assert lines["items", 1, "more", 0, "last"] == 28


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_key_of_our_own_files_has_its_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = find_lines(text)
    assert set(walk(tomllib.loads(text))) == set(lines)
    for key, line in lines.items():
        if isinstance(key[-1], str):
            assert key[-1] in text.split("\n")[line - 1]


@given(st.text(max_size=200))
def test_no_text_makes_the_scanner_fail_or_stand_still(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(walk(tomllib.loads(text))) <= set(find_lines(text))


keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
values = st.one_of(
    st.booleans(), st.integers(-(1 << 62), 1 << 62), st.floats(allow_nan=False, allow_infinity=False), st.text()
)


@given(st.dictionaries(keys, values, max_size=6))
def test_values_are_written_so_that_toml_reads_them_back(content: dict[str, Any]) -> None:
    text = "".join(f"{format_value(key)} = {format_value(value)}\n" for key, value in content.items())
    assert tomllib.loads(text) == content
    assert set(find_value_spans(text)) == {(key,) for key in content}


def test_setting_a_value_changes_nothing_else() -> None:
    text = "[a] # first\nx = 1 # one\ny = { z = 'old' }\n\n[b.c]\nw = [1,\n 2] # list\n"
    changed = set_values(text, {("a", "x"): 2.5, ("a", "y", "z"): 'new "1"', ("b", "c", "w"): True})
    assert changed == '[a] # first\nx = 2.5 # one\ny = { z = "new \\"1\\"" }\n\n[b.c]\nw = true # list\n'


def test_a_value_that_is_not_there_is_added_to_its_table() -> None:
    text = "x = 1\n[a.b]\ny = 2\n"
    assert tomllib.loads(set_values(text, {("a", "b", "z"): 3, ("w",): "v"})) == {
        "w": "v",
        "x": 1,
        "a": {"b": {"y": 2, "z": 3}},
    }
    with pytest.raises(ConfigError, match=r"there is no table \[c\]"):
        set_values(text, {("c", "z"): 3})
    with pytest.raises(ConfigError, match="is not TOML"):
        set_values("x = ", {("c",): 3})
