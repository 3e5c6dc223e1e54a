"""Synthetic data, for tests of everything except learning."""

import numpy as np
from numpy.typing import NDArray

from psyche.data.order import count_rows


class DummyData:
    """Endless rows of zeros or, with a vocabulary, of pseudorandom ids computed from the index."""

    num_sequences = 1 << 62

    def __init__(self, sequence_length: int, vocab_size: int | None = None) -> None:
        self.sequence_length = sequence_length
        self.vocab_size = vocab_size
        self.token_size_bytes = 4

    def samples(self, start: int, end: int) -> NDArray[np.uint32]:
        rows = count_rows(start, end, self.sequence_length)
        if self.vocab_size is None:
            return np.zeros((rows, self.sequence_length), dtype=np.uint32)
        first = np.arange(start, end + 1, dtype=np.uint64)[:, None] * np.uint64(self.sequence_length)
        position = first + np.arange(self.sequence_length, dtype=np.uint64)
        mixed = (position ^ (position >> np.uint64(15))) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(33)) % np.uint64(self.vocab_size)).astype(np.uint32)
