"""Translation of pydantic's errors into problems that people can act on: file, line, key, rule, and remedy."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from pydantic_core import ErrorDetails

from psyche.config.problems import Problem
from psyche.config.scanner import KeyPath
from psyche.config.table import Table, describe_key
from psyche.telemetry.text import show_value

_NEAR = 0.5  # least similarity for suggesting one name instead of listing all

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "finite_number": "a finite number",
}


def explain(error: ErrorDetails, raw: Mapping[str, Any], root: type[Table], lines: Mapping[KeyPath, int],
            file: Path) -> Problem:  # fmt: skip
    """Translate one of pydantic's errors into a problem of `file`, whose parsed content is `raw`."""
    path = get_toml_path(error["loc"], raw)
    if error["type"] == "model_type" and error["loc"][-1:] != path[-1:]:
        what, right = _describe_bare_variant(str(error["loc"][-1]), path, root)
    else:
        what, right = _describe(error, path, root)
    return Problem(file, get_line(path, lines), format_key(path), what, right)


def get_toml_path(loc: Sequence[str | int], raw: object) -> KeyPath:
    """The path of keys in the file: pydantic's location without the tags of its unions."""
    path: list[str | int] = []
    node = raw
    for place, part in enumerate(loc):
        if isinstance(node, dict) and part in node:
            node = cast("dict[str | int, object]", node)[part]
        elif isinstance(node, list) and isinstance(part, int) and part < len(cast("list[object]", node)):
            node = cast("list[object]", node)[part]
        elif place < len(loc) - 1 or not isinstance(node, dict):
            continue  # the tag of a union
        path.append(part)
    return tuple(path)


def get_line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """The line of a key; for a missing key, the line of its table."""
    for length in range(len(path), 0, -1):
        if line := lines.get(path[:length]):
            return line
    return None


def format_key(path: KeyPath) -> str:
    """A key as people write it: `config.min_clients`, `shuffle_seed[3]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggest(name: str, known: Sequence[str]) -> str:
    """Suggest the most similar known name, or list all known names if none is similar."""
    near = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {next(k for k in known if k.lower() == near[0])}?"
    return "known here: " + ", ".join(sorted(known))


def get_known_keys(root: type[Table], path: KeyPath) -> list[str]:
    return sorted({field.alias or name for table in _find_tables_at(root, path)
                   for name, field in table.model_fields.items()})  # fmt: skip


def _find_tables_at(root: type[Table], path: KeyPath) -> list[type[Table]]:
    tables = [root]
    for part in path:
        tables = [t for table in tables for t in _get_tables_below(table, part)]
    return tables


def _get_tables_below(table: type[Table], key: str | int) -> Iterator[type[Table]]:
    if isinstance(key, int):
        yield table  # an item of a list of tables
    for name, field in table.model_fields.items():
        if (field.alias or name) == key:
            yield from _find_tables(field.annotation)


def _find_tables(annotation: object) -> Iterator[type[Table]]:
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield annotation
    for inner in get_args(annotation):
        yield from _find_tables(inner)


def _get_description(root: type[Table], path: KeyPath) -> str:
    for table in _find_tables_at(root, path[:-1]):
        for name, field in table.model_fields.items():
            if path and (field.alias or name) == path[-1]:
                return describe_key(field)
    return ""


def _describe(error: ErrorDetails, path: KeyPath, root: type[Table]) -> tuple[str, str]:
    kind, value, context = error["type"], _show(error["input"]), error.get("ctx", {})
    description = _get_description(root, path)
    known = get_known_keys(root, path)
    if kind == "extra_forbidden":
        return "unknown key", suggest(str(path[-1]), get_known_keys(root, path[:-1]))
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in str(context["expected_tags"]).split(",")]
        return f"{context['tag']!r} is unknown", suggest(str(context["tag"]), tags)
    table = f"a table [{format_key(path)}]"
    answers = {
        "missing": ("is missing", f"add it: {description or table}"),
        "union_tag_not_found": ("must name exactly one variant", "one of " + ", ".join(known)),
        "model_type": (f"must be a table, is {value}", f"{table} with {', '.join(known)}"),
        "literal_error": (f"{value} is unknown", f"one of {context.get('expected')}"),
        "greater_than_equal": (f"is {value}, at least {context.get('ge')}", description),
        "less_than_equal": (f"is {value}, at most {context.get('le')}", description),
        "greater_than": (f"is {value}, must be above {context.get('gt')}", description),
        "less_than": (f"is {value}, must be below {context.get('lt')}", description),
        "string_too_short": ("is empty", description),
    }
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, is {value}", description
    return answers.get(kind, (_lower_first(error["msg"]), description))


def _describe_bare_variant(variant: str, path: KeyPath, root: type[Table]) -> tuple[str, str]:
    inside = (*path, variant)
    known = ", ".join(get_known_keys(root, inside))
    table = f"a table [{format_key(inside)}] with {known}" if known else f"{{ {variant} = ... }}"
    return f"{variant!r} has content of its own", table


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    return show_value(value)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
