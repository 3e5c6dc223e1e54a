"""Floating point by calls of compiler_builtins: SBPF has no instructions for it."""

import re
from collections.abc import Callable

from sbf_link.syntax import FLAGS, VALUE

_LAYOUT = "e-m:e-p:64:64-i64:64-i128:128-n32:64-S128"
_SUFFIXES = {"double": "df", "float": "sf"}  # in the names of compiler_builtins
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {  # name -> types of the result and of the arguments
    "__extendsfdf2": ("double", ("float",)),
    "__truncdfsf2": ("float", ("double",)),
}
for _type, _suffix in _SUFFIXES.items():
    for _operation in ("add", "sub", "mul", "div"):
        _FUNCTIONS[f"__{_operation}{_suffix}3"] = (_type, (_type, _type))
    for _operation in ("eq", "ne", "lt", "le", "gt", "ge", "unord"):
        _FUNCTIONS[f"__{_operation}{_suffix}2"] = ("i32", (_type, _type))
    for _unsigned in ("", "un"):
        _FUNCTIONS[f"__float{_unsigned}di{_suffix}"] = (_type, ("i64",))
        _FUNCTIONS[f"__fix{'uns' if _unsigned else ''}{_suffix}di"] = ("i64", (_type,))
SOFT_FLOAT = tuple(_FUNCTIONS)
# The linker takes only what is asked for: this module asks for all of them.
SOFT_FLOAT_MODULE = (
    f'target datalayout = "{_LAYOUT}"\ntarget triple = "bpfel"\n'
    + "".join(f"declare {result} @{name}({', '.join(given)})\n" for name, (result, given) in _FUNCTIONS.items())
    + f"@__sbf_keep = global [{len(_FUNCTIONS)} x ptr] [{', '.join('ptr @' + name for name in _FUNCTIONS)}]\n"
)
_COMPARISONS = {  # fcmp's predicate -> the function, and how its result compares with 0
    "oeq": ("eq", "eq"),
    "une": ("ne", "ne"),
    "olt": ("lt", "slt"),
    "ole": ("le", "sle"),
    "ogt": ("gt", "sgt"),
    "oge": ("ge", "sge"),
    "uno": ("unord", "ne"),
    "ord": ("unord", "eq"),
    "ult": ("ge", "slt"),
    "ule": ("gt", "sle"),
    "ugt": ("le", "sgt"),
    "uge": ("lt", "sge"),
}
_FLOAT = "(double|float)"
_ARITHMETIC = re.compile(rf"\s*{VALUE} = f(add|sub|mul|div) {FLAGS}{_FLOAT} (\S+), (\S+?)(?:, !.*)?$")
_COMPARE = re.compile(rf"\s*{VALUE} = fcmp {FLAGS}(\w+) {_FLOAT} (\S+), (\S+?)(?:, !.*)?$")
_FROM_INTEGER = re.compile(rf"\s*{VALUE} = (u|s)itofp {FLAGS}(i\d+) (\S+) to {_FLOAT}")
_TO_INTEGER = re.compile(rf"\s*{VALUE} = fpto(u|s)i {_FLOAT} (\S+) to (i\d+)")
_SATURATE = re.compile(
    rf"\s*{VALUE} = (?:tail )?call [^@]*@llvm\.fpto(u|s)i\.sat\.(i\d+)\.f\d+\({_FLOAT} (?:noundef )?(\S+)\)"
)
_CONVERT = re.compile(rf"\s*{VALUE} = fp(ext|trunc) (\w+) (\S+) to (\w+)")


def rewrite_float(line: str, fresh: Callable[[str], str]) -> list[str] | None:
    """The lines that replace an operation on floating-point numbers; None for other lines.

    `fresh` makes the name of a new value. Raises ValueError for a conversion to an integer of other than 64 bits.
    """
    if found := _ARITHMETIC.match(line):
        target, operation, kind, left, right = found.groups()
        return [f"  {target} = call {kind} @__{operation}{_SUFFIXES[kind]}3({kind} {left}, {kind} {right})"]
    if found := _COMPARE.match(line):
        target, predicate, kind, left, right = found.groups()
        function, comparison = _COMPARISONS[predicate]
        order = fresh("c")
        call = f"  {order} = call i32 @__{function}{_SUFFIXES[kind]}2({kind} {left}, {kind} {right})"
        return [call, f"  {target} = icmp {comparison} i32 {order}, 0"]
    if found := _FROM_INTEGER.match(line):
        return _convert_from_integer(found, fresh)
    if found := _CONVERT.match(line):
        target, direction, source, value, kind = found.groups()
        function = "extendsfdf2" if direction == "ext" else "truncdfsf2"
        return [f"  {target} = call {kind} @__{function}({source} {value})"]
    return _convert_to_integer(line)


def _convert_from_integer(found: re.Match[str], fresh: Callable[[str], str]) -> list[str]:
    target, sign, integer, value, kind = found.groups()
    lines: list[str] = []
    if integer != "i64":
        wide = fresh("w")
        lines.append(f"  {wide} = {'zext' if sign == 'u' else 'sext'} {integer} {value} to i64")
        value = wide
    return [*lines, f"  {target} = call {kind} @__float{'un' if sign == 'u' else ''}di{_SUFFIXES[kind]}(i64 {value})"]


def _convert_to_integer(line: str) -> list[str] | None:
    if found := _TO_INTEGER.match(line):
        target, sign, kind, value, integer = found.groups()
    elif found := _SATURATE.match(line):  # the function saturates, too
        target, sign, integer, kind, value = found.groups()
    else:
        return None
    if integer != "i64":
        raise ValueError(f"a floating-point number becomes a narrow integer, which has no function: {line}")
    return [f"  {target} = call i64 @__fix{'uns' if sign == 'u' else ''}{_SUFFIXES[kind]}di({kind} {value})"]
