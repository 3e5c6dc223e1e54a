import pytest
import torch
from distro_kit import cut_chunks, join_chunks, load_vectors, make_plan, make_tensors

from psyche.core.encoding.plan import compute_chunk_edge, compute_plan
from psyche.errors import TrainerError
from psyche.modeling.distro.blocks import compute_blocks, view_all_strips
from psyche.modeling.distro.transform import invert, select, transform


def test_chunk_edges_equal_the_vectors() -> None:
    table = load_vectors("distro/chunk_sizes")[0]["table"].tolist()
    assert len(table) > 1000
    assert [compute_chunk_edge(n, target) for n, target, _ in table] == [edge for _, _, edge in table]


@pytest.mark.parametrize("case", [f"c{number}" for number in range(9)])
def test_the_transform_and_its_inverse_equal_the_vectors(case: str) -> None:
    tensors, settings = load_vectors("distro/transform")
    x, chunk = tensors[f"{case}.x"], settings[case]["chunk"]
    plan = compute_plan({"x": tuple(x.shape)}, chunk, 1, one_bit=True)
    group = plan.groups[0]
    encoded = transform(cut_chunks(plan, {"x": x}, group))
    wanted = tensors[f"{case}.enc"]
    scale = float(wanted.abs().max())
    assert list(wanted.shape) == settings[case]["enc_shape"]
    assert torch.allclose(encoded.reshape(wanted.shape), wanted, rtol=0, atol=1e-6 * scale)
    decoded = join_chunks(plan, [invert(wanted.reshape(encoded.shape).contiguous())])["x"]
    assert torch.allclose(decoded, tensors[f"{case}.dec"], rtol=0, atol=1e-6 * scale)


def test_chunks_leave_a_model_and_come_back_in_the_order_of_the_plan() -> None:
    plan = make_plan()
    tensors = make_tensors(plan, seed=1)
    groups = [cut_chunks(plan, tensors, group) for group in plan.groups]
    back = join_chunks(plan, groups)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    group = next(group for group in plan.groups if group.edges == (16, 16))
    first = plan.tensors[group.tensors[0]]
    assert first.dims == (48, 32)
    chunks = cut_chunks(plan, tensors, group)
    assert torch.equal(chunks[3], tensors[first.name][16:32, 16:32])  # chunk rows first, then columns


@pytest.mark.parametrize("elements", [1, 16, 300, 1000, 1 << 20])
def test_blocks_of_any_size_cover_every_chunk_once_and_in_order(elements: int) -> None:
    plan = make_plan(chunk=4)
    for group in plan.groups:
        blocks = compute_blocks(plan, group, elements)
        numbers = [number for block in blocks for number in range(block.rows.start, block.rows.stop)]
        assert numbers == list(range(group.chunks))
        assert all(block.chunks <= max(1, elements // group.area) for block in blocks)


def test_tensors_that_do_not_fit_the_plan_are_refused_by_name() -> None:
    plan = make_plan({"a": (4, 4), "b": (6,)})
    good = make_tensors(plan, seed=0)
    view_all_strips(plan, good)
    with pytest.raises(TrainerError, match="'b' is missing"):
        view_all_strips(plan, {"a": good["a"]})
    with pytest.raises(TrainerError, match=r"'a' has shape \(4, 5\)"):
        view_all_strips(plan, good | {"a": torch.zeros(4, 5)})
    with pytest.raises(TrainerError, match="'a' must be contiguous"):
        view_all_strips(plan, good | {"a": torch.zeros(4, 4).T})


def _select_slowly(coefficients: torch.Tensor, topk: int) -> list[dict[int, float]]:
    rows = []
    for row in coefficients.tolist():
        good = [i for i, c in enumerate(row) if c == c and abs(c) != float("inf") and c != 0.0]  # noqa: PLR0124
        rows.append({i: row[i] for i in sorted(good, key=lambda i: (-abs(row[i]), i))[:topk]})
    return rows


def _as_rows(indices: torch.Tensor, values: torch.Tensor, area: int) -> list[dict[int, float]]:
    pairs = zip(indices.tolist(), values.tolist(), strict=True)
    return [{i: v for i, v in zip(*pair, strict=True) if i < area} for pair in pairs]


@pytest.mark.parametrize(("area", "topk"), [(64, 8), (64, 64), (256, 16), (4096, 8), (4096, 300), (7, 3), (1, 1)])
def test_the_k_largest_are_selected_with_ties_to_the_lowest_index(area: int, topk: int) -> None:
    generator = torch.Generator().manual_seed(area + topk)
    smooth = torch.randn(9, area, generator=generator)
    tied = torch.randint(-2, 3, (9, area), generator=generator).float()
    special = tied.clone()
    special[0] = 0.0
    special[1] = 1.0
    special[2, area // 2] = float("nan")
    special[3, area // 3] = float("-inf")
    special[4] = float("nan")
    special[5] = -0.0
    special[6] *= 1e-45  # smallest magnitudes are not zero
    for coefficients in (smooth, tied, special):
        indices, values = select(coefficients, topk)
        assert indices.shape == values.shape == (9, topk)
        assert indices.dtype == torch.int32
        assert values.dtype == torch.float32
        assert _as_rows(indices, values, area) == _select_slowly(coefficients, topk)
        rising = indices.diff(dim=1)
        assert bool(((rising > 0) | (indices[:, 1:] == area)).all())
        assert bool((values[indices == area] == 0).all())


@pytest.mark.parametrize("case", [f"c{number}" for number in range(6)])
def test_selection_and_payload_equal_the_compress_vectors(case: str) -> None:
    tensors, settings = load_vectors("distro/compress")
    area, topk = settings[case]["totalk"], settings[case]["k_used"]
    for peer in range(settings[case]["peers"]):
        coefficients = tensors[f"{case}.r{peer}.coef"].reshape(-1, area).contiguous()
        indices, values = select(coefficients, topk)
        wanted_indices = tensors[f"{case}.r{peer}.idx"].reshape(-1, topk).tolist()
        wanted_values = tensors[f"{case}.r{peer}.val"].reshape(-1, topk).tolist()
        wanted = [dict(zip(*pair, strict=True)) for pair in zip(wanted_indices, wanted_values, strict=True)]
        assert _as_rows(indices, values, area) == [{i: v for i, v in row.items() if v} for row in wanted]
        if peer == 0:
            dense = torch.zeros_like(coefficients).scatter_add_(1, indices.clamp(max=area - 1).long(), values)
            assert torch.equal(dense.view(-1), tensors[f"{case}.dense_r0"].reshape(-1))
