"""The DCT as a program of small steps, each of which mixes two rows: n log n operations instead of n^2.

By cos(a + b) a DCT-II of an even number of rows is one of half of them and a DCT-IV of half of them, and a DCT-IV is
two DCT-II. Turns are by true angles, so that no step enlarges rounding errors.
"""

from functools import lru_cache
from math import cos, pi, sin
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Step = tuple[int, int, tuple[float, float, float, float]]  # rows p and q become a p + b q and c p + d q
_ROUNDINGS: Final = 3  # of a p + b q with a coefficient that is rounded too, in units of the last place at most


class Program(NamedTuple):
    """Steps in order: their rows, int64 [steps, 2]; their coefficients, float32 [steps, 4]; where each frequency is.

    `scales` make frequencies orthonormal. An inverse takes scaled frequencies at these places and gives the rows.
    """

    rows: NDArray[np.int64]
    coefficients: NDArray[np.float32]
    places: NDArray[np.int64]
    scales: NDArray[np.float32]


def can_be_fast(edge: int) -> bool:
    return edge in (16, 32, 64, 128)


@lru_cache(maxsize=16)
def make_programs(edge: int) -> tuple[Program, Program, float]:
    """The programs of a DCT of a power of two rows and of its inverse, and the rounding of the inverse.

    The rows that it gives are off by at most that many units of 2^-24 of the sum of the magnitudes of its input.
    """
    steps: list[Step] = []
    places = _transform(list(range(edge)), steps)
    scales = np.full(edge, np.sqrt(2.0 / edge))
    scales[0] = np.sqrt(1.0 / edge)
    rows = np.array([step[:2] for step in steps], dtype=np.int64).reshape(-1, 2)
    coefficients = np.array([step[2] for step in steps]).reshape(-1, 4)
    forward = Program(rows, coefficients.astype(np.float32), np.array(places), scales.astype(np.float32))
    # All is orthogonal, so the inverse is the transposed, step by step.
    rows, coefficients = rows[::-1].copy(), coefficients[::-1][:, [0, 2, 1, 3]]
    inverse = forward._replace(rows=rows, coefficients=coefficients.astype(np.float32))
    return forward, inverse, _bound_rounding(edge, rows, coefficients)


def _transform(rows: list[int], steps: list[Step]) -> list[int]:
    """X[k] = sum of x[i] cos(pi k (2i + 1) / 2n); where each X[k] is then."""
    count = len(rows)
    if count == 1:
        return rows
    half = count // 2
    steps += [(rows[i], rows[-1 - i], (1.0, 1.0, 1.0, -1.0)) for i in range(half)]
    even = _transform(rows[:half], steps)
    odd = _transform_odd(rows[: half - 1 : -1], steps)
    return [place for pair in zip(even, odd, strict=True) for place in pair]


def _transform_odd(rows: list[int], steps: list[Step]) -> list[int]:
    """X[k] = sum of x[i] cos(pi (2k + 1) (2i + 1) / 4n)."""
    count = len(rows)
    if count == 1:
        steps.append((rows[0], rows[0], (cos(pi / 4), 0.0, 0.0, cos(pi / 4))))
        return rows
    half = count // 2
    for i in range(half):
        turn, sign = pi * (2 * i + 1) / (4 * count), 1 - i % 2 * 2
        steps.append((rows[i], rows[-1 - i], (cos(turn), sin(turn), sign * sin(turn), -sign * cos(turn))))
    cosines = _transform(rows[:half], steps)
    sines = _transform(rows[: half - 1 : -1], steps)[::-1]  # sin(pi k (2i + 1) / n) is a cosine of n/2 - k
    places = [cosines[0]]
    for place, other in zip(cosines[1:], sines[:-1], strict=True):
        steps.append((place, other, (1.0, 1.0, 1.0, -1.0)))
        places += (place, other)
    return [*places, sines[-1]]


def _bound_rounding(edge: int, rows: NDArray[np.int64], coefficients: NDArray[np.float64]) -> float:
    """The largest sum of roundings that a unit of one input brings into one output of the inverse."""
    values, errors = np.eye(edge), np.eye(edge)  # by row and input; the inputs themselves are rounded once
    for row, matrix in zip(rows, coefficients.reshape(-1, 2, 2), strict=True):
        errors[row] = np.abs(matrix) @ (errors[row] + _ROUNDINGS * np.abs(values[row]))
        values[row] = matrix @ values[row]
    return float(errors.max())
