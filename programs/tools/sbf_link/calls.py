"""How functions hand over arguments and results: five registers in, one out; all else through memory of the caller."""

import re
from collections.abc import Callable

from sbf_link.syntax import Call, Typed, count_registers, find_closing, read_typed, split_arguments

INLINE_MAX = 64  # bytes of constant size that are copied, moved or set by loads and stores
_MAX_REGISTERS = 5
_LINKAGES = "define internal private hidden dso_local fastcc coldcc linkonce_odr weak weak_odr protected"
_LINKAGE = frozenset(_LINKAGES.split())
_RETURN_TYPE = re.compile(r"(void|i\d+|ptr|double|float|\{[^@]*\}|\[[^@]*\]|<[^@]*>)\s*$")
_NAME = re.compile(r'@(?:"[^"]*"|[\w.$-]+)\(')
_LABEL = re.compile(r'("[^"]*"|[\w.$-]+):')
_MEMORY_INTRINSIC = re.compile(r"@llvm\.(memcpy|memmove|memset)(?:\.inline)?\.")
_MULTIPLY_WITH_OVERFLOW = re.compile(r"@llvm\.([us])mul\.with\.overflow\.i64$")
Fresh = Callable[[str], str]


def split_by_registers(result: str, arguments: list[Typed]) -> tuple[bool, int]:
    """Whether the result goes through a pointer, and how many arguments stay in registers."""
    by_pointer = result[0] in "{[<"
    hidden = 1 if by_pointer or (result != "void" and count_registers(result) > 1) else 0
    if sum(count_registers(one.type) for one in arguments) + hidden <= _MAX_REGISTERS:
        return by_pointer, len(arguments)
    used, kept = hidden, 0  # the last register points to the rest
    while kept < len(arguments) and used + count_registers(arguments[kept].type) < _MAX_REGISTERS:
        used += count_registers(arguments[kept].type)
        kept += 1
    return by_pointer, kept


class Function:
    """A function that is being rewritten: its head, and its lines so far."""

    def __init__(self, head: str, fresh: Fresh) -> None:
        name = _NAME.search(head)
        assert name is not None
        opening, before = name.end() - 1, head[: name.start()]
        closing = find_closing(head, opening)
        parameters = split_arguments(head[opening + 1 : closing])
        arguments = [read_typed(parameter) for parameter in parameters]
        found = _RETURN_TYPE.search(before)
        assert found is not None
        by_pointer, kept = split_by_registers(found.group(1), arguments)
        self.result = found.group(1) if by_pointer else None  # its type, where it goes through a pointer
        self.allocas: list[str] = []
        self.body: list[str] = []
        self._prologue = self._unpack(arguments[kept:], fresh)
        if by_pointer or kept < len(arguments):
            given = ["ptr %__sbf_ret"] * by_pointer + parameters[:kept] + ["ptr %__sbf_pack"] * (kept < len(arguments))
            if by_pointer:
                before = " ".join(word for word in before.split() if word in _LINKAGE) + " void "
            # Groups of attributes go: memory(none) and the like hold no longer.
            after = re.sub(r" #\d+", "", head[closing:])
            head = before + head[name.start() : opening + 1] + ", ".join(given) + after
        self._head = head

    @staticmethod
    def _unpack(packed: list[Typed], fresh: Fresh) -> list[str]:
        lines, offset = [], 0
        for kind, value in packed:
            place = fresh("a")
            lines.append(f"  {place} = getelementptr i8, ptr %__sbf_pack, i64 {offset}")
            lines.append(f"  {value} = load {kind}, ptr {place}, align 8")
            offset += 8 * count_registers(kind)
        return lines

    def get_lines(self) -> list[str]:
        """The whole function, rewritten."""
        body = self.body
        label, rest = (body[:1], body[1:]) if body and _LABEL.match(body[0]) else ([], body)
        return [self._head, *label, *self.allocas, *self._prologue, *rest, "}"]


