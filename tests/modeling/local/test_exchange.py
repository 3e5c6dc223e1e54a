"""What local steps send, what they keep, and that everybody applies the same bits."""

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_kit import cut_chunks, make_plan, make_sets, make_tensors
from hypothesis import given
from hypothesis import strategies as st
from kits.tier import few

from psyche.core.encoding.plan import TransformPlan
from psyche.errors import TrainerError
from psyche.modeling.distro.blocks import compute_blocks, iterate_chunks, view_all_strips
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.local.exchange import Exchange, Part, check_finite, get_values, quantize
from psyche.wire.trainer import SentResult

pytestmark = pytest.mark.usefixtures("path")
PLANS = [make_plan(k=8, scaled_bits=2), make_plan(k=1000, scaled_bits=2), make_plan(k=3, chunk=7, scaled_bits=1)]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(params=["numpy", "numba"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The code that computes: NumPy and torch, or the compiled loops."""
    if request.param == "numba":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr("psyche.modeling.local.exchange.find_kernels", lambda _: None)
    return request.param


def make(plan: TransformPlan, decay: float = 0.5) -> tuple[Exchange, Tensors]:
    weights = make_tensors(plan, 0, 0.02)
    return Exchange(weights, plan, decay), weights


def send(exchange: Exchange, deltas: Tensors, height: int = 0, *, applied: bool | None = None) -> list[Any]:
    """The decoded payload of a round; `applied` is what became of the one before (None: not decided yet)."""
    decided = () if applied is None else (SentResult(height=height - 1, applied=applied),)
    return decode_payload(exchange._plan, exchange.compress(deltas, decided, in_flight=True, height=height))


def round_level(value: float, exponent: int, bits: int) -> float:
    high = bits > 1 and abs(value) >= 2.0 * 2.0**exponent
    return math.copysign(3.0 if high else 1.0, value) * 2.0**exponent


def choose(chunk: list[float], k: int, bits: int) -> tuple[dict[int, float], int]:
    """By the rule alone: the positions and values that a chunk sends, and its exponent."""
    order = sorted((i for i, v in enumerate(chunk) if v), key=lambda i: (-abs(chunk[i]), i))[:k]
    if not order:
        return {}, 0
    mean = sum(Fraction(abs(chunk[i])) for i in order) / len(order)
    nearest = round(math.log2(mean) - (bits - 1))
    exponent = min(0, max(-32, nearest))
    return {i: round_level(chunk[i], exponent, bits) for i in sorted(order)}, exponent


@pytest.mark.parametrize("plan", PLANS, ids=["k 8", "k = area", "ragged"])
def test_a_chunk_sends_its_largest_values_rounded_and_keeps_the_rest(plan: TransformPlan) -> None:
    exchange, _ = make(plan)
    deltas = [make_tensors(plan, seed, 0.01) for seed in (1, 2)]
    first = send(exchange, deltas[0])
    kept = {name: delta.clone() for name, delta in deltas[0].items()}
    for place, group in enumerate(plan.groups):
        chunks = cut_chunks(plan, kept, group).view(group.chunks, group.area)
        expected = [choose(chunk, group.k, plan.scaled_bits) for chunk in chunks.tolist()]
        values = get_values(first[place])
        for number, (sent, exponent) in enumerate(expected):
            size = len(sent)
            assert first[place].indices[number, :size].tolist() == list(sent)
            assert values[number, :size].tolist() == list(sent.values())
            assert first[place].exponents[number] == exponent
            chunks[number, list(sent)] -= torch.tensor(list(sent.values()))
        kept[str(place)] = 0.5 * chunks + cut_chunks(plan, deltas[1], group).view(group.chunks, group.area)
    send(exchange, deltas[1], 1, applied=True)
    for place in range(len(plan.groups)):
        assert torch.equal(exchange.memory.coefficients[place], kept[str(place)])


def test_of_equal_values_the_lowest_positions_are_sent_and_zeros_never() -> None:
    plan = make_plan({"w": (4, 4)}, chunk=4, k=3, scaled_bits=2)
    exchange, _ = make(plan)
    (sets,) = send(exchange, {"w": torch.tensor([[0.0, -0.5, 0.0, 0.5], [0.5, 0.5, 0.0, 0.0], [0.0] * 4, [0.0] * 4])})
    assert sets.indices.tolist() == [[1, 3, 4]]
    assert sets.values.tolist() == [[-3, 3, 3]]
    assert sets.exponents.tolist() == [-2]
    (sets,) = send(exchange, {"w": torch.zeros(4, 4)}, 1, applied=True)  # 0.25 too much was sent of three, 0.5 is left
    assert sets.indices.tolist() == [[1, 3, 5]]
    fresh, _ = make(plan)
    (sets,) = send(fresh, {"w": torch.full((4, 4), -0.0)})
    assert (sets.indices == 16).all()
    assert sets.exponents.tolist() == [0]


@given(st.lists(st.floats(2.0**-40, 8.0, width=32), min_size=1, max_size=12), st.integers(1, 2), st.randoms())
def test_the_exponent_is_nearest_to_the_mean_magnitude_in_any_order(values: list[float], bits: int, order: Any) -> None:
    levels, (exponent,) = quantize(np.array([values], dtype=np.float32), bits)
    mean = float(sum(map(Fraction, values)) / len(values))
    exact = math.log2(mean) - (bits - 1)
    assert abs(min(0, max(-32, exact)) - exponent) <= 0.5 + 1e-9
    assert [level * 2.0**exponent for level in levels[0].tolist()] == [round_level(v, exponent, bits) for v in values]
    shuffled = list(values)
    order.shuffle(shuffled)
    assert quantize(np.array([shuffled], dtype=np.float32), bits)[1].tolist() == [exponent]


def test_exponents_stay_within_their_range() -> None:
    levels, exponents = quantize(np.array([[1e30, 1e-30], [1e-30, 1e-45], [0.0, 0.0]], dtype=np.float32), 2)
    assert exponents.tolist() == [0, -32, 0]
    assert levels.tolist() == [[3, 1], [1, 1], [0, 0]]


def test_what_was_trained_was_sent_or_is_kept() -> None:
    """Without decay, and with numbers that float32 adds exactly, nothing is lost in ten rounds."""
    plan = PLANS[0]
    exchange, _ = make(plan, decay=1.0)
    total = [torch.zeros(group.chunks, group.area) for group in plan.groups]
    for height in range(10):
        deltas = {name: (delta * 64).round() / 4096 for name, delta in make_tensors(plan, height).items()}
        sets = send(exchange, deltas, height, applied=True if height else None)
        for place, group in enumerate(plan.groups):
            total[place] += cut_chunks(plan, deltas, group).view(group.chunks, group.area)
            padded = torch.zeros(group.chunks, group.area + 1)
            padded.scatter_(1, torch.from_numpy(sets[place].indices).long(), torch.from_numpy(get_values(sets[place])))
            total[place] -= padded[:, : group.area]
    exchange.memory.settle((SentResult(height=9, applied=True),), 10, in_flight=True)
    assert all(map(torch.equal, exchange.memory.coefficients, total))


def test_what_the_record_leaves_out_comes_back() -> None:
    """R8: the same rounds, with the second result left out or as if it had sent nothing."""
    plan = make_plan({"w": (4, 4)}, chunk=4, k=2, scaled_bits=2)
    exchange, _ = make(plan, decay=0.5)
    delta = {"w": torch.arange(16.0).view(4, 4) / 64}
    send(exchange, delta)
    send(exchange, {"w": torch.zeros(4, 4)}, 1)  # undecided: what was sent is taken out
    taken = exchange.memory.coefficients[0][0, 14:].abs().max()
    send(exchange, {"w": torch.zeros(4, 4)}, 2, applied=True)
    send(exchange, {"w": torch.zeros(4, 4)}, 3, applied=False)
    assert taken < 14 / 128
    left_out, _ = make(plan, decay=0.5)
    send(left_out, delta)
    send(left_out, {"w": torch.zeros(4, 4)}, 1, applied=False)
    assert torch.equal(left_out.memory.coefficients[0].view(4, 4), delta["w"] / 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_change_that_is_not_finite_is_refused_by_its_tensor(bad: float) -> None:
    deltas = make_tensors(PLANS[0], 2)
    check_finite({"w": torch.full((8,), 3e38), **deltas})  # their sum is infinite
    deltas["c"][1, 2, 3] = bad
    with pytest.raises(TrainerError, match="inner steps: the change of tensor 'c' is not finite"):
        check_finite(deltas)


def test_a_restored_memory_sends_the_same_bytes() -> None:
    plan = PLANS[0]
    exchange, _ = make(plan)
    for height in range(3):
        send(exchange, make_tensors(plan, height), height, applied=None if height != 2 else False)
    other, _ = make(plan)
    other.memory.load_state({name: tensor.clone() for name, tensor in exchange.memory.get_state().items()})
    deltas, decided = make_tensors(plan, 9), (SentResult(height=1, applied=False),)
    assert other.compress(deltas, decided, in_flight=True, height=3) == exchange.compress(
        deltas, decided, in_flight=True, height=3
    )


# --- apply


def apply_exactly(plan: TransformPlan, weights: Mapping[str, torch.Tensor], parts: list[Part], rate: float) -> Tensors:
    """By the rule alone: fractions, rounded once to float64 for the product and once to float32 for each step."""
    moved = {name: weight.clone() for name, weight in weights.items()}
    factor = float(np.float32(rate)) / sum(part.steps for part in parts) * 2.0**-32
    for place, group in enumerate(plan.groups):
        sums = np.zeros((group.chunks, group.area + 1), dtype=object)
        for part in parts:
            sets = part.sets[place]
            assert sets.exponents is not None
            for chunk in range(group.chunks):
                for index, level in zip(sets.indices[chunk], sets.values[chunk], strict=True):
                    sums[chunk, index] += part.steps * int(level) << (int(sets.exponents[chunk]) + 32)
        moves = torch.from_numpy((sums[:, : group.area].astype(np.float64) * factor).astype(np.float32))
        tensors = {t.name: torch.zeros(t.dims) for t in plan.tensors}
        old = cut_chunks(plan, moved, group).view(group.chunks, group.area)
        join(plan, tensors, place, old - moves)
        for number in group.tensors:
            moved[plan.tensors[number].name] = tensors[plan.tensors[number].name]
    return moved


def join(plan: TransformPlan, tensors: Tensors, place: int, chunks: torch.Tensor) -> None:
    group, strips = plan.groups[place], view_all_strips(plan, tensors)
    for block in compute_blocks(plan, group, 7 * group.area):
        rows = chunks[block.rows].view(block.chunks, *group.edges)
        for rectangle, part in iterate_chunks(block, strips, rows):
            rectangle.copy_(part)


@pytest.mark.parametrize("plan", PLANS, ids=["k 8", "k = area", "ragged"])
def test_any_order_of_members_gives_the_bits_of_the_rule(plan: TransformPlan) -> None:
    parts = [Part(make_sets(plan, seed=seed), steps) for seed, steps in ((1, 8), (2, 2048), (3, 1))]
    expected = apply_exactly(plan, make(plan)[1], parts, 0.7)
    for threads, order in enumerate(permutations(parts)):
        torch.set_num_threads(1 + threads % 2)
        exchange, weights = make(plan)
        exchange.apply(order, 0.7)
        assert {n: w.numpy().tobytes() for n, w in weights.items()} == {
            n: w.numpy().tobytes() for n, w in expected.items()
        }
    torch.set_num_threads(1)


def test_the_mean_is_over_all_members_by_their_steps_and_weights_that_nobody_sent_stay() -> None:
    plan = make_plan({"w": (2, 2)}, chunk=2, k=1, scaled_bits=2)
    weights = {"w": torch.tensor([[1.0, -0.0], [1e-42, 0.0]])}
    exchange = Exchange(weights, plan, 0.5)
    sender, _ = make(plan)
    half = send(sender, {"w": torch.tensor([[0.5, 0.0], [0.0, 0.0]])})
    silent = send(make(plan)[0], {"w": torch.zeros(2, 2)})
    value = float(get_values(half[0])[0, 0])
    before = weights["w"].clone()
    exchange.apply([Part(half, 2), Part(silent, 6)], 1.0)
    assert weights["w"][0, 0] == 1.0 - value / 4
    assert weights["w"].view(-1)[1:].numpy().tobytes() == before.view(-1)[1:].numpy().tobytes()
    exchange.apply([], 1.0)
    assert weights["w"][0, 0] == 1.0 - value / 4
    exchange.apply([Part(half, 2), Part(silent, 6)], -1.0)
    assert weights["w"].numpy().tobytes() == before.numpy().tobytes()


def test_256_members_with_the_largest_values_are_summed_exactly() -> None:
    plan = make_plan({"w": (1, 1)}, chunk=1, k=1, scaled_bits=2)
    exchange, weights = make(plan)
    weights["w"].zero_()
    values = np.array([[3]], dtype=np.int8), np.array([0], dtype=np.int8)
    least = np.array([[1]], dtype=np.int8), np.array([-32], dtype=np.int8)
    chunk = np.zeros((1, 1), dtype=np.int32)
    parts = [Part([ChunkSets(chunk, *values)], 2_048)] * 255 + [Part([ChunkSets(chunk, *least)], 1)]
    exchange.apply(parts, 1.0)
    total = 255 * 2_048 * 3 * 2**32 + 1
    assert weights["w"].item() == -float(np.float32(total * (1 / (255 * 2_048 + 1) * 2.0**-32)))


def make_odd_deltas(plan: TransformPlan, seed: int) -> Tensors:
    """Deltas of many sizes, with equal ones, zeros of both signs and subnormals."""
    draw = np.random.default_rng(seed)
    made: Tensors = {}
    for tensor in plan.tensors:
        values = np.round(draw.standard_normal(tensor.dims) * 8) * draw.choice([1e-44, 1e-9, 1e-3, 0.25], tensor.dims)
        made[tensor.name] = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return made


def play(plan: TransformPlan, rounds: int, threads: int, order: int) -> tuple[list[bytes], dict[str, bytes]]:
    """All payloads of three peers, and their weights at the end."""
    torch.set_num_threads(threads)
    exchange, weights = make(plan)
    peers = [exchange, make(plan)[0], make(plan)[0]]
    payloads: list[bytes] = []
    for height in range(rounds):
        decided = (SentResult(height=height - 1, applied=height % 2 > 0),) if height else ()
        sent = [
            peer.compress(make_odd_deltas(plan, 3 * height + number), decided, in_flight=True, height=height)
            for number, peer in enumerate(peers)
        ]
        parts = [Part(decode_payload(plan, payload), 5 + number) for number, payload in enumerate(sent)]
        exchange.apply(parts[order:] + parts[:order], 0.9)
        payloads += sent
    torch.set_num_threads(1)
    return payloads, {name: weight.numpy().tobytes() for name, weight in weights.items()}


@pytest.mark.parametrize("rounds", few([3, 20]))
@pytest.mark.parametrize("plan", PLANS, ids=["k 8", "k = area", "ragged"])
def test_rounds_give_the_same_bytes_whatever_computes_them(
    plan: TransformPlan, rounds: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = [play(plan, rounds, threads, order) for threads, order in ((1, 0), (2, 1), (2, 2))]
    assert played[1:] == played[:1] * 2
    if path == "numba":
        monkeypatch.setattr("psyche.modeling.local.exchange.find_kernels", lambda _: None)
        assert play(plan, rounds, 1, 0) == played[0]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the most memory since a moment")
def test_compressing_takes_little_memory_beside_what_it_keeps_and_returns() -> None:
    plan = make_plan({"w": (2048, 4096)}, chunk=16, k=64, scaled_bits=2)
    exchange, _ = make(plan)
    deltas = make_tensors(plan, 1, 0.01)
    for height, applied in enumerate((None, None, False)):
        decided = () if applied is None else (SentResult(height=height - 2, applied=applied),)
        before = read_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # forget the peak
        body = exchange.compress(deltas, decided, in_flight=True, height=height)
        most = read_bytes("VmHWM") - max(before, read_bytes("VmRSS"))
    assert len(body) > 1_000_000
    assert most < 24_000_000, "all of the 2 million entries at once take 33 or 75"


def read_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024
