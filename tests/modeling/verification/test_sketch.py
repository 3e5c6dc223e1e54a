"""V3: the sketch is a fixed function of seed and gradient, on every device the same but for rounding."""

import numpy as np
import pytest
import torch
from blake3 import blake3

from psyche.modeling.verification import sketch as module
from psyche.modeling.verification.sketch import Sketch, compute_signs

SEED = b"\x0b" * 32  # the rows r with r mod 8 = 3 take part


def make_gradients() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    shapes = {"b.weight": (40, 16), "a.bias": (7,), "c.stack": (3, 10, 5), "d": (), "none": (4, 0)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def sketch_plainly(gradients: dict[str, torch.Tensor], seed: bytes, longest: int = 1 << 21) -> np.ndarray:
    """The rule, row by row."""
    stream = blake3(b"psyche/sketch/1" + seed).digest(length=1 << 19)
    buckets, number = np.zeros(64), 0
    for name in sorted(gradients):
        tensor = gradients[name].double().numpy()
        width = tensor.shape[-1] if tensor.ndim else 1
        for row in tensor.reshape(-1, width) if width else ():
            for part in (row[at : at + longest] for at in range(0, width, longest)):
                if number % 8 == seed[0] % 8:
                    first = number * 2_592_192 % ((1 << 22) - len(part))
                    bits = (stream[at // 8] >> at % 8 & 1 for at in range(first, first + len(part)))
                    buckets[number // 8 % 64] += sum(v * (1 if bit else -1) for v, bit in zip(part, bits, strict=True))
                number += 1
    return buckets


def test_v3_the_signs_of_a_round_follow_from_its_seed() -> None:
    signs = compute_signs(SEED)
    assert len(signs) == 1 << 22
    assert signs[:16].tolist() == [1, -1, 1, -1, -1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, -1]
    assert abs(signs.float().mean().item()) < 0.002
    assert not torch.equal(signs, compute_signs(b"\x0c" * 32))


@pytest.mark.parametrize("first", range(8))
def test_v3_the_sketch_is_that_of_the_rule(first: int) -> None:
    seed, gradients = bytes([8 + first]) * 32, make_gradients()
    found = np.array(Sketch(seed).compute(gradients))
    np.testing.assert_allclose(found, sketch_plainly(gradients, seed), atol=1e-5)


def test_v3_a_fixed_vector() -> None:
    gradient = {"w": torch.arange(24 * 3, dtype=torch.float32).reshape(24, 3), "v": torch.ones(5)}
    values = Sketch(SEED).compute(gradient)
    assert values[:4] == (9.0, 31.0, -55.0, 0.0)
    assert not any(values[3:])


@pytest.mark.parametrize("block", [1, 16, 40])
def test_v3_the_size_of_a_block_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sketch(SEED).compute(make_gradients())
    monkeypatch.setattr(module, "_BLOCK", block)
    np.testing.assert_allclose(Sketch(SEED).compute(make_gradients()), whole, atol=1e-5)


def test_v3_a_row_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_ROW", 6)
    found = np.array(Sketch(SEED).compute(make_gradients()))
    np.testing.assert_allclose(found, sketch_plainly(make_gradients(), SEED, 6), atol=1e-5)


def test_v3_half_precision_is_summed_in_full_precision() -> None:
    half = {name: tensor.bfloat16() for name, tensor in make_gradients().items()}
    exact = {name: tensor.float() for name, tensor in half.items()}
    assert Sketch(SEED).compute(half) == Sketch(SEED).compute(exact)


def test_v3_the_sum_of_two_gradients_has_the_sum_of_their_sketches() -> None:
    one = make_gradients()
    two = {name: tensor.flip(0) if tensor.dim() else tensor for name, tensor in one.items()}
    both = {name: one[name] + two[name] for name in one}
    apart = [np.array(Sketch(SEED).compute(part)) for part in (one, two)]
    np.testing.assert_allclose(Sketch(SEED).compute(both), sum(apart), atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_v3_a_gpu_agrees_within_a_hundred_thousandth() -> None:
    gradients = make_gradients()
    found = Sketch(SEED, "cuda").compute({name: tensor.cuda() for name, tensor in gradients.items()})
    own = np.array(Sketch(SEED).compute(gradients))
    assert np.linalg.norm(np.array(found) - own) <= 1e-5 * np.linalg.norm(own)
