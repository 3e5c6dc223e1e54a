"""No module needs another one that needs it; and the check of that sees every way to hide a circle."""

import sys
from pathlib import Path

import pytest
from kits.scripts import load

circles = load("check_circles")


def write_package(folder: Path, modules: dict[str, str]) -> None:
    (folder / "toy").mkdir()
    (folder / "toy" / "__init__.py").touch()
    for name, text in modules.items():
        (folder / "toy" / f"{name}.py").write_text(text)


def test_no_modules_of_the_package_import_each_other() -> None:
    assert circles.find_circles(circles.read_imports("psyche")) == []


@pytest.mark.parametrize(
    "way",
    [
        "from toy.first import A",
        "def late():\n    from toy import first",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.first import A",
    ],
)
def test_a_circle_is_found_however_it_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    modules = {
        "first": "from toy import second",
        "second": "import toy.third",
        "third": way,
        "fourth": "import toy.first",
    }
    write_package(tmp_path, modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    assert circles.find_circles(circles.read_imports("toy")) == [["toy.first", "toy.second", "toy.third"]]


def test_two_circles_are_told_apart() -> None:
    imports = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a", "c"}}
    assert circles.find_circles(imports) == [["a", "b"], ["c", "d"]]
