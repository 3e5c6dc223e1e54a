import struct

import numpy as np
import pytest
import torch

from psyche.errors import TrainerError
from psyche.modeling import weights
from psyche.modeling.model import get_tensors
from psyche.modeling.snapshot import get_file_entries
from psyche.modeling.weights import (
    compute_blank_root,
    compute_slice_root,
    compute_weight_part,
    compute_weight_root,
    get_bytes,
)
from psyche.wire.crypto import blake3_hash, blob_id_of

CHUNK_ELEMENTS = 1 << 18


def test_bytes_are_fp32_little_endian_row_major() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).t()
    assert bytes(get_bytes(tensor)) == struct.pack("<6f", 0, 3, 1, 4, 2, 5)


FILES = get_file_entries({"config.json": b"{}"})
FILES_BYTES = struct.pack("<IH", 1, 11) + b"config.json" + struct.pack("<Q", 2) + blob_id_of(b"{}")


def test_the_weight_root_is_the_manifests_hash_as_the_paper_writes_it() -> None:
    tensors = {"a": torch.ones(2, 3), "bé": torch.zeros(5)}
    raw = b"psyche/model/2" + struct.pack("<I", 2)
    for name, tensor in tensors.items():
        encoded = name.encode()
        raw += struct.pack("<H", len(encoded)) + encoded + struct.pack("<B", tensor.ndim)
        raw += struct.pack(f"<{tensor.ndim}I", *tensor.shape) + blob_id_of(tensor.numpy().tobytes())
    assert compute_weight_root(tensors, FILES) == blake3_hash(raw + FILES_BYTES)


@pytest.mark.parametrize("random_seed", [0, 1, 2, 3, 64, 66, 2**64 - 1])
def test_a_slice_covers_the_chunks_that_the_seed_names(random_seed: int) -> None:
    sizes = {"a": CHUNK_ELEMENTS + 3, "b": 7, "c": 2 * CHUNK_ELEMENTS}  # chunks 0, 1 | 2 | 3, 4
    tensors = {name: torch.arange(size, dtype=torch.float32) for name, size in sizes.items()}
    chunks: list[bytes] = []
    for tensor in tensors.values():
        raw = tensor.numpy().tobytes()
        chunks += [raw[i : i + (1 << 20)] for i in range(0, len(raw), 1 << 20)]
    items = [(i, blake3_hash(chunk)) for i, chunk in enumerate(chunks) if i % 64 == random_seed % 64]
    expected = b"psyche/model/2" + struct.pack("<I", len(items))
    expected += b"".join(struct.pack("<I", i) + digest for i, digest in items)
    assert compute_slice_root(tensors, FILES, random_seed) == blake3_hash(expected + FILES_BYTES)


def test_the_weight_part_is_full_for_small_models_and_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.from_numpy(np.ones(8, np.float32))}
    root = compute_weight_root(tensors, FILES)
    assert compute_weight_part(tensors, FILES, is_exact=True, full=False, random_seed=0) == (root, True)
    monkeypatch.setattr(weights, "FULL_DIGEST_MAX_PARAMETERS", 7)
    assert compute_weight_part(tensors, FILES, is_exact=True, full=True, random_seed=0) == (root, True)
    part = compute_weight_part(tensors, FILES, is_exact=True, full=False, random_seed=5)
    assert part == (compute_slice_root(tensors, FILES, 5), False)


@pytest.mark.parametrize("seed", [0, 5])
def test_every_digest_covers_the_small_files(seed: int) -> None:
    """S2: the full one, the slice of any round, whether or not it holds a chunk, and that of full values."""
    tensors = {"a": torch.ones(8)}
    others = get_file_entries({"config.json": b"[]"})
    assert compute_weight_root(tensors, FILES) != compute_weight_root(tensors, others)
    assert compute_slice_root(tensors, FILES, seed) != compute_slice_root(tensors, others, seed)
    assert compute_blank_root(tensors, FILES) != compute_blank_root(tensors, others)
    assert compute_blank_root(tensors, FILES) == compute_blank_root({"a": torch.zeros(8)}, FILES)
    assert compute_blank_root(tensors, FILES) != compute_blank_root({"a": torch.ones(9)}, FILES)


def test_a_persistent_buffer_is_part_of_the_digest_and_another_is_not() -> None:
    """S2: what the config does not determine is covered, trained or not."""
    module = torch.nn.Linear(2, 2)
    module.weight.requires_grad_(requires_grad=False)
    module.register_buffer("scale", torch.ones(3))
    module.register_buffer("scratch", torch.ones(3), persistent=False)
    roots = [compute_weight_root(get_tensors(module), FILES)]
    assert list(get_tensors(module)) == ["bias", "scale", "weight"]
    for name in ("scratch", "scale", "weight"):
        with torch.no_grad():
            getattr(module, name).view(-1)[1] = 7
        roots.append(compute_weight_root(get_tensors(module), FILES))
    assert roots[1] == roots[0]
    assert len(set(roots)) == 3


def test_a_buffer_that_fp32_cannot_hold_is_refused() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TrainerError, match=r"counts has values of torch\.int64"):
        get_tensors(module)
