"""What is wrong with a configuration file, told so that a person can put it right."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psyche.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule.

    `line` counts from 1; None where the file as a whole is meant. `what` says which rule is broken
    and how, `right` what would be right.
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
    """All problems of one load, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (str(p.file), p.line or 0)))
        super().__init__("\n".join(map(str, self.problems)))
