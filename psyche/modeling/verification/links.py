"""Whether a round's gradient went into its payload: signs, and opened chunks of the momentum (V11)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from psyche.core.committee.verdicts import compute_distance
from psyche.core.encoding.plan import TransformPlan
from psyche.core.state.enums import AuditReason
from psyche.errors import WireError
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.distro.transform import select
from psyche.modeling.verification.openings import Opening, decode_pair, draw_chunks
from psyche.wire.trainer import LinkRequest


class Finding(NamedTuple):
    """Why the link is broken (NONE: nothing exact shows it), and how far the growth is from the gradient (E)."""

    reason: AuditReason
    distance: float = -1.0


def compute_sign_share(payload: Sequence[ChunkSets], gradient: Sequence[Tensor]) -> float:
    """The share of the places sent where payload and gradient have one sign; 0 if nothing is sent (V11)."""
    same = sent = 0
    for sets, group in zip(payload, gradient, strict=True):
        chunks, entries = np.nonzero(sets.values)
        own = group.cpu().numpy()[chunks, sets.indices[chunks, entries]]
        same += int((own * sets.values[chunks, entries] > 0).sum())
        sent += len(chunks)
    return same / sent if sent else 0.0


def check_link(
    plan: TransformPlan, link: LinkRequest, payload: Sequence[ChunkSets], gradient: Sequence[Tensor], decay: float
) -> Finding:
    """Judge the opened chunks; `gradient` is that of the whole round, clipped, in the frequency domain by group."""
    places = draw_chunks(plan, link.seed, link.opened_chunks)
    try:
        before, after = decode_pair(plan, places, link.momentum_before, link.momentum_after, link.opening)
    except WireError:
        return Finding(AuditReason.PATHS)
    taken = [decode_payload(plan, body) for body in link.taken_out]
    grown: list[np.ndarray] = []
    own: list[np.ndarray] = []
    for number, opening in enumerate(after):
        place, momentum = opening.place, _read(opening)
        if not _is_selected(momentum, payload[place.group], place.chunk):
            return Finding(AuditReason.SELECTION)
        start = _read(before[number]) if before else np.zeros_like(momentum)
        for sets in taken:
            indices = sets[place.group].indices[place.chunk]
            start[indices[indices < len(start)]] = 0.0
        grown.append((momentum.astype(np.float64) - np.float64(decay) * start) / link.lr)
        own.append(gradient[place.group][place.chunk].cpu().numpy())
    sent, computed = (np.concatenate(parts).astype(np.float64) for parts in (grown, own))
    if not np.isfinite(sent).all():
        return Finding(AuditReason.LINK)
    return Finding(AuditReason.NONE, compute_distance(tuple(sent.tolist()), tuple(computed.tolist())))


def _read(opening: Opening) -> np.ndarray:
    return np.frombuffer(opening.coefficients, "<f4").copy()


def _is_selected(momentum: np.ndarray, sets: ChunkSets, chunk: int) -> bool:
    """Whether the payload has the largest coefficients of a chunk, each with its sign or its value."""
    topk = sets.indices.shape[1]
    indices, values = select(torch.from_numpy(momentum)[None], topk)
    sent = sets.values[chunk]
    expected = values[0].numpy() if sent.dtype == np.float32 else np.sign(values[0].numpy())
    return np.array_equal(indices[0].numpy(), sets.indices[chunk]) and np.array_equal(expected, sent)
