"""What a model makes of choices after a context: their log-likelihoods, and whether it would write them itself."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

Scored = tuple[float, bool]  # log-likelihood in nats, and whether each token is the most likely one


class ChoiceScorer:
    """Scores choices with a model in evaluation mode, which is not changed.

    The context goes through the model once, and the choices after it as one batch on its repeated cache. Of a model
    whose cache cannot be repeated, each choice takes the context with it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self.shares_context = "past_key_values" in self._takes and _can_repeat(model)

    @torch.inference_mode()
    def score(self, context: Sequence[int], choices: Sequence[Sequence[int]]) -> list[Scored]:
        """Score each of the choices, of one token or more, after a context of one token or more."""
        logits = self._continue(context, choices) if self.shares_context else self._read_whole(context, choices)
        return [_score(row[: len(choice)], choice) for row, choice in zip(logits, choices, strict=True)]

    def _continue(self, context: Sequence[int], choices: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [choice, token, vocabulary] of what predicts the tokens of each choice."""
        cache = DynamicCache(config=self._model.config)
        first = self._run([context], 1, past_key_values=cache, use_cache=True).expand(len(choices), -1, -1)
        if max(map(len, choices)) == 1:
            return first
        cache.batch_repeat_interleave(len(choices))
        rows = _pad([choice[:-1] for choice in choices])
        return torch.cat([first, self._run(rows, len(rows[0]), past_key_values=cache, use_cache=True)], dim=1)

    def _read_whole(self, context: Sequence[int], choices: Sequence[Sequence[int]]) -> torch.Tensor:
        rows = _pad([[*context, *choice[:-1]] for choice in choices])
        return self._run(rows, len(rows[0]) - len(context) + 1, use_cache=False)

    def _run(self, rows: Sequence[Sequence[int]], count: int, **how: object) -> torch.Tensor:
        """The logits of the last `count` places."""
        if "logits_to_keep" in self._takes:
            how["logits_to_keep"] = count
        ids = torch.tensor(rows, device=self._model.device)
        taken = {name: value for name, value in how.items() if name in self._takes}
        return self._model(input_ids=ids, **taken).logits[:, -count:]


def _can_repeat(model: Any) -> bool:
    """Whether each layer of the model's cache can be repeated: states of Mamba and linear attention cannot."""
    layers = DynamicCache(config=model.config).layers
    is_stateful = getattr(model, "_is_stateful", False)
    return not is_stateful and all(hasattr(layer, "batch_repeat_interleave") for layer in layers)


def _pad(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Make the rows equally long at their ends, where no token that counts sees what is added."""
    longest = max(map(len, rows))
    return [[*row, *[0] * (longest - len(row))] for row in rows]


def _score(logits: torch.Tensor, choice: Sequence[int]) -> Scored:
    wanted = torch.tensor(choice, device=logits.device)
    chances = logits.float().log_softmax(-1)
    total = chances.gather(-1, wanted[:, None]).double().sum()
    return float(total), bool((logits.argmax(-1) == wanted).all())
