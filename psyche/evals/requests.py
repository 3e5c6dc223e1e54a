"""Documents as rows of token ids, and the metrics of what a model makes of them."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from psyche.evals.documents import Document
from psyche.evals.tasks import Metric

ALONE: Final = "Answer:"  # what `acc_uncond` puts in the context's place
STOP: Final = "Question:"  # ends what a model writes
MAX_WRITTEN_TOKENS: Final = 1_024
_ANSWER: Final = re.compile(r"answer is \(?([ABCDEFGHIJ])\)?")
Encode = Callable[[str], list[int]]  # with the tokens that the tokenizer puts around a text


class Request(NamedTuple):
    """A context and the choices after it, in token ids; none of them is empty."""

    context: list[int]
    choices: list[list[int]]

    @property
    def positions(self) -> int:
        """How long a model's input is: nothing is predicted from the last token."""
        return len(self.context) + max(map(len, self.choices)) - 1


class Score(NamedTuple):
    """What a choice is worth to a model; `is_greedy`: each of its tokens is the most likely one."""

    log_likelihood: float
    is_greedy: bool


def encode_request(encode: Encode, context: str, choices: Sequence[str], prefix: int | None) -> Request | None:
    """Cut each whole text where the context's tokens end; blanks at the context's end belong to the choices.

    Args:
        encode: the tokenizer.
        context: what stands before the choices.
        choices: what may follow, after a blank.
        prefix: the token that stands for a context without tokens.

    Returns:
        None if a choice, or the context without a `prefix`, has no token of its own.
    """
    stem = context.rstrip()
    blanks = context[len(stem) :]
    ids = encode(stem)
    ends = [encode(f"{stem}{blanks} {choice}")[len(ids) :] for choice in choices]
    if not ids and prefix is not None:
        ids = [prefix]
    return Request(ids, ends) if ids and all(ends) else None


def choose(document: Document, scores: Sequence[Score], alone: Sequence[Score], metric: Metric) -> int:
    """The choice of a model by a metric; `alone`: the scores after `ALONE`, which only ACC_UNCOND looks at."""
    match metric:
        case Metric.ACC:
            values = [one.log_likelihood for one in scores]
        case Metric.ACC_NORM:
            sizes = [max(1, len(choice.encode())) for choice in document.choices]
            values = [one.log_likelihood / size for one, size in zip(scores, sizes, strict=True)]
        case Metric.ACC_UNCOND:
            pairs = zip(scores, alone, strict=True)
            values = [one.log_likelihood - by_itself.log_likelihood for one, by_itself in pairs]
    return max(range(len(values)), key=values.__getitem__)


def find_written_answer(document: Document, text: str) -> int | None:
    """The choice that a written answer names last; None: it names none."""
    found = _ANSWER.findall(text.partition(STOP)[0])
    return document.choices.index(found[-1]) if found and found[-1] in document.choices else None


def compute_standard_error(right: int, count: int) -> float | None:
    """Of the share of right answers; None: fewer than two documents tell nothing of it."""
    return math.sqrt(right * (count - right) / (count - 1)) / count if count > 1 else None
