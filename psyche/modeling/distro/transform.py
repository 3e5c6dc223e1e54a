"""The transform and what is chosen of it: DCT of chunks, the k largest, the payload.

Plain tensors in and out, so that a fused kernel may stand in for any of these functions.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from psyche.core.plan import TransformPlan
from psyche.modeling.distro.basis import get_float_basis
from psyche.modeling.distro.codec import ChunkSets, encode_payload

_INFINITY_BITS: Final = 0x7F800000  # magnitudes from here on are infinite or no numbers
_DENSE_SHARE: Final = 32  # a k above area/32 is found faster by partition than by top-k


@lru_cache(maxsize=256)
def _get_basis(edge: int, device: torch.device) -> torch.Tensor:
    """The DCT basis, float32 [edge, edge] on its device."""
    return torch.from_numpy(get_float_basis(edge).copy()).to(device)


def transform(
    chunks: torch.Tensor, out: torch.Tensor | None = None, scratch: torch.Tensor | None = None
) -> torch.Tensor:
    """The orthonormal DCT of every chunk.

    Args:
        chunks: float32 [chunks, h, w], contiguous.
        out: where the result goes, float32 [chunks, h, w]; new if None.
        scratch: overwritten, float32 [chunks, h, w]; new if None.

    Returns:
        float32 [chunks, h, w], index [u, v] being vertical and horizontal frequency.
    """
    height, width = chunks.shape[1:]
    vertical, horizontal = _get_basis(height, chunks.device), _get_basis(width, chunks.device)
    return multiply_both(chunks, vertical, horizontal.T, out, scratch)


def invert(
    coefficients: torch.Tensor, out: torch.Tensor | None = None, scratch: torch.Tensor | None = None
) -> torch.Tensor:
    """The inverse of `transform`, same shapes; rounded, so only for what need not agree between peers."""
    height, width = coefficients.shape[1:]
    vertical, horizontal = _get_basis(height, coefficients.device), _get_basis(width, coefficients.device)
    return multiply_both(coefficients, vertical.T, horizontal, out, scratch)


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
    """The `topk` largest magnitudes of each row; ties at the last place go to the lowest index.

    Only coefficients that are finite and not zero are chosen, so a row may have fewer.

    Args:
        coefficients: float32 [chunks, area], contiguous.
        topk: 1 to area.

    Returns:
        indices int32 [chunks, topk], rising, padded with `area`; values float32 [chunks, topk],
        padded with 0.
    """
    count, area = coefficients.shape
    # Positive floats are ordered like their bits; integers sort faster and compare exactly.
    magnitudes = coefficients.abs().view(torch.int32)
    if magnitudes.numel() and int(magnitudes.max()) >= _INFINITY_BITS:
        magnitudes.masked_fill_(magnitudes >= _INFINITY_BITS, 0)
    least = _get_least(magnitudes, topk).clamp_(min=1)[:, None]
    mask = magnitudes >= least
    places, sizes = _get_places(mask)
    if sizes.numel() and int(sizes.max()) > topk:
        _cut_ties(mask, magnitudes, least, sizes, topk)
        places, sizes = _get_places(mask)
    indices = torch.full((count, topk), area, dtype=torch.int32, device=coefficients.device)
    values = torch.zeros((count, topk), dtype=torch.float32, device=coefficients.device)
    chunks = places // area
    entries = torch.arange(places.numel(), device=places.device) - (sizes.cumsum(0) - sizes)[chunks]
    slots = chunks * topk + entries
    indices.view(-1)[slots] = (places - chunks * area).to(torch.int32)
    values.view(-1)[slots] = coefficients.reshape(-1)[places]
    return indices, values


def _get_least(magnitudes: torch.Tensor, topk: int) -> torch.Tensor:
    """The topk-th largest of each row, int32 [chunks]."""
    area = magnitudes.shape[1]
    if topk >= area:
        return magnitudes.amin(dim=1)
    if magnitudes.device.type == "cpu" and topk * _DENSE_SHARE > area:
        parted = np.partition(magnitudes.numpy(), area - topk, axis=1)
        return torch.from_numpy(parted[:, area - topk].copy())
    return magnitudes.topk(topk, dim=1).values[:, -1].clone()


def _get_places(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat places of what is chosen, rising, int64 [entries], and how many per row, int64 [chunks]."""
    if mask.device.type == "cpu":  # NumPy finds them twice as fast
        places = torch.from_numpy(np.flatnonzero(mask.numpy()))
    else:
        places = mask.view(-1).nonzero().view(-1)
    return places, torch.bincount(places // mask.shape[1], minlength=mask.shape[0])


def _cut_ties(
    mask: torch.Tensor, magnitudes: torch.Tensor, least: torch.Tensor, sizes: torch.Tensor, topk: int
) -> None:
    """In rows with too many entries keep, of those equal to the least, the ones with the lowest index."""
    rows = (sizes > topk).nonzero().view(-1)
    above = magnitudes[rows] > least[rows]
    ties = magnitudes[rows] == least[rows]
    room = topk - above.sum(dim=1, keepdim=True)
    mask[rows] = above | (ties & (ties.cumsum(dim=1) <= room))


def pack(plan: TransformPlan, chosen: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bytes:
    """The payload of what `select` chose of each group, in the order of `plan.groups`."""
    return encode_payload(plan, [ChunkSets(indices.cpu().numpy(), values.cpu().numpy()) for indices, values in chosen])
