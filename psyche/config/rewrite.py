"""Changes to single values of a configuration file; everything else, comments included, stays as it is."""

import json
import tomllib
from collections.abc import Mapping

from psyche.config.scanner import KeyPath, find_lines, find_value_spans
from psyche.errors import ConfigError
from psyche.telemetry.text import describe_parse_failure

Value = str | int | float | bool


def set_values(text: str, values: Mapping[KeyPath, Value]) -> str:
    """Set these keys in a TOML document: replace present ones, add others below their table's header.

    Example: `set_values(text, {("config", "total_steps"): 61})`.

    Raises:
        ConfigError: `text` is not TOML, or the table of a key has no header of its own.
    """
    for path, value in values.items():
        try:
            tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"is not TOML: {describe_parse_failure(error)}") from error
        text = _set_value(text, path, value)
    return text


def _set_value(text: str, path: KeyPath, value: Value) -> str:
    span = find_value_spans(text).get(path)
    if span is not None:
        return text[: span[0]] + format_value(value) + text[span[1] :]
    lines = text.split("\n")
    added = f"{path[-1]} = {format_value(value)}"
    if len(path) == 1:
        return "\n".join([added, *lines])
    header = find_lines(text).get(path[:-1])
    if header is None or not lines[header - 1].lstrip().startswith("["):
        name = ".".join(map(str, path[:-1]))
        raise ConfigError(f"{name}.{path[-1]}: cannot be set, because there is no table [{name}]")
    return "\n".join([*lines[:header], added, *lines[header:]])


def set_variant(text: str, path: KeyPath, variant: str, values: Mapping[str, Value]) -> str:
    """Give a key of several forms, such as `checkpoint = { Local = { … } }`, this form instead of the one it has."""
    span = find_value_spans(text).get(path)
    if span is not None:
        fields = ", ".join(f"{key} = {format_value(value)}" for key, value in values.items())
        return f"{text[: span[0]]}{{ {variant} = {{ {fields} }} }}{text[span[1] :]}"
    lines = text.split("\n")
    found = find_lines(text)
    header = next(line for key, line in found.items() if key[:-1] == path and lines[line - 1].lstrip().startswith("["))
    following = min((line for line in found.values() if line > header and lines[line - 1].lstrip().startswith("[")),
                    default=len(lines) + 1)  # fmt: skip
    name = ".".join(map(str, path))
    table = [f"[{name}.{variant}]", *(f"{key} = {format_value(value)}" for key, value in values.items()), ""]
    return "\n".join([*lines[: header - 1], *table, *lines[following - 1 :]])


def add_table(text: str, name: str) -> str:
    """Add an empty table at the end of a TOML document that lacks it."""
    if (name,) in find_lines(text):
        return text
    return f"{text.rstrip()}\n\n[{name}]\n"


def format_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
