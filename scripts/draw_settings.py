"""Draws the tables of docs/configuration.md, with every key that users write, from `psyche.config`.

python scripts/draw_settings.py           write them
python scripts/draw_settings.py --check   only report whether the page is stale
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from psyche.config.profile import ProfileFile
from psyche.config.rewrite import format_value
from psyche.config.schema import DataFile, RunFile
from psyche.config.table import Table

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
FILES: Final[dict[str, type[Table]]] = {"run.toml": RunFile, "data.toml": DataFile, "profile.toml": ProfileFile}
KINDS: Final = {bool: "true or false", int: "whole number", float: "number", str: "text", bytes: "hex digits"}
PLURALS: Final = {float: "numbers", str: "texts", bytes: "texts of hex digits"}
LISTS: Final = frozenset({"access.authorization", "class"})
PLAIN: Final = frozenset({"Ephemeral", "Dummy", "DontShuffle"})  # variants without content
HEAD: Final = ("| key | value | default | meaning |", "| --- | --- | --- | --- |")
Found = tuple[str, type[Table]]


def find_types(annotation: Any) -> Iterator[Any]:
    """The types inside an annotation, without `Annotated`, unions and lists."""
    if get_origin(annotation) is Literal:
        yield annotation
        return
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for one in inner:
        if isinstance(one, type) or get_args(one):
            yield from find_types(one)


def find_tables(annotation: Any) -> list[type[Table]]:
    return [one for one in find_types(annotation) if isinstance(one, type) and issubclass(one, Table)]


def is_variant(table: type[Table]) -> bool:
    """Whether the table is only the name of a variant and its content."""
    fields = [*table.model_fields.items()]
    return len(fields) == 1 and fields[0][1].alias not in (None, "class", "LLM")


def get_key(name: str, field: FieldInfo) -> str:
    return field.alias or name


def walk(path: str, table: type[Table]) -> Iterator[Found]:
    """A table and all tables below it, each with its path in the file."""
    if not is_variant(table):
        yield path, table
    for name, field in table.model_fields.items():
        inner = f"{path}.{get_key(name, field)}" if path else get_key(name, field)
        for below in find_tables(field.annotation):
            yield from walk(inner, below)


def describe_value(field: FieldInfo) -> str:
    """Describe the permitted values: a kind of value, or the names of variants."""
    if tables := find_tables(field.annotation):
        variants = [get_key(*next(iter(one.model_fields.items()))) for one in tables if is_variant(one)]
        if not variants:
            return "tables" if get_origin(field.annotation) is list else "table"
        plain = [tag for tag in re.findall(r"Tag\(tag='(\w+)'\)", str(field.annotation)) if tag in PLAIN]
        return draw_choice(dict.fromkeys([*plain, *variants]))
    kind = next(one for one in find_types(field.annotation) if one is not type(None))
    if get_origin(kind) is Literal:
        return draw_choice(get_args(kind))
    return f"list of {PLURALS[kind]}" if is_list(field.annotation) else KINDS[kind]


def draw_choice(names: Iterable[str]) -> str:
    return "one of " + ", ".join(f"`{name}`" for name in names)


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(is_list, get_args(annotation)))


def describe_default(field: FieldInfo) -> str:
    if field.is_required():
        return "**needed**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value == [] or isinstance(value, Table | bytes):
        return "none"
    return f"`{format_value(value)}`"


def describe_meaning(field: FieldInfo) -> str:
    if field.description:
        return field.description
    (table,) = find_tables(field.annotation)
    return describe_table(table)


def describe_table(table: type[Table]) -> str:
    """The first line of the table's docstring, without the table's name."""
    text = (table.__doc__ or "").splitlines()[0].removesuffix(".")
    return re.sub(r"^`\[.*?\]+`[:;] ", "", text)


def draw_table(table: type[Table]) -> list[str]:
    return [
        *HEAD,
        *(
            f"| `{get_key(name, one)}` | {describe_value(one)} | {describe_default(one)} | {describe_meaning(one)} |"
            for name, one in table.model_fields.items()
        ),
    ]


def draw_file(root: type[Table]) -> list[str]:
    """Draw a file's tables one after another; a table that occurs in several places is drawn once."""
    places: dict[type[Table], list[str]] = {}
    for path, table in walk("", root):
        places.setdefault(table, []).append(path)
    lines: list[str] = []
    for table, paths in places.items():
        if paths != [""]:
            names = ", ".join(f"`[[{path}]]`" if path in LISTS else f"`[{path}]`" for path in paths)
            text = describe_table(table)
            lines += ["", f"### {names}", "", f"{text[:1].upper()}{text[1:]}."]
        lines += ["", *draw_table(table)]
    return lines[1:]


def draw_page(text: str) -> str:
    """The page with every block redrawn.

    Raises:
        ValueError: the markers of a file's block do not occur exactly once.
    """
    for name, root in FILES.items():
        block = "\n" + "\n".join(draw_file(root)) + "\n\n"
        pattern = re.compile(rf"(<!-- BEGIN {name} -->\n).*?(<!-- END {name} -->)", re.DOTALL)
        text, times = pattern.subn(lambda match, block=block: match[1] + block + match[2], text)
        if times != 1:
            raise ValueError(f"the markers of {name!r} are there {times} times, must be once")
    return text


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    drawn = draw_page(text)
    if arguments == ["--check"]:
        print("up to date" if drawn == text else "stale: run `python scripts/draw_settings.py`")
        return int(drawn != text)
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
