"""Mutants: each is one small change of one file, made in its text so that everything else stays the same."""

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Not mutated: what is not behaviour (annotations, messages, decorators), and what cannot fail (assertions).
SKIPPED = (ast.JoinedStr, ast.Assert)


@dataclass(frozen=True)
class Mutant:
    """A file of the tree with one change; `lines` are the first and last line of the changed statement."""

    path: str
    kind: str
    line: int
    lines: tuple[int, int]
    start: int  # character offsets of the replaced text
    end: int
    replacement: str

    def apply(self, text: str) -> str:
        """Return the file's text with the change."""
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
        """The change as a diff without context."""
        lines = difflib.unified_diff(text.splitlines(), self.apply(text).splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@")


class Finder:
    """Finds all mutants of one file."""

    def __init__(self, path: Path, name: str) -> None:
        self.text = path.read_text(encoding="utf-8")
        self._name = name
        self._starts = [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        assert self.text.isascii(), f"{name}: columns are counted in bytes, so the file must be plain ASCII"

    def find(self) -> list[Mutant]:
        found = list(self._visit_body(ast.parse(self.text).body))
        unique = {(m.start, m.end, m.replacement): m for m in found}
        return sorted(unique.values(), key=lambda m: (m.start, m.end, m.replacement))

    # --- statements

    def _visit_body(self, body: list[ast.stmt]) -> Iterator[Mutant]:
        for number, statement in enumerate(body):
            if number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            yield from self._visit_statement(statement)

    def _visit_statement(self, statement: ast.stmt) -> Iterator[Mutant]:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal):
            return
        yield from self._remove(statement)
        for name, value in ast.iter_fields(statement):
            if name in ("decorator_list", "annotation", "returns", "bases", "target", "targets"):
                continue
            children = value if isinstance(value, list) else [value]
            if children and all(isinstance(child, ast.stmt) for child in children):
                yield from self._visit_body(children)
                continue
            for child in children:
                if isinstance(child, ast.arguments):
                    for default in (*child.defaults, *child.kw_defaults):
                        yield from self._visit_expression(default, statement)
                elif isinstance(child, ast.ExceptHandler):
                    yield from self._visit_body(child.body)
                elif isinstance(child, ast.withitem):
                    yield from self._visit_expression(child.context_expr, statement)
                elif isinstance(child, ast.expr):
                    yield from self._visit_expression(child, statement)

    def _remove(self, statement: ast.stmt) -> Iterator[Mutant]:
        """Remove statements, unless they only set a local name."""
        kept: str | None = None
        if (
            isinstance(statement, ast.Expr | ast.Raise | ast.Delete)
            and not isinstance(getattr(statement, "value", None), ast.Constant)
        ) or (isinstance(statement, ast.Assign) and not all(isinstance(t, ast.Name) for t in statement.targets)):
            kept = "pass"
        elif isinstance(statement, ast.AugAssign):
            kept = "pass"
            if type(statement.op) in ARITHMETIC:
                changed = copy.deepcopy(statement)
                changed.op = ARITHMETIC[type(statement.op)]()
                yield self._build(statement, "operator", ast.unparse(changed), statement)
        elif isinstance(statement, ast.Break | ast.Continue):
            kept = "continue" if isinstance(statement, ast.Break) else "break"
        if kept:
            yield self._build(statement, "statement", kept, statement)
        if isinstance(statement, ast.If | ast.While) and not isinstance(
            statement.test, ast.Compare | ast.BoolOp | ast.UnaryOp
        ):
            yield self._build(statement.test, "condition", f"(not ({ast.unparse(statement.test)}))", statement)

    # --- expressions

    def _visit_expression(self, node: ast.expr | None, statement: ast.stmt) -> Iterator[Mutant]:
        if node is None or isinstance(node, SKIPPED):
            return
        for kind, changed in self._change(node):
            if ast.dump(changed) == ast.dump(node):  # swapping equal arguments changes nothing
                continue
            yield self._build(node, kind, f"({ast.unparse(changed)})", statement)
        for child in self._get_children(node):
            yield from self._visit_expression(child, statement)

    def _get_children(self, node: ast.expr) -> Iterator[ast.expr]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                if child.arg != "strict":
                    yield child.value
            elif isinstance(child, ast.comprehension):
                yield child.iter
                yield from child.ifs
            elif isinstance(child, ast.expr):
                yield child

    def _change(self, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                for other in COMPARISONS.get(type(operator), ()):
                    changed = copy.deepcopy(node)
                    changed.ops[place] = other()
                    yield "comparison", changed
        elif isinstance(node, ast.BoolOp):
            changed = copy.deepcopy(node)
            changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "boolean", changed
        elif isinstance(node, ast.UnaryOp):
            yield "unary", node.operand
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
            changed = copy.deepcopy(node)
            changed.op = ARITHMETIC[type(node.op)]()
            yield "operator", changed
        elif isinstance(node, ast.Constant):
            yield from _change_constant(node.value)
        elif isinstance(node, ast.Call):
            yield from _change_call(node)
        elif isinstance(node, ast.IfExp):
            changed = copy.deepcopy(node)
            changed.body, changed.orelse = changed.orelse, changed.body
            yield "condition", changed

    def _build(self, node: ast.stmt | ast.expr, kind: str, replacement: str, statement: ast.stmt) -> Mutant:
        assert node.end_lineno is not None, "parsed nodes have places"
        assert node.end_col_offset is not None, "parsed nodes have places"
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        compound = isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.While | ast.With)
        last = node.end_lineno if compound else (statement.end_lineno or node.end_lineno)
        return Mutant(
            self._name, kind, node.lineno, (min(statement.lineno, node.lineno), last), start, end, replacement
        )


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def _change_constant(value: object) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield "constant", ast.Constant(value + 1)
        yield "constant", ast.Constant(value - 1)
    elif isinstance(value, bytes):
        yield "constant", ast.Constant(value + b"?")


def _change_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node.func, ast.Name) and node.func.id in NAMES:
        changed = copy.deepcopy(node)
        changed.func = ast.Name(NAMES[node.func.id])
        yield "name", changed
    is_commutative = isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "isinstance")
    for place in range(0 if is_commutative else len(node.args) - 1):
        first, second = node.args[place : place + 2]
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            continue
        changed = copy.deepcopy(node)
        changed.args[place : place + 2] = [second, first]
        yield "arguments", changed


def find_mutants(root: Path, package: str) -> dict[str, list[Mutant]]:
    """All mutants of a package, by file."""
    paths = sorted((root / package).rglob("*.py"))
    return {name: Finder(path, name).find() for path in paths if (name := str(path.relative_to(root)))}
