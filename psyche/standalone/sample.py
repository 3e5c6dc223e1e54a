"""Text and held-out loss from an exported model, read with plain transformers: using it needs none of our code."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from psyche.errors import ConfigError
from psyche.standalone.exported import Writer, get_positions, load_exported, load_tokenizer

HELD_OUT_ROWS: Final = 256
ROWS_AT_ONCE: Final = 16
ROW_TOKENS: Final = 2_048  # in models without a limit


@dataclass(frozen=True, slots=True)
class Sample:
    """What a model has `written` after `prompt`, and both as one `text`; `held_out_loss` in nats per token, None if
    nothing was held out. `no_text` says why there is no text: the model is sound, but not its tokenizer.
    """

    prompt: str
    written: str
    text: str
    held_out_loss: float | None
    no_text: str = ""


def sample_model(
    folder: Path, *, prompt: str = "def ", tokens: int = 200, temperature: float = 0.8, seed: int = 0,
    held_out: Path | None = None,
) -> Sample:  # fmt: skip
    """Load an exported folder and generate text.

    Args:
        folder: a Hugging Face folder with its tokenizer.
        prompt: the beginning of the text.
        tokens: how many tokens to add.
        temperature: 0 takes the most likely token each time.
        seed: the seed of the sampling.
        held_out: a file of 2-byte token ids to measure the loss on.
    """
    model = load_exported(folder)
    loss = None if held_out is None else compute_held_out_loss(model, held_out)
    torch.manual_seed(seed)
    try:
        tokenizer = load_tokenizer(folder)
        start: list[int] = tokenizer(prompt).input_ids
    except Exception as error:  # noqa: BLE001  # tokenizers raises plain Exception
        return Sample(prompt, "", prompt, loss, str(error))
    found = Writer(model, tokenizer).write(start, tokens, temperature=temperature)
    text: str = tokenizer.decode([*start, *found], skip_special_tokens=True)
    if text.startswith(prompt):
        written = text.removeprefix(prompt)
    else:  # the tokenizer does not reproduce its input
        written = tokenizer.decode(found, skip_special_tokens=True)
    return Sample(prompt, written, text, loss)


@torch.no_grad()
def compute_held_out_loss(model: Any, path: Path) -> float:
    length = get_positions(model, ROW_TOKENS)
    ids = np.fromfile(path, dtype="<u2").astype(np.int64)
    rows = len(ids) // length
    if rows == 0:
        raise ConfigError(f"{path}: fewer than {length} tokens")
    if ids.max() >= model.config.vocab_size:
        raise ConfigError(f"{path}: token {ids.max()} is outside the model's vocabulary of {model.config.vocab_size}")
    chosen = np.unique(np.linspace(0, rows - 1, min(rows, HELD_OUT_ROWS)).astype(int))
    samples = torch.from_numpy(ids[: rows * length].reshape(rows, length)[chosen])
    total, count = 0.0, 0
    for part in torch.split(samples, ROWS_AT_ONCE):
        logits = model(part).logits[:, :-1].flatten(0, 1)
        total += float(torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
        count += part[:, 1:].numel()
    return total / count
