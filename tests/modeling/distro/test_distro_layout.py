"""Several ranks compress and apply a model's chunks as one rank does: the same bytes, the same weights."""

import numpy as np
import pytest
import torch
from distro_kit import make_plan, make_sets, make_tensors

from psyche.core.encoding.plan import PlanTensor, TransformPlan
from psyche.modeling.distro.codec import decode_payload, encode_payload
from psyche.modeling.distro.layout import Held, Layout, compute_cut_share, compute_layout, find_cut, get_edges
from psyche.modeling.distro.momentum import find_group
from psyche.modeling.distro.optimizer import Distro
from psyche.wire.trainer import SentResult

# cut along rows, columns and batch; "odd" has no dimension that 2 or 4 ranks can cut, "scalar" has none at all
SHAPES = {"rows": (64, 24), "columns": (13, 64), "batch": (4, 7, 16), "line": (64,), "odd": (21, 9), "scalar": ()}
ROUNDS = 20


def hold(tensor: PlanTensor, rank: int, ranks: int) -> Held:
    """The part of FSDP2: equal parts along the dimension that can be cut, or rows as they come."""
    axis = find_cut(tensor.dims, get_edges(tensor), ranks)
    whole = [np.arange(n) for n in tensor.dims]
    if whole:
        place = axis or 0
        whole[place] = np.array_split(whole[place], ranks)[rank]
    return tuple(whole)


def divide(plan: TransformPlan, ranks: int) -> Layout:
    return compute_layout(plan, [{t.name: hold(t, rank, ranks) for t in plan.tensors} for rank in range(ranks)])


def pick(layout: Layout, rank: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A rank's part of whole tensors; an uncut one is not copied, so that its owner changes it in place."""
    ranks = len(layout.plans)
    found: dict[str, torch.Tensor] = {}
    for entry in layout.plans[rank].tensors:
        whole = tensors[entry.name]
        if entry.name not in layout.owners:
            tensor = next(t for t in layout.plan.tensors if t.name == entry.name)
            whole = whole[np.ix_(*hold(tensor, rank, ranks))].contiguous()
        found[entry.name] = whole
    return found


def put(layout: Layout, parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    whole = {t.name: torch.empty(t.dims) for t in layout.plan.tensors}
    for tensor in layout.plan.tensors:
        for rank, part in enumerate(parts):
            if tensor.name in layout.owners:
                whole[tensor.name] = parts[layout.owners[tensor.name]][tensor.name]
            else:
                whole[tensor.name][np.ix_(*hold(tensor, rank, len(parts)))] = part[tensor.name]
    return whole


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("one_bit", [True, False])
def test_ranks_send_and_apply_what_one_rank_would_bit_by_bit(ranks: int, one_bit: bool) -> None:
    plan = make_plan(SHAPES, chunk=8, k=4, one_bit=one_bit)
    layout = divide(plan, ranks)
    assert set(layout.owners) == {"odd", "scalar"}
    weights = make_tensors(plan, 0, 0.02)
    parts = [pick(layout, rank, {n: w.clone() for n, w in weights.items()}) for rank in range(ranks)]
    alone = Distro(weights, plan, 0.9)
    group = [Distro(part, own, 0.9) for part, own in zip(parts, layout.plans, strict=True)]
    for height in range(ROUNDS):
        gradients = make_tensors(plan, 100 + height)
        decided = (SentResult(height=height - 1, applied=height % 3 > 0),) if height else ()
        payload = alone.compress(gradients, 0.01, decided, True, height)
        pieces = [
            one.compress(pick(layout, rank, gradients), 0.01, decided, True, height) for rank, one in enumerate(group)
        ]
        assert layout.merge(pieces) == payload
        alone.apply([payload], 0.01, 0.1)
        for rank, one in enumerate(group):
            one.apply_sets([layout.take(rank, decode_payload(plan, payload))], 0.01, 0.1)
    whole = put(layout, parts)
    assert all(torch.equal(whole[name], weight) for name, weight in weights.items())
    states = [one.momentum.get_state() for one in group]
    for name, tensor in alone.momentum.get_state().items():
        edges = find_group(plan, name)
        if edges is not None:
            joined = layout.join(edges, [state[name].numpy() if name in state else None for state in states])
            assert joined.tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("scaled_bits", [1, 2])
def test_payloads_of_local_steps_are_taken_apart_and_merged(scaled_bits: int) -> None:
    plan = make_plan(SHAPES, chunk=8, k=4, scaled_bits=scaled_bits)
    layout, sets = divide(plan, 2), make_sets(plan, seed=3)
    parts = [encode_payload(own, layout.take(rank, sets)) for rank, own in enumerate(layout.plans)]
    assert layout.merge(parts) == encode_payload(plan, sets)


def test_chunks_that_lie_in_several_runs_are_cut_like_neighbours() -> None:
    """So tensor parallelism cuts two matrices that are stored as one: the first half of each, then the second."""
    plan = make_plan({"packed": (32, 16)}, chunk=8, k=4)
    halves = [np.r_[0:8, 16:24], np.r_[8:16, 24:32]]
    layout = compute_layout(plan, [{"packed": (half, np.arange(16))} for half in halves])
    assert not layout.owners
    assert [places[8, 8].tolist() for places in layout.places] == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.arange(16), np.arange(16)),  # both have the whole
        (np.arange(12), np.arange(12, 16)),  # a chunk is divided
        (np.r_[0:4, 8:12], np.r_[4:8, 12:16]),  # chunks of equal number, but of no whole one
    ],
)
def test_what_is_not_cut_into_whole_chunks_goes_to_one_rank(first: np.ndarray, second: np.ndarray) -> None:
    plan = make_plan({"tensor": (16, 8), "other": (16, 8)}, chunk=8, k=4)
    rest = (np.arange(8),)
    even = ((np.arange(8), *rest), (np.arange(8, 16), *rest))
    layout = compute_layout(
        plan, [{"tensor": (first, *rest), "other": even[0]}, {"tensor": (second, *rest), "other": even[1]}]
    )
    assert layout.owners == {"tensor": 0}
    assert [[t.name for t in own.tensors] for own in layout.plans] == [["other", "tensor"], ["other"]]


def test_uncut_tensors_are_balanced_over_the_ranks() -> None:
    plan = make_plan({name: (size, 7) for name, size in {"a": 3, "b": 9, "c": 5, "d": 7}.items()}, chunk=8, k=4)
    layout = divide(plan, 2)
    assert layout.owners == {"b": 0, "d": 1, "c": 1, "a": 0}


def test_the_first_dimension_with_equal_parts_of_whole_chunks_is_cut() -> None:
    assert find_cut((32, 64), (8, 8), 4) == 0
    assert find_cut((24, 64), (8, 8), 4) == 1
    assert find_cut((4, 24, 24), (1, 8, 8), 4) == 0
    assert find_cut((2880, 2880), (64, 64), 4) is None
    plan = make_plan({"square": (2880, 2880), "half": (2880, 1440)}, chunk=64, k=8)
    assert [round(3 * compute_cut_share(plan, ranks)) for ranks in (2, 3, 4)] == [1, 3, 1]
