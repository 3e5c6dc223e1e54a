"""Reads lines of LLVM IR as text: types, arguments, calls. What it does not know it refuses."""

import re
from typing import NamedTuple

VALUE = r'(%[\w.$"-]+)'
FLAGS = r"(?:(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|nneg|nuw|nsw|exact|disjoint|samesign) )*"  # of operations
_SCALAR = re.compile(r"\s*(i\d+|ptr|void|double|float|metadata|label|token)\b")
_ATTRIBUTE = re.compile(r"\s*(align\s+\d+|[a-z_]+)(?=[\s(]|$)")
_BEGINNINGS_OF_VALUES = """true false null undef poison zeroinitializer none getelementptr inttoptr ptrtoint bitcast add
    sub xor trunc select blockaddress splat"""
_VALUES = frozenset(_BEGINNINGS_OF_VALUES.split())
_CALL = re.compile(rf"^\s*(?:{VALUE} = )?(?:tail |musttail |notail )?call (.*)$")
_RESULT_ATTRIBUTE = re.compile(
    r"(fastcc|coldcc|noundef|nonnull|noalias|zeroext|signext|align \d+|fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|"
    r"(?:range|dereferenceable|dereferenceable_or_null|nofpclass|captures)(?=\())\s*"
)
_CALLEE = re.compile(r'\s*([@%](?:"[^"]*"|[\w.$-]+))\(')
_OPENING, _CLOSING = "([{<", ")]}>"


class Typed(NamedTuple):
    """A value with its type: `i64 noundef %x` is ("i64", "%x")."""

    type: str
    value: str


class Call(NamedTuple):
    """A call, in parts."""

    target: str | None  # where the result goes
    convention: str  # "fastcc " or nothing
    result: str  # its type
    callee: str
    arguments: list[str]


def find_closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    depth, quoted = 0, False
    for index in range(start, len(text)):
        character = text[index]
        if character == '"':
            quoted = not quoted
        elif not quoted and character in _OPENING:
            depth += 1
        elif not quoted and character in _CLOSING:
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"a bracket is not closed: {text}")


def split_arguments(text: str) -> list[str]:
    """The parts between commas that stand outside of brackets and quotes."""
    parts, start, index, quoted = [], 0, 0, False
    while index < len(text):
        character = text[index]
        if character == '"':
            quoted = not quoted
        elif not quoted and character in _OPENING:
            index = find_closing(text, index)
        elif not quoted and character == ",":
            parts.append(text[start:index].strip())
            start = index + 1
        index += 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


def take_type(text: str) -> tuple[str, str]:
    """The type that the text begins with, and the rest of the text."""
    text = text.lstrip()
    if text[0] in "{[<":
        end = find_closing(text, 0)
        return text[: end + 1], text[end + 1 :]
    found = _SCALAR.match(text)
    if found is None:
        raise ValueError(f"no type is known that begins like {text[:80]!r}")
    return found.group(1), text[found.end() :]


def read_typed(argument: str) -> Typed:
    """An argument without its attributes."""
    kind, text = take_type(argument)
    while (found := _ATTRIBUTE.match(text)) and found.group(1) not in _VALUES:
        text = text[found.end() :]
        if text.startswith("("):
            text = text[find_closing(text, 0) + 1 :]
    return Typed(kind, text.strip())


def count_registers(kind: str) -> int:
    """How many 64-bit registers a value of this type takes."""
    if kind[0] == "{":
        return sum(map(count_registers, split_arguments(kind[1:-1])))
    if found := re.fullmatch(r"\[(\d+) x (.*)\]", kind):
        return int(found.group(1)) * count_registers(found.group(2))
    if found := re.fullmatch(r"i(\d+)", kind):
        return max(1, -(-int(found.group(1)) // 64))
    return 1


def read_call(line: str) -> Call | None:
    """The call in a line; None where there is none, or it calls assembly."""
    found = _CALL.match(line)
    if found is None or " asm " in line:
        return None
    target, text = found.groups()
    convention = "fastcc " if text.startswith("fastcc ") else ""
    while attribute := _RESULT_ATTRIBUTE.match(text):
        text = text[attribute.end() :]
        if text.startswith("("):
            text = text[find_closing(text, 0) + 1 :].lstrip()
    result, text = take_type(text)
    callee = _CALLEE.match(text)
    if callee is None:
        return None
    opening = callee.end() - 1
    arguments = split_arguments(text[opening + 1 : find_closing(text, opening)])
    return Call(target, convention, result, callee.group(1), arguments)
