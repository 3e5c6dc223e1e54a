"""What a model makes of choices after a context: their log-likelihoods, and whether it would write them itself."""

import copy
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.func import functional_call
from transformers.cache_utils import DynamicCache

Scored = tuple[float, bool]  # log-likelihood in nats, and whether each token is the most likely one
Rows = Sequence[Sequence[int]]
FIRST_TOKENS: Final = 16  # of the first pass, before anything is measured


class Pace:
    """How many tokens go through a model in one pass, so that none lasts longer than `pass_s`.

    Ranks that share a model `agree` on how long it took, for all take the same passes.
    """

    def __init__(self, pass_s: float = math.inf, agree: Callable[[float], float] = lambda seconds: seconds) -> None:
        self._pass_s, self._agree = pass_s, agree
        self._tokens = FIRST_TOKENS

    def get_columns(self, rows: int) -> int | None:
        """How many tokens of each of so many rows; None: all."""
        return None if math.isinf(self._pass_s) else max(1, self._tokens // rows)

    def split(self, rows: Rows, tokens_each: int) -> Iterator[Rows]:
        """Batches of rows of so many tokens; with at least one row each."""
        size = len(rows) if math.isinf(self._pass_s) else max(1, self._tokens // tokens_each)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def note(self, tokens: int, seconds: float) -> None:
        """Aim at a third of the limit: passes over more positions take longer, and other processes want the machine."""
        if not math.isinf(self._pass_s):
            fitting = int(tokens * self._pass_s / 3 / self._agree(seconds))
            self._tokens = max(1, self._tokens // 2, min(fitting, 2 * self._tokens))  # one slow pass says little


class ChoiceScorer:
    """Scores choices with a model in evaluation mode, which is not changed.

    The context goes through the model once, and the choices after it as one batch on its repeated cache. Of a model
    whose cache cannot be repeated, each choice takes the context with it.

    Args:
        model: of transformers.
        pace: how much is computed in one pass.
    """

    weights: Mapping[str, torch.Tensor] | None = None  # what to compute with in place of the model's own, by name

    def __init__(self, model: Any, pace: Pace | None = None) -> None:
        self._model, self._pace = model, pace or Pace()
        self._check: Callable[[], None] = lambda: None
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self.shares_context = "past_key_values" in self._takes and _can_repeat(model)

    @torch.no_grad()  # no inference mode: FSDP trains on with what a pass allocates
    def score(self, context: Sequence[int], choices: Rows, check: Callable[[], None] = lambda: None) -> list[Scored]:
        """Score each of the choices, of one token or more, after a context of one token or more.

        `check` is called before every pass, and may raise.
        """
        self._check = check
        logits = self._continue(context, choices) if self.shares_context else self._read_whole(context, choices)
        return [_score(row[: len(choice)], choice) for row, choice in zip(logits, choices, strict=True)]

    @torch.no_grad()
    def write(self, start: Sequence[int], check: Callable[[], None] = lambda: None) -> Iterator[int]:
        """What the model finds most likely after `start`, token by token without end."""
        self._check = check
        cache = DynamicCache(config=self._model.config) if self.shares_context else None
        written, fresh = [*start], [*start]
        while True:
            logits = self._run([written], 1, use_cache=False) if cache is None else self._feed([fresh], 1, cache)
            fresh = [int(logits[0, -1].argmax())]
            written += fresh
            yield fresh[0]

    def _continue(self, context: Sequence[int], choices: Rows) -> Iterator[torch.Tensor]:
        """Logits [token, vocabulary] of what predicts the tokens of each choice."""
        cache = DynamicCache(config=self._model.config)
        first = self._feed([context], 1, cache)[0]
        rows = _pad([choice[:-1] for choice in choices])
        if not rows[0]:
            yield from [first] * len(rows)
            return
        left = len(rows)
        for batch in self._pace.split(rows, len(rows[0])):
            left -= len(batch)
            own = copy.deepcopy(cache) if left else cache
            own.batch_repeat_interleave(len(batch))
            for logits in self._feed(batch, len(rows[0]), own):
                yield torch.cat([first, logits])

    def _feed(self, rows: Rows, kept: int, cache: DynamicCache) -> torch.Tensor:
        """The logits of the last `kept` places of rows that go through the model one piece after another."""
        found: list[torch.Tensor] = []
        length, start = len(rows[0]), 0
        while start < length:
            end = min(length, start + (self._pace.get_columns(len(rows)) or length))
            count = min(kept - (length - end), end - start)
            piece = [row[start:end] for row in rows]
            logits = self._run(piece, max(1, count), past_key_values=cache, use_cache=True)
            found += [logits] if count > 0 else []
            start = end
        return torch.cat(found, dim=1)

    def _read_whole(self, context: Sequence[int], choices: Rows) -> Iterator[torch.Tensor]:
        rows = _pad([[*context, *choice[:-1]] for choice in choices])
        for batch in self._pace.split(rows, len(rows[0])):
            yield from self._run(batch, len(rows[0]) - len(context) + 1, use_cache=False)

    def _run(self, rows: Rows, count: int, **how: object) -> torch.Tensor:
        """The logits of the last `count` places."""
        self._check()
        started = time.perf_counter()
        if "logits_to_keep" in self._takes:
            how["logits_to_keep"] = count
        ids = torch.tensor(rows, device=self._model.device)
        taken = {name: value for name, value in how.items() if name in self._takes} | {"input_ids": ids}
        found = self._model(**taken) if self.weights is None else self._compute(self.weights, taken)
        if ids.device.type == "cuda":
            torch.cuda.synchronize(ids.device)
        self._pace.note(ids.numel(), time.perf_counter() - started)
        return found.logits[:, -count:]

    def _compute(self, weights: Mapping[str, torch.Tensor], arguments: Mapping[str, object]) -> Any:
        return functional_call(self._model, dict(weights), (), dict(arguments))


def _can_repeat(model: Any) -> bool:
    """Whether each layer of the model's cache can be repeated: states of Mamba and linear attention cannot."""
    layers = DynamicCache(config=model.config).layers
    is_stateful = getattr(model, "_is_stateful", False)
    return not is_stateful and all(hasattr(layer, "batch_repeat_interleave") for layer in layers)


def _pad(rows: Rows) -> list[list[int]]:
    """Make the rows equally long at their ends, where no token that counts sees what is added."""
    longest = max(map(len, rows))
    return [[*row, *[0] * (longest - len(row))] for row in rows]


def _score(logits: torch.Tensor, choice: Sequence[int]) -> Scored:
    wanted = torch.tensor(choice, device=logits.device)
    chances = logits.float().log_softmax(-1)
    total = chances.gather(-1, wanted[:, None]).double().sum()
    return float(total), bool((logits.argmax(-1) == wanted).all())
