"""Apply must be equal, not close: the vectors were made with big integers and fractions."""

import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from distro_kit import load_vectors, make_distro, make_plan, make_sets, make_tensors

from psyche.core.encoding.plan import PlanTensor, TransformPlan
from psyche.errors import WireError
from psyche.modeling.distro import apply as apply_module
from psyche.modeling.distro import blocks as blocks_module
from psyche.modeling.distro.apply import Applier, decay_weights, get_decay_factor
from psyche.modeling.distro.blocks import view_all_strips
from psyche.modeling.distro.codec import ChunkSets, encode_payload
from psyche.modeling.distro.optimizer import Distro

CASES = ["one", "three", "thirtytwo", "hostile", "ragged", "odd", "long", "oneD", "cancel", "crowd", "empty", "point"]
ALWAYS_DENSE, ALWAYS_SPARSE = 1 << 30, 0
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"))]


def _load_case(name: str) -> tuple[TransformPlan, list[list[ChunkSets]], dict[str, torch.Tensor], dict[str, int]]:
    """The plan of a case with one tensor, its votes, and what must come of them."""
    tensors, settings = load_vectors("exact_apply")
    case = settings[name]
    height, width, chunks = case["h"], case["w"], case["chunks"]
    dims = (chunks * width,) if height == 1 else (chunks * height, width)
    plan = TransformPlan((PlanTensor("w", dims, (height, width)),), case["k"], one_bit=True)
    indices = tensors[f"{name}.idx"].numpy().astype(np.int32)
    indices[indices < 0] = height * width
    signs = tensors[f"{name}.sgn"].numpy()
    votes = [[ChunkSets(i, s)] for i, s in zip(indices, signs, strict=True)]
    return plan, votes, {key: tensors[f"{name}.{key}"] for key in ("fixed", "inverse", "sign")}, case


def _invert(plan: TransformPlan, votes: list[list[ChunkSets]], device: str) -> tuple[Applier, torch.Tensor]:
    weights = {"w": torch.zeros(plan.tensors[0].dims, device=device)}
    applier = Applier(plan, view_all_strips(plan, weights))
    (block,) = applier.blocks[0]
    return applier, applier.invert_block(plan.groups[0], block, [payload[0] for payload in votes])


