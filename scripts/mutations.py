"""Mutants: each is one small change, made in the text of its file so that everything else stays."""

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What is not behaviour (annotations, messages, imports, defaults, which are read at import), or cannot fail.
SKIPPED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.arguments, ast.Global, ast.Nonlocal)
SKIPPED_FIELDS = ("decorator_list", "annotation", "returns", "target", "targets")
COMMUTATIVE = ("min", "max", "isinstance")
Changed = tuple[ast.expr | ast.stmt, str]  # what is replaced, and by which text


@dataclass(frozen=True)
class Mutant:
    """A file with one change; `lines` are the first and last line of the changed statement."""

    path: str
    line: int
    lines: tuple[int, int]
    start: int  # character offsets of the replaced text
    end: int
    replacement: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.replacement + text[self.end :]

    def get_change(self, text: str) -> tuple[str, str]:
        """The changed lines before and after, without indentation."""
        before, after = text.splitlines(), self.apply(text).splitlines()
        first = next((i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), 0)
        behind = list(zip(before[:first:-1], after[:first:-1], strict=False))
        tail = next((i for i, (old, new) in enumerate(behind) if old != new), len(behind))
        cut = (lines[first : len(lines) - tail or None] for lines in (before, after))
        old, new = (" ".join(line.strip() for line in lines) for lines in cut)
        return old, new

    def get_diff(self, text: str) -> str:
        lines = difflib.unified_diff(text.splitlines(), self.apply(text).splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@")


def find_mutants(root: Path, package: str, *, at_import: bool = False) -> dict[str, list[Mutant]]:
    """All mutants of a package, by file: those inside functions, or those of all else, which runs at import."""
    paths = sorted((root / package).rglob("*.py"))
    return {name: _find_in(path, name, at_import) for path in paths if (name := str(path.relative_to(root)))}


def _find_in(path: Path, name: str, at_import: bool) -> list[Mutant]:
    text = path.read_text(encoding="utf-8")
    assert text.isascii(), f"{name}: columns are counted in bytes, so the file must be plain ASCII"
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: set[Mutant] = set()
    for statement in _find_statements(ast.parse(text), at_import):
        for node, replacement in (*_change_statement(statement), *_visit(statement)):
            start, end = (
                starts[line - 1] + column
                for line, column in (
                    (node.lineno, node.col_offset),
                    (node.end_lineno or 0, node.end_col_offset or 0),
                )
            )
            last = node.end_lineno if hasattr(statement, "body") else statement.end_lineno
            lines = (min(statement.lineno, node.lineno), last or node.lineno)
            found.add(Mutant(name, node.lineno, lines, start, end, replacement))
    return sorted(found, key=lambda m: (m.start, m.end, m.replacement))


def _find_statements(tree: ast.Module, at_import: bool) -> Iterator[ast.stmt]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {n for function in functions for n in ast.walk(function) if n is not function}
    statements = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not isinstance(n, SKIPPED))
    yield from (n for n in statements if (n not in inside) == at_import and not (at_import and n in functions))


def _change_statement(statement: ast.stmt) -> Iterator[Changed]:
    """Leave a statement out, unless it only sets a local name; turn a condition round."""
    is_doc = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_local = isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets)
    effects = ast.Expr | ast.Raise | ast.Delete | ast.Assign
    if isinstance(statement, ast.AugAssign) or (isinstance(statement, effects) and not is_doc and not is_local):
        yield statement, "pass"
    if isinstance(statement, ast.AugAssign) and type(statement.op) in ARITHMETIC:
        yield statement, _unparse(statement, op=ARITHMETIC[type(statement.op)]())
    elif isinstance(statement, ast.Break | ast.Continue):
        yield statement, "continue" if isinstance(statement, ast.Break) else "break"
    if isinstance(statement, ast.If | ast.While) and not isinstance(
        statement.test, ast.Compare | ast.BoolOp | ast.UnaryOp
    ):
        yield statement.test, f"(not ({ast.unparse(statement.test)}))"


def _visit(node: ast.AST) -> Iterator[Changed]:
    """The changes of all expressions in a node, but not those of statements inside."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_left_out = isinstance(child, (ast.stmt, *SKIPPED)) or name in SKIPPED_FIELDS
            if (
                not isinstance(child, ast.AST)
                or is_left_out
                or (isinstance(child, ast.keyword) and child.arg == "strict")
            ):
                continue
            if isinstance(child, ast.expr) and not (isinstance(node, ast.Expr) and isinstance(child, ast.Constant)):
                same = f"({ast.unparse(child)})"
                yield from ((child, f"({new})") for new in _change(child) if f"({new})" != same)
            yield from _visit(child)


def _unparse(node: ast.AST, **changes: object) -> str:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


def _change(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(ops=ops):
            for place, operator in enumerate(ops):
                for other in COMPARISONS[type(operator)]:
                    yield _unparse(node, ops=[*ops[:place], other(), *ops[place + 1 :]])
        case ast.BoolOp(op=op):
            yield _unparse(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(operand=operand):
            yield ast.unparse(operand)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not _is_text(node):
            yield _unparse(node, op=ARITHMETIC[type(op)]())
        case ast.Constant(value=bool() as value):
            yield repr(not value)
        case ast.Constant(value=int() | float() as value):
            yield from (repr(value + 1), repr(value - 1))
        case ast.Constant(value=bytes() as value):
            yield repr(value + b"?")
        case ast.IfExp(body=body, orelse=orelse):
            yield _unparse(node, body=orelse, orelse=body)
        case ast.Call():
            yield from _change_call(node)
        case _:
            pass


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def _change_call(node: ast.Call) -> Iterator[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in NAMES:
        yield _unparse(node, func=ast.Name(NAMES[name]))
    if name not in COMMUTATIVE:
        for place, (first, second) in enumerate(pairwise(node.args)):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield _unparse(node, args=[*node.args[:place], second, first, *node.args[place + 2 :]])
