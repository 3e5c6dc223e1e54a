"""`psyche eval`: an exported model does known tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from psyche.evals.documents import Document, Documents
from psyche.evals.requests import (
    ALONE,
    MAX_WRITTEN_TOKENS,
    STOP,
    Request,
    Score,
    choose,
    compute_standard_error,
    encode_request,
    find_written_answer,
)
from psyche.evals.sources import load_documents
from psyche.evals.tasks import Metric, Task
from psyche.modeling.device import select_device
from psyche.modeling.inference.scoring import ChoiceScorer
from psyche.standalone.exported import Writer, find_prefix, get_positions, load_exported, load_tokenizer
from psyche.storage.port import StorageOptions

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """`num_fewshot` None: as each task says; `limit` None: all documents; `task_data` None: the Hub's."""

    tasks: tuple[Task, ...]
    num_fewshot: int | None = None
    seed: int = 42
    limit: int | None = None
    device: str = "auto"
    task_data: Path | None = None
    storage: StorageOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScore:
    value: float | None  # None: of no document
    standard_error: float | None  # None: of fewer than two


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """What a model did in a task; `skipped` documents are longer than the model, or cannot be cut into tokens."""

    task: str
    task_hash: str
    source: str
    shots: int
    seed: int
    documents: int
    skipped: int
    metrics: dict[str, MetricScore]  # the main one first


def evaluate(folder: Path, settings: EvalSettings, on_read: Progress, on_done: Progress) -> list[TaskScore]:
    """Read all tasks, then let the model in `folder` do them, one after the other.

    Raises:
        ConfigError: the model or its tokenizer cannot be loaded.
        DataError, StorageError: the documents of a task cannot be read.
    """
    examinee = Examinee(folder, settings.device)
    loaded = list(_load(settings, on_read))
    total, done, scores = sum(len(one.documents) for one in loaded), 0, []
    for one in loaded:
        right = Tally(one)
        for number, document in enumerate(one.documents):
            on_done(done + number, total, one.task.name)
            right.add(examinee.do(one.task, document))
        done += len(one.documents)
        scores.append(right.score())
    return scores


def _load(settings: EvalSettings, on_read: Progress) -> Iterator[Documents]:
    for number, task in enumerate(settings.tasks):
        on_read(number, len(settings.tasks), task.name)
        shots = task.shots if settings.num_fewshot is None else settings.num_fewshot
        load = partial(load_documents, shots=shots, seed=settings.seed, limit=settings.limit)
        yield trio.run(load, task, settings.task_data, settings.storage)


class Examinee:
    """A model with its tokenizer."""

    def __init__(self, folder: Path, device: str) -> None:
        self._tokenizer = load_tokenizer(folder)
        self._model: Any = load_exported(folder, select_device(device))
        self._scorer, self._writer = ChoiceScorer(self._model), Writer(self._model, self._tokenizer)
        self._positions = get_positions(self._model)
        self._prefix = find_prefix(self._tokenizer)

    def do(self, task: Task, document: Document) -> list[bool] | None:
        """Whether each of the task's metrics finds the right choice; None: the document is skipped."""
        if task.is_generated:
            return self._write(document)
        asked = self._encode_request(document.context, document.choices)
        alone = self._encode_request(ALONE, document.choices)
        if asked is None or alone is None:
            return None
        scores = self._score(asked)
        by_themselves = self._score(alone) if Metric.ACC_UNCOND in task.metrics else ()  # as long as the others
        return [choose(document, scores, by_themselves, metric) == document.answer for metric in task.metrics]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text).input_ids

    def _encode_request(self, context: str, choices: Sequence[str]) -> Request | None:
        request = encode_request(self._encode, context, choices, self._prefix)
        return request if request is not None and request.positions <= self._positions else None

    def _score(self, request: Request) -> list[Score]:
        return [Score(*one) for one in self._scorer.score(request.context, request.choices)]

    def _write(self, document: Document) -> list[bool] | None:
        ids = self._encode(document.context)
        if not ids or len(ids) + MAX_WRITTEN_TOKENS > self._positions:
            return None
        written = self._writer.write(ids, MAX_WRITTEN_TOKENS, stop=STOP)
        return [find_written_answer(document, self._tokenizer.decode(written)) == document.answer]


class Tally:
    """Right answers of a task, by metric."""

    def __init__(self, asked: Documents) -> None:
        self._asked = asked
        self._right = [0] * len(asked.task.metrics)
        self._count = 0

    def add(self, found: Sequence[bool] | None) -> None:
        if found is not None:
            self._count += 1
            self._right = [before + now for before, now in zip(self._right, found, strict=True)]

    def score(self) -> TaskScore:
        asked, count = self._asked, self._count
        metrics = {
            metric.value: MetricScore(
                value=right / count if count else None, standard_error=compute_standard_error(right, count)
            )
            for metric, right in zip(asked.task.metrics, self._right, strict=True)
        }
        return TaskScore(
            task=asked.task.name, task_hash=asked.compute_hash().hex(), source=asked.source, shots=asked.shots,
            seed=asked.seed, documents=count, skipped=len(asked.documents) - count, metrics=metrics,
        )  # fmt: skip
