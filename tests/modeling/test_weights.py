import struct

import numpy as np
import pytest
import torch

from psyche.modeling import weights
from psyche.modeling.weights import compute_slice_root, compute_weight_part, compute_weight_root, get_bytes
from psyche.wire.crypto import blake3_hash, blob_id_of

CHUNK_ELEMENTS = 1 << 18


def test_bytes_are_fp32_little_endian_row_major() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).t()
    assert bytes(get_bytes(tensor)) == struct.pack("<6f", 0, 3, 1, 4, 2, 5)


def test_the_weight_root_is_the_manifests_hash_as_the_paper_writes_it() -> None:
    tensors = {"a": torch.ones(2, 3), "bé": torch.zeros(5)}
    raw = b"psyche/model/1" + struct.pack("<I", 2)
    for name, tensor in tensors.items():
        encoded = name.encode()
        raw += struct.pack("<H", len(encoded)) + encoded + struct.pack("<B", tensor.ndim)
        raw += struct.pack(f"<{tensor.ndim}I", *tensor.shape) + blob_id_of(tensor.numpy().tobytes())
    assert compute_weight_root(tensors) == blake3_hash(raw)


def test_one_changed_bit_changes_the_root() -> None:
    tensor = torch.zeros(5)
    before = compute_weight_root({"a": tensor})
    tensor[3] = -0.0
    assert compute_weight_root({"a": tensor}) != before


@pytest.mark.parametrize("random_seed", [0, 1, 2, 3, 64, 66, 2**64 - 1])
def test_a_slice_covers_the_chunks_that_the_seed_names(random_seed: int) -> None:
    sizes = {"a": CHUNK_ELEMENTS + 3, "b": 7, "c": 2 * CHUNK_ELEMENTS}  # chunks 0, 1 | 2 | 3, 4
    tensors = {name: torch.arange(size, dtype=torch.float32) for name, size in sizes.items()}
    chunks: list[bytes] = []
    for tensor in tensors.values():
        raw = tensor.numpy().tobytes()
        chunks += [raw[i : i + (1 << 20)] for i in range(0, len(raw), 1 << 20)]
    items = [(i, blake3_hash(chunk)) for i, chunk in enumerate(chunks) if i % 64 == random_seed % 64]
    expected = b"psyche/model/1" + struct.pack("<I", len(items))
    expected += b"".join(struct.pack("<I", i) + digest for i, digest in items)
    assert compute_slice_root(tensors, random_seed) == blake3_hash(expected)


def test_the_weight_part_is_full_for_small_models_and_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.from_numpy(np.ones(8, np.float32))}
    root = compute_weight_root(tensors)
    assert compute_weight_part(tensors, full=False, random_seed=0) == (root, True)
    monkeypatch.setattr(weights, "FULL_DIGEST_MAX_PARAMETERS", 7)
    assert compute_weight_part(tensors, full=True, random_seed=0) == (root, True)
    assert compute_weight_part(tensors, full=False, random_seed=5) == (compute_slice_root(tensors, 5), False)