def _get_means(applier: Applier, chunks: int, height: int, width: int) -> torch.Tensor:
    """The means of the last dense inverse, [chunks, h * w]."""
    means = applier._means[: chunks * height * width].view(height, chunks, width)
    return means.permute(1, 0, 2).reshape(chunks, -1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sparse_share", [ALWAYS_DENSE, ALWAYS_SPARSE])
@pytest.mark.parametrize("name", CASES)
def test_the_inverse_is_exactly_that_of_the_vectors(
    name: str, sparse_share: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_module, "SPARSE_SHARE", sparse_share)
    plan, votes, wanted, case = _load_case(name)
    applier, inverse = _invert(plan, votes, device)
    found = inverse.cpu().reshape(case["chunks"], -1).to(torch.int64)
    assert torch.equal(found, wanted["inverse"])
    assert torch.equal(found.sign().to(torch.int8), wanted["sign"])
    assert (int(found.abs().max()), int((found == 0).sum())) == (case["largest"], case["zeros"])
    if sparse_share == ALWAYS_DENSE:
        fixed = _get_means(applier, case["chunks"], case["h"], case["w"]).reshape(found.shape).cpu()
        assert torch.equal(fixed.to(torch.int16), wanted["fixed"])


def test_the_vectors_reach_the_bound_and_every_way_of_inverting() -> None:
    settings = load_vectors("exact_apply")[1]
    assert settings["hostile"]["largest"] == settings["hostile"]["bound"]
    votes = {name: settings[name]["voters"] * settings[name]["k"] for name in CASES}
    sparse = {name for name in CASES if votes[name] * 32 <= settings[name]["h"] * settings[name]["w"]}
    assert {"one", "three", "ragged", "long"} <= sparse
    assert {"thirtytwo", "crowd", "hostile"} <= set(CASES) - sparse


def test_means_are_rounded_half_away_from_zero() -> None:
    voters = 256
    table = apply_module._get_averages(voters, torch.device("cpu"))
    for count in (1, 2, 3, 7, 36, 255, 256):
        for total in range(-count, count + 1):
            exact = Fraction(abs(total) * 1024, count)
            rounded = int(exact + Fraction(1, 2))
            assert table[count * (2 * voters + 1) + total] == (rounded if total > 0 else -rounded)
    assert table[0] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_weights_after_decay_and_update_have_the_bits_of_the_vectors(device: str) -> None:
    plan, votes, _, _ = _load_case("thirtytwo")
    tensors, settings = load_vectors("exact_apply")
    update = settings["update"]
    weights = {"w": tensors["update.before"].view(64, 64).clone().to(device)}
    distro = Distro(weights, plan, 0.9)
    payloads = [encode_payload(plan, vote) for vote in votes]
    distro.apply(payloads, update["lr_float64"], update["weight_decay"])
    after = weights["w"].cpu().view(-1)
    assert torch.equal(after.view(torch.int32), tensors["update.after"].view(torch.int32))
    assert (
        get_decay_factor(update["lr_float64"], update["weight_decay"]).hex()
        == float(np.frombuffer(bytes.fromhex(update["factor_float32_hex"]), ">f4")[0]).hex()
    )


def test_an_idle_chunk_keeps_every_bit_negative_zeros_included() -> None:
    plan, votes, _, _ = _load_case("empty")
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.5e-38, 3e38, float("-inf"), -1.0])
    weights = {"w": special.repeat(8).view(8, 8).clone()}
    before = weights["w"].clone()
    distro = Distro(weights, plan, 0.9)
    distro.apply([encode_payload(plan, vote) for vote in votes], 1e-3, 0.0)
    assert torch.equal(weights["w"].view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("case", [f"c{number}" for number in range(6)])
def test_the_mean_is_over_those_who_sent_a_coefficient(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "SPARSE_SHARE", ALWAYS_DENSE)
    tensors, settings = load_vectors("distro/compress")
    setting = settings[case]
    *grid, height, width = (
        [1, *setting["xshape"]] if len(setting["xshape"]) > 2 else [1, setting["xshape"][0], 1, setting["xshape"][1]]
    )
    chunks = int(np.prod(grid))
    dims = (chunks * width,) if height == 1 else (chunks * height, width)
    plan = TransformPlan((PlanTensor("w", dims, (height, width)),), setting["k_used"], one_bit=False)
    votes = []
    for peer in range(setting["peers"]):
        indices = tensors[f"{case}.r{peer}.idx"].reshape(chunks, -1).numpy().astype(np.int32)
        values = tensors[f"{case}.r{peer}.val"].reshape(chunks, -1).float().numpy()
        votes.append([ChunkSets(indices, values)])
    applier, _ = _invert(plan, votes, "cpu")
    wanted = tensors[f"{case}.dense_all"].reshape(-1).double()
    assert torch.allclose(_get_means(applier, chunks, height, width).reshape(-1), wanted, rtol=1e-6, atol=1e-7)


def test_weight_decay_runs_without_payloads_and_is_an_operation_of_its_own() -> None:
    plan = make_plan()
    distro, weights = make_distro(plan, seed=4)
    expected = {name: weight.clone() for name, weight in weights.items()}
    distro.apply([], 3e-3, 0.1)
    factor = np.float32(1 - 3e-3 * 0.1)
    for name, weight in weights.items():
        assert np.array_equal(weight.numpy(), expected[name].numpy() * factor)
    decay_weights(list(weights.values()), 3e-3, 0.0)
    assert all(np.array_equal(weights[name].numpy(), expected[name].numpy() * factor) for name in weights)


@pytest.mark.parametrize("one_bit", [True, False])
def test_a_bad_payload_among_good_ones_changes_no_byte(one_bit: bool) -> None:
    plan = make_plan(one_bit=one_bit)
    distro, weights = make_distro(plan)
    before = {name: weight.clone() for name, weight in weights.items()}
    good = encode_payload(plan, make_sets(plan, seed=1))
    with pytest.raises(WireError):
        distro.apply([good, good[:-1]], 1e-3, 0.1)
    assert all(torch.equal(weights[name], before[name]) for name in weights)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("device", DEVICES)
def test_ten_rounds_end_in_the_same_bytes_over_threads_orders_and_blocks(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan({"a": (256, 192), "b": (100,), "c": (2, 43, 128), "d": (58, 64)}, chunk=64, k=8)
    rounds = [[encode_payload(plan, make_sets(plan, 10 * h + r)) for r in range(1 + h % 5)] for h in range(10)]

    def run(thread_count: int, order: int, block: int, sparse_share: int, where: str) -> list[bytes]:
        torch.set_num_threads(thread_count)
        monkeypatch.setattr(blocks_module, "CPU_BLOCK", block)
        monkeypatch.setattr(apply_module, "SPARSE_SHARE", sparse_share)
        weights = {name: weight.to(where) for name, weight in make_tensors(plan, 5, 0.02).items()}
        distro = Distro(weights, plan, 0.9)
        states = []
        for height, payloads in enumerate(rounds):
            arrived = list(payloads)
            random.Random(order + height).shuffle(arrived)
            distro.apply(arrived, 1e-3 * (1 + height), 0.1)
            states.append(b"".join(weight.cpu().numpy().tobytes() for weight in weights.values()))
        return states

    wanted = run(1, 0, 1 << 18, 32, "cpu")
    assert len(set(wanted)) == 10
    assert run(2, 1, 1 << 18, 32, device) == wanted
    assert run(2, 2, 1 << 13, ALWAYS_DENSE, device) == wanted
    assert run(1, 3, 1, ALWAYS_SPARSE, device) == wanted
