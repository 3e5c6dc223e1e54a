"""Documents of a task: what a model is asked, with the examples before it, and the hash that names all of them."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from psyche.errors import DataError
from psyche.evals.questions import Question
from psyche.evals.tasks import Task

FORMAT: Final = "psyche/eval-task/1"  # raised when the same rows become other documents or scores
_BETWEEN: Final = "\n\n"


class Document(NamedTuple):
    context: str
    choices: tuple[str, ...]
    answer: int


class Documents(NamedTuple):
    """Documents in the order in which they are asked, and where they are from."""

    task: Task
    source: str
    shots: int
    seed: int
    documents: tuple[Document, ...]

    def compute_hash(self) -> bytes:
        """`task_hash`: equal where two asked the same."""
        told = [FORMAT, self.task.name, self.task.metrics, self.shots, self.seed, self.documents]
        return blake3(msgspec.json.encode(told)).digest()


def build_documents(
    task: Task, questions: Sequence[Question], examples: Sequence[Question], *, source: str, shots: int, seed: int,
    limit: int | None = None,
) -> Documents:  # fmt: skip
    """Put the examples before each question.

    Args:
        task: whose rows they are.
        questions: of the task's split.
        examples: of its `shots_split`.
        source: where the rows are from.
        shots: how many examples stand before each; fewer where its group has fewer.
        seed: of the draw of `limit`, and of examples where the task shuffles them.
        limit: so many of the questions, drawn; None: all.

    Raises:
        DataError: there is no question, or there are no examples.
    """
    if not questions or (shots and not examples):
        split = task.shots_split if questions else task.split
        raise DataError(f"{source}: the split {split!r} of {task.name} has no rows")
    if task.shuffles_shots:
        examples = [examples[place] for place in _draw(f"{task.name}/shots", len(examples), seed)[: shots or None]]
    groups: dict[str, list[str]] = {}
    for one in examples:
        groups.setdefault(one.group, []).append(one.example)
    asked = _draw(task.name, len(questions), seed)[:limit]
    documents = tuple(
        Document(
            task.preamble.format(question.group)
            + _BETWEEN.join([*groups.get(question.group, [])[:shots], question.text]),
            question.choices,
            question.answer,
        )
        for question in (questions[place] for place in asked)
    )
    return Documents(task, source, shots, seed, documents)


def _draw(purpose: str, count: int, seed: int) -> list[int]:
    """An order of `count` places that is the same on every machine."""
    return sorted(range(count), key=lambda place: blake3(f"{FORMAT}|{purpose}|{seed}|{place}".encode()).digest())
