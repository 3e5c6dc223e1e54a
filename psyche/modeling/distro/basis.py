"""The DCT bases: float32 for selecting coefficients, integers for the exact apply.

NumPy only, because the client's parent process imports this module without torch.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from psyche.core.encoding.plan import BASIS_HASH, MAX_CHUNK_EDGE
from psyche.errors import TrainerError

BASIS_BITS: Final = 14
VOTE_BITS: Final = 10
EXACT_BITS: Final = 53  # integers up to 2^53 are exact in float64


def compute_dct(edge: int) -> NDArray[np.float64]:
    """The orthonormal DCT-II: D[u, i] = sqrt(2/n) cos(pi (2i+1) u / 2n), row 0 divided by sqrt 2.

    Returns:
        float64 [edge, edge]; `D @ x` is the transform of a column, `D.T @ c` its inverse.
    """
    frequency = np.arange(edge, dtype=np.int64)[:, None]
    place = np.arange(edge, dtype=np.int64)[None, :]
    # Whole turns are removed in integers, so that the argument of the cosine is small and exact.
    part = (frequency * (2 * place + 1)) % (4 * edge)
    basis = np.sqrt(2.0 / edge) * np.cos(np.pi * part / (2 * edge))
    basis[0] = np.sqrt(1.0 / edge)
    return basis


@lru_cache(maxsize=256)
def get_float_basis(edge: int) -> NDArray[np.float32]:
    """The basis of the forward transform, float32 [edge, edge], read-only."""
    basis = compute_dct(edge).astype(np.float32)
    basis.setflags(write=False)
    return basis


@lru_cache(maxsize=256)
def get_integer_basis(edge: int) -> NDArray[np.int16]:
    """The basis of the exact inverse, round(2^14 D) computed in float64, int16 [edge, edge], read-only."""
    basis = np.rint(np.ldexp(compute_dct(edge), BASIS_BITS)).astype(np.int16)
    basis.setflags(write=False)
    return basis


@lru_cache(maxsize=1)
def compute_basis_hash() -> bytes:
    """BLAKE3 over the integer bases of edges 1 to 128, concatenated, little-endian, row-major (32 bytes)."""
    hasher = blake3()
    for edge in range(1, MAX_CHUNK_EDGE + 1):
        hasher.update(get_integer_basis(edge).astype("<i2").tobytes())
    return hasher.digest()


def get_largest_column(edge: int) -> int:
    """L(edge): the largest column sum of |B|."""
    return int(np.abs(get_integer_basis(edge).astype(np.int64)).sum(axis=0).max())


def compute_bound(height: int, width: int) -> int:
    """The largest value that the exact inverse of a chunk can reach; a chunk of one row needs one pass only."""
    vertical = get_largest_column(height) if height > 1 else 1
    return (1 << VOTE_BITS) * vertical * get_largest_column(width)


def check_exact(height: int, width: int) -> None:
    """Refuse a chunk whose inverse is not exact in float64, or a machine whose cosine differs from its peers'."""
    if max(height, width) > MAX_CHUNK_EDGE:
        raise TrainerError(
            f"chunk {height} x {width}: edges above {MAX_CHUNK_EDGE} are not supported; lower compression_chunk"
        )
    bound = compute_bound(height, width)
    if bound >= 1 << EXACT_BITS:
        raise TrainerError(f"chunk {height} x {width}: its inverse may reach {bound}, the limit is 2^{EXACT_BITS}")
    if compute_basis_hash() != BASIS_HASH:
        raise TrainerError(
            "this machine computes other DCT bases than its peers, so its weights would differ; use another machine "
            "or another build of NumPy"
        )
