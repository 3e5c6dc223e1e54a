"""DisTrO's compiled loops beside torch: equal weights after an apply, and what they compress is what torch would."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from distro_kit import make_plan, make_sets, make_tensors
from kits.tier import few

from psyche.core.encoding.plan import TransformPlan
from psyche.modeling.distro import apply, compiled
from psyche.modeling.distro.basis import compute_dct
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.distro.compiled import compile_loops, hash_sources
from psyche.modeling.distro.kernels import invert, transform
from psyche.modeling.distro.loops.fast_dct import make_programs
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.distro.transform import select
from psyche.wire.trainer import SentResult

pytest.importorskip("numba")
# edges that are powers of two and others, several strips and columns, vectors, a scalar, a block cut within a strip
SHAPES = {"a": (128, 192), "b": (20,), "c": (3, 8, 16), "d": (16, 37), "e": (64,), "f": (), "g": (64, 64 * 20)}
EDGES = [64, 16, 128]


@contextmanager
def loops(are_used: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "LEAST_PARAMETERS", 0 if are_used else 1 << 60)
        patch.setattr(apply, "KERNEL_BLOCK", 1 << 16)
        yield


def make(plan: TransformPlan, are_used: bool) -> tuple[Distro, dict[str, torch.Tensor]]:
    weights = make_tensors(plan, 0, 0.02)
    weights["a"][0, :64] = -0.0
    with loops(are_used):
        return Distro(weights, plan, 0.9), weights


def get_bytes(weights: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: weight.numpy().tobytes() for name, weight in weights.items()}


def make_hostile(plan: TransformPlan) -> list[list[ChunkSets]]:
    """Votes whose inverse is exactly zero at many weights, or nearly so: mirrored pairs of opposite signs."""
    payloads = []
    for voter in range(4):
        sets = make_sets(plan, seed=voter, full=True)
        for group, one in zip(plan.groups, sets, strict=True):
            height, width = group.edges
            if height != width or group.k < 2:
                continue
            u, v = 1 + voter, 3 + 2 * voter
            one.indices[:] = group.area
            one.values[:] = 0
            one.indices[:, :2] = sorted((u * width + v, v * width + u))
            one.values[:, :2] = [1, -1]
        payloads.append(sets)
    return payloads


@pytest.mark.parametrize("edge", [16, 32, 64, 128])
def test_rows_are_turned_into_the_dct_of_columns_and_back(edge: int) -> None:
    rows = np.random.default_rng(edge).standard_normal((edge, 48)).astype(np.float32)
    made, back = np.empty((48, edge), np.float32), np.empty((48, edge), np.float32)
    transform(rows.reshape(-1), 0, 48, edge, 48, made.reshape(-1))
    assert np.abs(made.T - compute_dct(edge) @ rows).max() < 1e-5
    frequencies = np.ascontiguousarray(made.T)
    invert(frequencies.reshape(-1), 0, 48, edge, 48, back.reshape(-1))
    _, inverse, rounding = make_programs(edge)
    bound = (rounding + 2) * 2.0**-24 * inverse.scales.max() * np.abs(frequencies).sum(axis=0)
    assert (np.abs(back.T - compute_dct(edge).T @ frequencies.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize(("chunk", "voters"), few([(64, 2), (16, 33), *product(EDGES, [1, 8, 33])], 2))
def test_an_apply_gives_the_bytes_of_torch_with_any_threads_and_order(chunk: int, voters: int) -> None:
    plan = make_plan(SHAPES, chunk, 8)
    payloads = [make_sets(plan, seed=seed, full=seed % 2 > 0) for seed in range(voters)]
    for votes in (payloads, make_hostile(plan)):
        distro, wanted = make(plan, are_used=False)
        distro.apply_sets(votes, 1e-3, 0.1)
        for threads, order in ((1, 1), (2, -1)):
            torch.set_num_threads(threads)
            distro, weights = make(plan, are_used=True)
            distro.apply_sets(votes[::order], 1e-3, 0.1)
            torch.set_num_threads(1)
            assert get_bytes(weights) == get_bytes(wanted)


@pytest.mark.parametrize(("chunk", "k"), few([(64, 8), (16, 16), (64, 64), (64, 700), (8, 60)], 2))
def test_what_is_sent_is_the_largest_of_a_momentum_that_is_torchs_but_for_rounding(chunk: int, k: int) -> None:
    plan = make_plan(SHAPES, chunk, k)
    (slow, _), (fast, _) = make(plan, are_used=False), make(plan, are_used=True)
    for height in range(3):
        gradients = make_tensors(plan, height)
        gradients["a"][:16] = 0.0
        decided = (SentResult(height=height - 1, applied=height % 2 > 0),) if height else ()
        sent = fast.compress(gradients, 1e-3, decided, True, height)
        slow.compress(gradients, 1e-3, decided, True, height)
        for place, sets in enumerate(decode_payload(plan, sent)):
            momentum = fast.momentum.coefficients[place]
            other = slow.momentum.coefficients[place]
            assert (momentum - other).abs().max() <= 1e-6 * other.abs().max()
            slow.momentum.coefficients[place].copy_(momentum)  # so that both take out and give back the same
            indices, values = select(momentum, plan.groups[place].k)
            assert sets.indices.tolist() == indices.tolist()
            assert sets.values.tolist() == values.sign().tolist()
            assert torch.equal(fast.momentum.get_last_sent(place)[1], values)
            slow.momentum._sent[-1].chosen[place] = (indices.clone(), values.clone())


@pytest.mark.parametrize("rounds", few([3, 20]))
def test_rounds_of_two_paths_that_exchange_payloads_end_in_the_same_bytes(rounds: int) -> None:
    plan = make_plan(SHAPES, 64, 8)
    peers = [make(plan, are_used=number > 0) for number in range(3)]
    for height in range(rounds):
        decided = (SentResult(height=height - 1, applied=True),) if height else ()
        sent = [
            distro.compress(make_tensors(plan, 3 * height + number), 1e-3, decided, False, height)
            for number, (distro, _) in enumerate(peers)
        ]
        for number, (distro, _) in enumerate(peers):
            torch.set_num_threads(1 + number % 2)
            distro.apply(sent[number:] + sent[:number], 1e-3, 0.0)
        torch.set_num_threads(1)
    assert get_bytes(peers[0][1]) == get_bytes(peers[1][1]) == get_bytes(peers[2][1])


@pytest.mark.parametrize("chunk", EDGES)
def test_the_lookahead_point_is_torchs_but_where_the_momentum_is_nearly_zero(chunk: int) -> None:
    plan = make_plan(SHAPES, chunk, 8)
    moved = []
    for are_used in (False, True):
        distro, weights = make(plan, are_used)
        before = get_bytes(weights)
        for tensor in distro.momentum.coefficients:
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
        with distro.lookahead(1e-3):
            moved.append({name: weight.clone() for name, weight in weights.items()})
        assert get_bytes(weights) == before
    different = sum(int((moved[0][name] != moved[1][name]).sum()) for name in moved[0])
    assert different <= 3  # of 110,000


def test_compiled_code_is_kept_under_the_hash_of_all_it_may_be_made_of(tmp_path: Path) -> None:
    (tmp_path / "loops").mkdir()
    source = tmp_path / "loops" / "select.py"
    source.write_text("k = 1")
    before = hash_sources.__wrapped__(tmp_path)
    source.write_text("k = 2")
    assert hash_sources.__wrapped__(tmp_path) != before
    ours = hash_sources(Path(compiled.__file__).parent)
    assert compile_loops(lambda: None)._cache._impl.filename_base.split("-")[0].endswith(ours)
