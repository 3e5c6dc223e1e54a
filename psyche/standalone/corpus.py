"""The rows for training and the held-out rows of a stand-alone training."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from psyche.data.permutation import Permutation
from psyche.data.provider import SampleSource
from psyche.errors import ConfigError
from psyche.modeling.trainer.batch import decode_tokens
from psyche.standalone.settings import TrainSettings
from psyche.standalone.sources import PlaceRows, ReadingLoop, open_source
from psyche.wire.data import LABELLED_BYTES

MOST_HELD_OUT: Final = 200_000  # of their own accord: more make an evaluation slower, not better


class Corpus:
    """Training rows, shuffled anew in every pass, and held-out rows from other files or the end of the same ones.

    Token ids must be below `vocab_size`.
    """

    def __init__(self, settings: TrainSettings, vocab_size: int, loop: ReadingLoop) -> None:
        sequence_length, eval_tokens = settings.sequence_length, settings.eval_tokens
        self._data = open_source(settings.data, settings, vocab_size, loop)
        self._vocab_size = vocab_size
        if settings.eval_data:
            self._held_out = open_source(settings.eval_data, settings, vocab_size, loop)
            self.held_out_rows, self._first_held_out = self._held_out.num_sequences, 0
            self.train_rows = self._data.num_sequences
        else:
            self._held_out = self._data
            tokens = self._data.num_sequences * sequence_length
            eval_tokens = min(MOST_HELD_OUT, tokens // 10) if eval_tokens is None else eval_tokens
            self.held_out_rows = -(-eval_tokens // sequence_length)
            self.train_rows = self._first_held_out = self._data.num_sequences - self.held_out_rows
        if self.train_rows < 1:
            raise ConfigError(
                f"--eval-tokens: {eval_tokens} of {self._data.num_sequences * sequence_length} tokens held out leave "
                "nothing to train on; hold out fewer, or take more --data"
            )
        self._seed = hashlib.sha256(f"psyche train {settings.seed}".encode()).digest()
        self._pass = -1
        self._order = Permutation(self.train_rows, self._seed, 0)

    def take(self, start: int, count: int) -> torch.Tensor:
        """Rows `start` to `start + count - 1` of the training order, as `decode_tokens` gives them."""
        return self._read(self._data, [self._place(index) for index in range(start, start + count)])

    def held_out(self, count: int) -> torch.Tensor:
        """At most `count` held-out rows, evenly spread, the same every time."""
        chosen = np.linspace(0, self.held_out_rows - 1, min(count, self.held_out_rows)).astype(int)
        places = [self._first_held_out + int(place) for place in chosen]
        return self._read(self._held_out, places)

    def _read(self, source: SampleSource, places: Sequence[int]) -> torch.Tensor:
        if isinstance(source, PlaceRows):
            rows = source.pick(places)
        else:
            rows = np.concatenate([source.samples(place, place) for place in places])
        has_labels = source.token_size_bytes == LABELLED_BYTES
        return decode_tokens(rows.tobytes(), len(rows), source.sequence_length, self._vocab_size, has_labels=has_labels)

    def _place(self, index: int) -> int:
        number, within = divmod(index, self.train_rows)
        if number != self._pass:
            self._pass, self._order = number, Permutation(self.train_rows, self._seed, number)
        return int(self._order.permute(np.array([within]))[0])
