"""An exported model, read with plain transformers, and the text that it writes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.streamers import TextStreamer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.utils import logging

from psyche.errors import ConfigError

TOP_K: Final = 40
UNBOUNDED_TOKENS: Final = 1 << 30
SMALL_PARAMETERS: Final = 20_000_000  # in smaller models, threads wait for each other longer than they compute


def load_exported(folder: Path, device: torch.device | None = None) -> Any:
    """Load a model's folder for use: fp32 on the CPU, bfloat16 on a GPU.

    Raises:
        ConfigError: transformers cannot load it.
    """
    logging.disable_progress_bar()
    dtype = torch.bfloat16 if device is not None and device.type == "cuda" else torch.float32
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: transformers cannot load it: {error}") from error
    if model.num_parameters() < SMALL_PARAMETERS:
        torch.set_num_threads(1)
    return model.eval().to(device or "cpu")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer beside a model.

    Raises:
        ConfigError: transformers cannot load it.
    """
    logging.set_verbosity_error()  # it warns of texts longer than its model's
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"{folder}: transformers cannot load its tokenizer: {error}") from error


def get_positions(model: Any, otherwise: int = UNBOUNDED_TOKENS) -> int:
    """The longest context; of a model without a limit, `otherwise`."""
    return int(getattr(model.config, "max_position_embeddings", None) or otherwise)


def find_prefix(tokenizer: Any) -> int | None:
    """The token that stands before a text without tokens."""
    known = tokenizer.bos_token_id, tokenizer.eos_token_id
    return next((one for one in known if one is not None), None)


class Writer:
    """Lets a model write; what it writes ends with its end token."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._positions = get_positions(model)
        ends = model.generation_config.eos_token_id
        ends = tokenizer.eos_token_id if ends is None else ends
        self._ends: list[int] = ends if isinstance(ends, list) else [] if ends is None else [ends]

    def write(
        self, start: Sequence[int], tokens: int, *, temperature: float = 0.0, stop: str | None = None,
        say: Callable[[str], object] | None = None,
    ) -> list[int]:  # fmt: skip
        """Continue `start` by at most `tokens` ids; once the positions are used up, the later half of them goes on.

        Args:
            start: the ids before; of more than there are positions, the last ones count.
            tokens: the most that is written.
            temperature: 0 takes the most likely token each time.
            stop: a text that ends the writing.
            say: called with each piece of text as soon as it is whole.
        """
        first = list(start) or [find_prefix(self._tokenizer) or 0]
        written: list[int] = []
        longest = self._positions - 1
        speaker = None if say is None else _Speaker(self._tokenizer, say)
        while len(written) < tokens:
            context = [*first, *written][-longest:]
            count = min(tokens - len(written), self._positions - len(context))
            found = self._generate(context, count, temperature, stop, speaker)
            written += found
            if len(found) < count or found[-1] in self._ends:
                break
            longest = max(1, self._positions // 2)
        if speaker is not None:
            speaker.finish()
        return written

    def _generate(
        self, context: Sequence[int], count: int, temperature: float, stop: str | None, streamer: "_Speaker | None"
    ) -> list[int]:
        how: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature > 0:
            how |= {"temperature": temperature, "top_k": TOP_K}
        if stop is not None:
            how["stop_strings"] = stop
        config = GenerationConfig(max_new_tokens=count, eos_token_id=self._ends or None, pad_token_id=0, **how)
        ids = torch.tensor([list(context)], device=self._model.device)
        all_ids = self._model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=streamer,
            tokenizer=self._tokenizer,
        )  # fmt: skip
        return all_ids[0, len(context) :].tolist()


class _Speaker(TextStreamer):
    """Passes text on word by word, over several calls of `generate`."""

    def __init__(self, tokenizer: Any, say: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._say = say

    def end(self) -> None:
        self.next_tokens_are_prompt = True  # of the next call

    def finish(self) -> None:
        super().end()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002
        if text:
            self._say(text)
