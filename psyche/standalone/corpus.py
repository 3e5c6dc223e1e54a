"""The rows for training and the held-out rows of a stand-alone training."""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.data.local import TokenRows
from psyche.data.permutation import Permutation
from psyche.errors import ConfigError
from psyche.standalone.settings import TrainSettings

MOST_HELD_OUT: Final = 200_000  # of their own accord: more make an evaluation slower, not better


class Corpus:
    """Training rows, shuffled anew in every pass, and held-out rows from other files or the end of the same ones.

    Token ids must be below `vocab_size`.
    """

    def __init__(self, settings: TrainSettings, vocab_size: int) -> None:
        sequence_length, eval_tokens = settings.sequence_length, settings.eval_tokens
        shape = (settings.token_size_bytes, sequence_length, None, vocab_size)
        self._data = TokenRows(settings.data, *shape)
        if settings.eval_data:
            self._held_out = TokenRows(settings.eval_data, *shape)
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

    def take(self, start: int, count: int) -> NDArray[np.uint32]:
        """Rows `start` to `start + count - 1` of the training order, uint32 [count, sequence_length]."""
        return np.concatenate([self._data.samples(*[self._place(index)] * 2) for index in range(start, start + count)])

    def held_out(self, count: int) -> NDArray[np.uint32]:
        """At most `count` held-out rows, evenly spread, the same every time; uint32 [rows, sequence_length]."""
        chosen = np.linspace(0, self.held_out_rows - 1, min(count, self.held_out_rows)).astype(int)
        places = [self._first_held_out + int(place) for place in chosen]
        return np.concatenate([self._held_out.samples(place, place) for place in places])

    def _place(self, index: int) -> int:
        number, within = divmod(index, self.train_rows)
        if number != self._pass:
            self._pass, self._order = number, Permutation(self.train_rows, self._seed, number)
        return int(self._order.permute(np.array([within]))[0])
