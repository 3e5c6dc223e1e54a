"""Problems of a configuration file, described so that people can fix them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psyche.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule.

    `line` counts from 1; None refers to the file as a whole. `what` says which rule is broken and how, `right` says
    what would be right.
    """

    file: Path
    line: int | None
    key: str
    what: str
    right: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        key = f" {self.key}:" if self.key else ""
        right = f" -> {self.right}" if self.right else ""
        return f"{place}:{key} {self.what}{right}"


class ConfigProblems(ConfigError):
    """All problems found by one load, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (str(p.file), p.line or 0)))
        super().__init__("\n".join(map(str, self.problems)))
