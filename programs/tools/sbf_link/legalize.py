"""Rewrites LLVM IR, as text, so that LLVM's own BPF back end can lower it for Solana.

The back end has no lowering for calls of mem* helpers, for multiplication, division and variable shifts of 128 bits,
for multiplication with overflow, signed division, floating point, results of several values, and more than five
registers of arguments. Each becomes a system call, a helper of runtime.ll, or a function of compiler_builtins.
"""

import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from sbf_link.calls import Function, rewrite_call
from sbf_link.soft_float import rewrite_float
from sbf_link.syntax import FLAGS, VALUE, read_call, take_type

_INTEGER = re.compile(rf"(\s*{VALUE}) = (mul|udiv|urem|sdiv|srem|shl|lshr|ashr) {FLAGS}i(\d+) (\S+), (\S+?)(?:, !.*)?$")
_SHIFTS = ("shl", "lshr", "ashr")
_RUNTIME = (Path(__file__).parent / "runtime.ll").read_text()
_SRET = re.compile(r" sret\((?:[^()]|\([^()]*\))*\)")
_ROOTS = ("@llvm.used ", "@llvm.compiler.used ", "@__sbf_keep ")


def drop_bodies(text: str, names: Iterable[str]) -> str:
    """Only declare the functions mem*: the optimizer would change their signatures. Roots but the entry point go."""
    lines, inside = [], False
    for line in text.splitlines():
        if inside:
            inside = line != "}"
            continue
        if line.startswith(_ROOTS):
            continue
        found = re.match(r"define [^@]*@([\w.$-]+)\(", line)
        if found and found.group(1) in names:
            name = found.group(1)
            result, second = "i32" if name in ("memcmp", "bcmp") else "ptr", "i32" if name == "memset" else "ptr"
            lines.append(f"declare {result} @{name}(ptr, {second}, i64)")
            inside = True
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"


class _Legalizer:
    """Goes through a module line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._function: Function | None = None
        self._numbers = count(1)

    def _make_name(self, prefix: str) -> str:
        return f"%__sbf_{prefix}{next(self._numbers)}"

    def add(self, line: str) -> None:
        """Append one line of the module, rewritten."""
        line = _SRET.sub("", line)  # the back end refuses the attribute, not the pointer
        if line.startswith("define "):
            self._function = Function(line, self._make_name)
        elif self._function is None:
            self.lines.append(line)
        elif line == "}":
            self.lines += self._function.get_lines()
            self._function = None
        else:
            self._function.body += self._rewrite(line, self._function)

    def _rewrite(self, line: str, function: Function) -> list[str]:
        if function.result is not None and line.startswith("  ret "):
            kind, value = take_type(re.sub(r", !dbg !\d+$", "", line[len("  ret ") :]))
            return [f"  store {kind} {value.strip()}, ptr %__sbf_ret, align 8", "  ret void"]
        new = None
        if found := _INTEGER.match(line):
            new = self._rewrite_integer(found)
        elif ("double" in line or "float" in line) and (new := rewrite_float(line, self._make_name)):
            pass
        elif "call " in line and (call := read_call(line)):
            new = rewrite_call(call, function, self._make_name)
        return [line] if new is None else new

    def _rewrite_integer(self, found: re.Match[str]) -> list[str] | None:
        target, _, operation, bits, left, right = found.groups()
        width = int(bits)
        if operation in ("sdiv", "srem"):
            return self._divide_signed(target, operation, width, left, right)
        if width <= 64 or (operation in _SHIFTS and right.isdigit()):
            return None
        if width != 128:
            raise ValueError(f"{operation} of {width} bits has no helper")
        return [f"{target} = call i128 @__sbf_{operation}128(i128 {left}, i128 {right})"]

    def _divide_signed(self, target: str, operation: str, width: int, left: str, right: str) -> list[str]:
        if width > 64:
            raise ValueError(f"signed division of {width} bits has no helper")
        if width == 64:
            return [f"{target} = call i64 @__sbf_{operation}64(i64 {left}, i64 {right})"]
        wide_left, wide_right, result = (self._make_name(prefix) for prefix in "xyz")
        return [
            f"  {wide_left} = sext i{width} {left} to i64",
            f"  {wide_right} = sext i{width} {right} to i64",
            f"  {result} = call i64 @__sbf_{operation}64(i64 {wide_left}, i64 {wide_right})",
            f"{target} = trunc i64 {result} to i{width}",
        ]


def legalize(text: str) -> str:
    """The module, with nothing left that the back end cannot lower.

    Raises ValueError for what has no replacement.
    """
    legalizer = _Legalizer()
    for line in text.splitlines():
        legalizer.add(line)
    body, runtime = "\n".join(legalizer.lines), _RUNTIME
    for name in re.findall(r"^declare[^@\n]*@(sol_mem\w+)\(", body, re.MULTILINE):  # the program declares it itself
        runtime = re.sub(rf"^declare[^\n]*@{name}\(.*\n", "", runtime, flags=re.MULTILINE)
    return body + "\n" + runtime
