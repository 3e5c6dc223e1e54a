"""Generates docs/configuration.md, with every key that users write, from `psyche.config`.

Every table of keys has an example with values from the schema; kinds with content have a table of kinds too.

python scripts/generate_settings.py           write them
python scripts/generate_settings.py --check   only report whether the page is stale
"""

import re
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import page_blocks
from pydantic import Tag
from pydantic.fields import FieldInfo

from psyche.config.profile import ProfileFile
from psyche.config.rewrite import format_value
from psyche.config.rules import find_unsupported
from psyche.config.schema import DataFile, RunFile
from psyche.config.table import Table, get_range, get_unit
from psyche.core.state.state import Model

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
FILES: Final[dict[str, type[Table]]] = {"run.toml": RunFile, "data.toml": DataFile, "profile.toml": ProfileFile}
KINDS: Final = {bool: "true or false", int: "whole number", float: "number", str: "text", bytes: "hex digits"}
PLURALS: Final = {float: "numbers", str: "texts", bytes: "texts of hex digits"}
LISTS: Final = frozenset({"access.authorization", "class"})
HEAD: Final = ("| key | value | unit | range | default | meaning |", "| --- | --- | --- | --- | --- | --- |")
KINDS_HEAD: Final = ("| {name} | written as | can run | meaning |", "| --- | --- | --- | --- |")
Found = tuple[str, type[Table]]


class Variant(NamedTuple):
    """A variant of a key: its name, its table (str if it has no content), and what it means."""

    name: str
    table: Any
    meaning: str


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
    return len(fields) == 1 and (fields[0][1].alias or "")[:1].isupper() and fields[0][1].alias != "LLM"


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
    if variants := find_variants(field):
        return format_choice(one.name for one in variants)
    if find_tables(field.annotation):
        return "tables" if get_origin(field.annotation) is list else "table"
    kind = next(one for one in find_types(field.annotation) if one is not type(None))
    if get_origin(kind) is Literal:
        return format_choice(get_args(kind))
    return f"list of {PLURALS[kind]}" if is_list(field.annotation) else KINDS[kind]


def format_choice(names: Iterable[str]) -> str:
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


def find_variants(field: FieldInfo) -> list[Variant]:
    """The variants of a key that is one of several."""
    found: list[Variant] = []
    for part in get_args(field.annotation):
        inner, *metadata = get_args(part) if get_origin(part) is Annotated else (part,)
        tag = next((one.tag for one in metadata if isinstance(one, Tag)), None)
        if tag is not None:
            text = next((one.description for one in metadata if isinstance(one, FieldInfo)), None)
            found.append(Variant(tag, inner, text or describe_table(inner) + "."))
    return found


def format_table(table: type[Table]) -> list[str]:
    return [*HEAD, *(format_row(get_key(name, one), one) for name, one in table.model_fields.items())]


def format_row(key: str, field: FieldInfo) -> str:
    cells = (describe_value(field), get_unit(field), get_range(field), describe_default(field), describe_meaning(field))
    return f"| `{key}` | {' | '.join(cells)} |"


def format_kinds(path: str, key: str, field: FieldInfo) -> list[str]:
    """The table of a key's variants; nothing if it has none."""
    variants = find_variants(field)
    if not variants:
        return []
    head, line = KINDS_HEAD
    place = f"{path}.{key}"
    rows = (f"| `{one.name}` | {format_spelling(place, one)} | {judge(place, one.name)} | {one.meaning} |"
            for one in variants)  # fmt: skip
    return ["", head.format(name=f"kinds of `{key}`"), line, *rows]


def format_spelling(place: str, variant: Variant) -> str:
    """How a variant of the key at `place` is written."""
    key = place.rpartition(".")[2]
    if variant.table is str:
        return f'`{key} = "{variant.name}"`'
    (field,) = variant.table.model_fields.values()
    if find_tables(field.annotation):
        return f"the table `[{place}.{variant.name}]`"
    return f"`{key} = {format_example_value({variant.name: field.examples[0]})}`"


def judge(place: str, name: str) -> str:
    """Whether this version can run a variant of the key at `place`; the server refuses it otherwise."""
    _, _, key, *below = place.split(".")  # model.LLM.key
    if below:
        return judge(f"model.LLM.{key}", below[0])
    model = Model()
    part: Any = getattr(model, key)
    kinds: type[IntEnum] = type(part.kind)
    part.kind = next(kind for kind in kinds if kind.name.replace("_", "").lower() == name.lower())
    if any(text.startswith(f"{place} ") for text in find_unsupported(model)):
        return "not yet"
    return "yes"


def format_example_value(value: Any) -> str:
    """A value of an example as TOML."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {format_example_value(one)}' for name, one in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(format_example_value, value))}]"
    return format_value(value)


def generate_example(path: str, table: type[Table]) -> list[str]:
    """A TOML block with all keys that are needed or have an example; nothing if a needed one has none."""
    fields = {get_key(name, one): one for name, one in table.model_fields.items()}
    if any(one.is_required() and not one.examples for one in fields.values()):
        return []
    pairs = [f"{key} = {format_example_value(one.examples[0])}" for key, one in fields.items() if one.examples]
    header = f"[[{path}]]" if path in LISTS else f"[{path}]"
    return ["", "```toml", *([header] if path else []), *pairs, "```"] if pairs else []


def generate_file(root: type[Table]) -> list[str]:
    """A file's tables one after another; a table that occurs in several places stands once."""
    places: dict[type[Table], list[str]] = {}
    for path, table in walk("", root):
        places.setdefault(table, []).append(path)
    lines: list[str] = []
    for table, paths in places.items():
        if paths != [""]:
            names = ", ".join(f"`[[{path}]]`" if path in LISTS else f"`[{path}]`" for path in paths)
            text = describe_table(table)
            lines += ["", f"### {names}", "", f"{text[:1].upper()}{text[1:]}."]
        lines += ["", *format_table(table)]
        lines += [line for name, one in table.model_fields.items()
                  for line in format_kinds(paths[0], get_key(name, one), one)]  # fmt: skip
        lines += [line for path in paths for line in generate_example(path, table)]
    return lines[1:]


BLOCKS: Final = {name: partial(generate_file, root) for name, root in FILES.items()}


if __name__ == "__main__":
    sys.exit(page_blocks.run("generate_settings.py", __doc__, sys.argv[1:], [PAGE], BLOCKS))
