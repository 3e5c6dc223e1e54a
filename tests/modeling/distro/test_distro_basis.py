import numpy as np
import pytest
import torch
from distro_kit import load_vectors

from psyche.core.encoding.plan import BASIS_HASH
from psyche.errors import TrainerError
from psyche.modeling.distro.basis import (
    check_exact,
    compute_basis_hash,
    compute_bound,
    compute_dct,
    get_float_basis,
    get_integer_basis,
)


def test_the_integer_bases_of_edges_1_to_128_are_those_of_the_plan_hash() -> None:
    assert compute_basis_hash() == BASIS_HASH
    assert load_vectors("exact_apply")[1]["constants"]["basis_blake3_edges_1_to_128"] == BASIS_HASH.hex()


def test_the_integer_bases_equal_the_vectors() -> None:
    tensors, _ = load_vectors("exact_apply")
    edges = [name for name in tensors if name.startswith("basis.")]
    assert len(edges) == 8
    for name in edges:
        assert np.array_equal(get_integer_basis(int(name.split(".")[1])), tensors[name].numpy())


def test_the_float_bases_equal_the_vectors_to_float32_accuracy() -> None:
    tensors, _ = load_vectors("distro/dct_basis")
    names = [name for name in tensors if name.startswith(("fwd.", "inv."))]
    assert len(names) == 26
    for name in names:
        kind, edge = name.split(".")
        basis = torch.from_numpy(get_float_basis(int(edge)).copy())
        # fwd stands on the right of a row, inv of a row of coefficients.
        assert torch.allclose(basis.T if kind == "fwd" else basis, tensors[name], rtol=0, atol=3e-7)


@pytest.mark.parametrize("edge", [1, 2, 7, 43, 64, 127, 128])
def test_the_basis_is_orthonormal(edge: int) -> None:
    basis = compute_dct(edge)
    assert np.allclose(basis @ basis.T, np.eye(edge), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "case", ["one", "hostile", "ragged", "odd", "long", "oneD", "cancel", "crowd", "empty", "point"]
)
def test_the_bound_of_a_chunk_is_that_of_the_vectors(case: str) -> None:
    settings = load_vectors("exact_apply")[1][case]
    assert compute_bound(settings["h"], settings["w"]) == settings["bound"]
    check_exact(settings["h"], settings["w"])


def test_the_largest_chunk_is_exact_and_larger_edges_are_refused() -> None:
    assert compute_bound(128, 128) < 2**53
    check_exact(128, 128)
    with pytest.raises(TrainerError, match="edges above 128"):
        check_exact(129, 16)