def rewrite_call(call: Call, function: Function, fresh: Fresh) -> list[str] | None:
    """The lines that replace a call; None where it stays as it is."""
    if found := _MEMORY_INTRINSIC.match(call.callee):
        return _call_memory(found.group(1), call, fresh)
    if found := _MULTIPLY_WITH_OVERFLOW.match(call.callee):
        left, right = map(read_typed, call.arguments)
        helper = f"@__sbf_{found.group(1)}mulo64"
        return [f"  {call.target} = call {{ i64, i1 }} {helper}(i64 {left.value}, i64 {right.value})"]
    if call.callee.startswith("@llvm."):
        return None
    arguments = [read_typed(argument) for argument in call.arguments]
    if call.callee in ("@memcmp", "@bcmp"):
        left, right, size = (one.value for one in arguments)
        return [f"  {call.target} = call i32 @__sbf_memcmp(ptr {left}, ptr {right}, i64 {size})"]
    if call.callee in ("@memcpy", "@memmove", "@memset"):
        return _call_library(call, arguments, fresh)
    return _call_by_memory(call, arguments, function, fresh)


def _call_memory(name: str, call: Call, fresh: Fresh) -> list[str] | None:
    to, source, size, *_ = map(read_typed, call.arguments)
    if size.value.isdigit() and int(size.value) <= INLINE_MAX:
        return None
    lines, number = [], size.value
    if size.type != "i64":
        number = fresh("n")
        lines.append(f"  {number} = zext {size.type} {size.value} to i64")
    second = f"{'i8' if name == 'memset' else 'ptr'} {source.value}"
    return [*lines, f"  call void @sol_{name}_(ptr {to.value}, {second}, i64 {number})"]


def _call_library(call: Call, arguments: list[Typed], fresh: Fresh) -> list[str]:
    to, source, size = (one.value for one in arguments)
    lines, second = [], f"ptr {source}"
    if call.callee == "@memset":
        byte = fresh("b")
        lines.append(f"  {byte} = trunc i32 {source} to i8")
        second = f"i8 {byte}"
    lines.append(f"  call void @sol_{call.callee[1:]}_(ptr {to}, {second}, i64 {size})")
    return [*lines, f"  {call.target} = getelementptr i8, ptr {to}, i64 0"] if call.target else lines


def _call_by_memory(call: Call, arguments: list[Typed], function: Function, fresh: Fresh) -> list[str] | None:
    by_pointer, kept = split_by_registers(call.result, arguments)
    if not by_pointer and kept == len(arguments):
        return None
    lines, given = [], [f"{kind} {value}" for kind, value in arguments[:kept]]
    slot = fresh("rs") if by_pointer else ""
    if by_pointer:
        function.allocas.append(f"  {slot} = alloca {call.result}, align 8")
        given.insert(0, f"ptr {slot}")
    if kept < len(arguments):
        pack = fresh("pk")
        lines = _pack(arguments[kept:], pack, function, fresh)
        given.append(f"ptr {pack}")
    target = f"{call.target} = " if call.target and not by_pointer else ""
    result = "void" if by_pointer else call.result
    lines.append(f"  {target}call {call.convention}{result} {call.callee}({', '.join(given)})")
    if by_pointer and call.target:
        lines.append(f"  {call.target} = load {call.result}, ptr {slot}, align 8")
    return lines


def _pack(packed: list[Typed], pack: str, function: Function, fresh: Fresh) -> list[str]:
    size = 8 * sum(count_registers(one.type) for one in packed)
    function.allocas.append(f"  {pack} = alloca [{size} x i8], align 8")
    lines, offset = [], 0
    for kind, value in packed:
        place = fresh("p")
        lines.append(f"  {place} = getelementptr i8, ptr {pack}, i64 {offset}")
        lines.append(f"  store {kind} {value}, ptr {place}, align 8")
        offset += 8 * count_registers(kind)
    return lines
