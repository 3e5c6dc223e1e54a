"""The DCT of chunks, the selection of the k largest coefficients, and the payload.

All functions take and return plain tensors, so that a fused kernel can replace any of them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.modeling.distro.basis import get_float_basis
from psyche.modeling.distro.codec import ChunkSets, encode_payload

_INFINITY_BITS: Final = 0x7F800000  # magnitudes from this bit pattern on are infinite or NaN
_DENSE_SHARE: Final = 32  # for k above area/32, a partition is faster than top-k
_PARTS_PER_ENTRY: Final = 8  # with this many parts per entry, the bound admits few superfluous candidates
_LEAST_PART: Final = 4  # smaller parts cost more than they save


@lru_cache(maxsize=256)
def _get_basis(edge: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(get_float_basis(edge).copy()).to(device)


def transform(
    chunks: torch.Tensor, out: torch.Tensor | None = None, scratch: torch.Tensor | None = None
) -> torch.Tensor:
    """The orthonormal DCT of every chunk, float32 [chunks, h, w]; [u, v] is vertical and horizontal frequency.

    `out` receives the result and `scratch` is overwritten; both are allocated if None.
    """
    height, width = chunks.shape[1:]
    vertical, horizontal = _get_basis(height, chunks.device), _get_basis(width, chunks.device)
    return multiply_both(chunks, vertical, horizontal.T, out, scratch)


def invert(coefficients: torch.Tensor) -> torch.Tensor:
    """The inverse of `transform`, same shapes; rounded, so use it only where peers need not agree."""
    height, width = coefficients.shape[1:]
    vertical, horizontal = _get_basis(height, coefficients.device), _get_basis(width, coefficients.device)
    return multiply_both(coefficients, vertical.T, horizontal)


def multiply_both(
    chunks: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor | None = None,
    scratch: torch.Tensor | None = None,
) -> torch.Tensor:
    """left @ chunk @ right for every chunk [chunks, h, w]; chunks of one row skip `left`."""
    count, height, width = chunks.shape
    out = torch.empty_like(chunks) if out is None else out
    if height == 1:
        torch.mm(chunks.view(count, width), right, out=out.view(count, width))
        return out
    scratch = torch.empty_like(chunks) if scratch is None else scratch
    torch.mm(chunks.view(count * height, width), right, out=scratch.view(count * height, width))
    return torch.bmm(left.expand(count, height, height), scratch, out=out)


def select(coefficients: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the coefficients with the `topk` largest magnitudes of each row; ties go to the lowest index.

    Only coefficients that are finite and not zero are selected, so a row may have fewer.

    Args:
        coefficients: float32 [chunks, area], contiguous.
        topk: 1 to area.

    Returns:
        indices int32 [chunks, topk], ascending, padded with `area`; values float32 [chunks, topk],
        padded with 0.
    """
    count, area = coefficients.shape
    # Positive floats are ordered like their bits; integers sort faster and compare exactly.
    magnitudes = coefficients.abs().view(torch.int32)
    if magnitudes.numel() and int(magnitudes.max()) >= _INFINITY_BITS:
        magnitudes.masked_fill_(magnitudes >= _INFINITY_BITS, 0)
    places = _get_places(magnitudes >= _get_bound(magnitudes, topk).clamp_(min=1))
    places, chunks, entries = _keep_largest(magnitudes, places, topk)
    indices = torch.full((count, topk), area, dtype=torch.int32, device=coefficients.device)
    values = torch.zeros((count, topk), dtype=torch.float32, device=coefficients.device)
    slots = chunks * topk + entries
    indices.view(-1)[slots] = (places - chunks * area).to(torch.int32)
    values.view(-1)[slots] = coefficients.reshape(-1)[places]
    return indices, values


def _get_bound(magnitudes: torch.Tensor, topk: int) -> torch.Tensor:
    """A close lower bound of the topk-th largest magnitude of each row, int32 [chunks, 1]."""
    count, area = magnitudes.shape
    if topk >= area:
        return magnitudes.amin(dim=1, keepdim=True)
    share = area // (topk * _PARTS_PER_ENTRY)
    size = min(1 << max(0, share.bit_length() - 1), area & -area)  # a power of two that divides the area
    if size >= _LEAST_PART:
        # The bound is the topk-th largest of the parts' maxima: at least topk coefficients reach it.
        magnitudes = magnitudes.view(count, size, area // size).amax(dim=1)
    return _get_ranked(magnitudes, topk)


def _get_ranked(magnitudes: torch.Tensor, topk: int) -> torch.Tensor:
    """The topk-th largest magnitude of each row, int32 [chunks, 1]."""
    area = magnitudes.shape[1]
    if magnitudes.device.type == "cpu" and topk * _DENSE_SHARE > area:
        parted = np.partition(magnitudes.numpy(), area - topk, axis=1)
        return torch.from_numpy(parted[:, area - topk, None].copy())
    return magnitudes.topk(topk, dim=1).values[:, -1:].clone()


def _get_places(mask: torch.Tensor) -> torch.Tensor:
    """The flat places at which the mask is set, ascending, int64 [entries]."""
    if mask.device.type == "cpu":  # NumPy is twice as fast as torch here
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.view(-1).nonzero().view(-1)


def _keep_largest(
    magnitudes: torch.Tensor, places: torch.Tensor, topk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keep the topk largest of each row among the candidates at `places`; ties go to the lowest place.

    Returns:
        The places kept, their chunks, and their numbers within the chunk, int64 [entries] each.
    """
    count, area = magnitudes.shape
    chunks = places // area
    sizes = torch.bincount(chunks, minlength=count)
    entries = torch.arange(places.numel(), device=places.device) - (sizes.cumsum(0) - sizes)[chunks]
    most = int(sizes.max()) if count else 0
    if most <= topk:
        return places, chunks, entries
    slots = chunks * most + entries
    candidates = torch.zeros((count, most), dtype=torch.int32, device=places.device)
    candidates.view(-1)[slots] = magnitudes.view(-1)[places]
    last = _get_ranked(candidates, topk)
    above, ties = candidates > last, candidates == last
    room = topk - above.sum(dim=1, keepdim=True)
    keep = above | (ties & (ties.cumsum(dim=1) <= room))
    kept = keep.view(-1)[slots]
    return places[kept], chunks[kept], (keep.cumsum(dim=1) - 1).view(-1)[slots][kept]


def pack(plan: TransformPlan, chosen: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bytes:
    """Encode the selection (`select`) of each group, in the order of `plan.groups`, as a payload."""
    return encode_payload(plan, [ChunkSets(indices.cpu().numpy(), values.cpu().numpy()) for indices, values in chosen])
