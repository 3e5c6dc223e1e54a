"""Messages to users are plain sentences: the numbers of the protocol's rules stand in comments and in refusals."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PSYCHE: Final = Path(__file__).resolve().parents[2] / "psyche"
RULE: Final = re.compile(r"\([A-Z]\d{1,2}(, [A-Z]\d{1,2})*\)")
# What peers and their builders read: the rules of the record, its messages, and the worlds that check them.
FOR_BUILDERS: Final = ("core", "wire", "sim", "testing")


def find_texts(path: Path) -> Iterator[str]:
    """The texts of a file that are not its documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_no_message_to_a_user_has_the_number_of_a_rule() -> None:
    files = [path for path in PSYCHE.rglob("*.py") if path.relative_to(PSYCHE).parts[0] not in FOR_BUILDERS]
    assert len(files) > 150
    assert [(path.name, text) for path in files for text in find_texts(path) if RULE.search(text)] == []
