"""The examples of the plan, the payload and the apply in docs/peer-training.md."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from hex_tables import Part, draw_example, draw_table
from training_example import (
    DECAY,
    LR,
    NAMES,
    PAYLOADS,
    TOPK,
    Signs,
    compute_commitments,
    get_trained,
    make_body,
    make_plan,
    make_sets,
    make_weights,
)

from psyche.core.encoding.plan import (
    BASIS_HASH,
    PLAN_TAG,
    PlanGroup,
    TransformPlan,
    compute_plan,
    encode_plan,
)
from psyche.modeling.distro.apply import Applier
from psyche.modeling.distro.basis import get_integer_basis
from psyche.modeling.distro.blocks import compute_blocks, view_all_strips
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.weights import get_bytes
from psyche.wire.crypto import blake3_hash

TIMES, MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"
VOTES = ((3, 1), (3, -1), (5, 1), (5, -1), (6, 4), (6, -4), (256, 2))  # n and v of some means
FULL_TOPK = 2


def name_edges(group: PlanGroup) -> str:
    height, width = group.edges
    return f"{height} {TIMES} {width}"


def show(name: str, value: object) -> str:
    """A value by its name; bytes in hex."""
    text = value.hex() if isinstance(value, bytes) else value
    return f"{name}: `{text}`"


# --- plan -----------------------------------------------------------------------------------------------


def draw_plan_bytes() -> list[str]:
    rows = [
        ("tag", f"the {len(PLAN_TAG)} bytes of `{PLAN_TAG.decode()}`"),
        ("number of tensors", "u32"),
        ("each tensor, in order of names", ("u16 length and UTF-8 name, u8 number of dimensions, each as u32, then the "
         "edges: height u16, width u16")),
        ("`compression_topk`", "u16"),
        ("`quantize_1bit`", "u8, 0 or 1"),
        ("hash of the integer bases ([apply](#apply))", f"`{BASIS_HASH.hex()}`"),
    ]  # fmt: skip
    return draw_table(("part", "bytes"), rows)


def draw_plan() -> list[str]:
    plan = make_plan()
    raw = encode_plan(plan)
    parts: list[Part] = [("tag", PLAN_TAG), ("tensors, u32", len(plan.tensors).to_bytes(4, "little"))]
    for tensor in plan.tensors:
        parts += [
            ("name with its length", len(tensor.name).to_bytes(2, "little") + tensor.name.encode()),
            ("dimensions", bytes([len(tensor.dims)]) + np.array(tensor.dims, dtype="<u4").tobytes()),
            ("edges", np.array(tensor.edges, dtype="<u2").tobytes()),
        ]
    parts += [("top-k, u16", raw[-35:-33]), ("1-bit, u8", raw[-33:-32]), ("hash of the bases", BASIS_HASH)]
    rows = [_describe_group(plan, group) for group in plan.groups]
    head = ("group", "chunks", "area", "k", "S", "b", "planes: bits of a chunk", "bytes")
    return [
        "The plan of the example:", "", *draw_example(parts, raw), "",
        show("`plan_hash`", blake3_hash(raw)) + ". Its groups:", "", *draw_table(head, rows), "",
        f"Where the chunks of 4 {TIMES} 4 begin:", "",
        *draw_table(("chunk", "tensor", "first number"), _find_corners(plan, plan.groups[-1])),
    ]  # fmt: skip


def _describe_group(plan: TransformPlan, group: PlanGroup) -> tuple[object, ...]:
    names = ", ".join(f"`{plan.tensors[place].name}`" for place in group.tensors)
    planes = ", ".join(map(str, group.planes))
    return (
        f"{name_edges(group)} ({names})", group.chunks, group.area, group.k, group.sets, group.set_bits, planes,
        group.payload_bytes,
    )  # fmt: skip


def _find_corners(plan: TransformPlan, group: PlanGroup) -> Iterable[tuple[object, ...]]:
    """The index of the first number of each chunk in its tensor, found with the code that gathers chunks."""
    strips = view_all_strips(plan, get_trained(make_weights()))
    (block,) = compute_blocks(plan, group, 1 << 10)
    for tile in block.tiles:
        tensor = plan.tensors[tile.tensor]
        numbers = torch.arange(strips[tile.tensor].numel()).view(strips[tile.tensor].shape)
        firsts = numbers[tile.strips, 0, tile.columns, 0].reshape(-1).tolist()
        for number, first in enumerate(firsts):
            place = ", ".join(map(str, np.unravel_index(first, tensor.dims)))
            yield tile.at + number, f"`{tensor.name}`", f"[{place}]"


# --- payload --------------------------------------------------------------------------------------------


def describe_set(chosen: dict[int, int]) -> str:
    return ", ".join(f"{'+' if sign > 0 else MINUS} at {place}" for place, sign in chosen.items()) or "empty"


def draw_sets(signs: Signs) -> list[str]:
    plan = make_plan()
    rows: list[tuple[str, int, str]] = []
    for group, chunks in zip(plan.groups, signs, strict=True):
        name = name_edges(group)
        rows += [(name, number, describe_set(chosen)) for number, chosen in enumerate(chunks)]
    return draw_table(("group", "chunk", "set"), rows)


def split_body(plan: TransformPlan, body: bytes, names: Sequence[str] = ()) -> list[Part]:
    """A payload plane by plane."""
    parts: list[Part] = []
    at = 0
    for group in plan.groups:
        for number, bits in enumerate(group.planes):
            size = (group.chunks * bits + 7) // 8
            what = "signs" if number == len(group.planes) - 1 else "ranks"
            parts.append((names[number] if names else f"{name_edges(group)}, {what}", body[at : at + size]))
            at += size
    return [(name, part) for name, part in parts if part]


def draw_payload() -> list[str]:
    lines: list[str] = []
    for member, (_, signs) in PAYLOADS.items():
        body = make_body(member)
        lines += [f"{NAMES[member]}'s payload:", "", *draw_sets(signs), ""]
        lines += [*draw_example(split_body(make_plan(), body), body), ""]
    places = (1, 2, 3, 100, 200, 500, 1_000, 2_000, 4_000, 4_095)
    wide = compute_plan({"w": (64, 128)}, 64, 10, one_bit=True)
    chosen: list[dict[int, int]] = [dict.fromkeys(places, 1), {0: -1, 7: 1}]
    body = encode_payload(wide, [make_sets(wide.groups[0], chosen)])
    names = ("planes of 64 bits", "of 16 bits", "of 16 bits", "of 3 bits", "signs")
    return [
        *lines,
        (f"A rank of {wide.groups[0].set_bits} bits: two chunks of 64 {TIMES} 64 with k = 10. The first is all "
        f"positive at {', '.join(f'{place:,}' for place in places)}; the second has {describe_set(chosen[1])}:"), "",
        *draw_example(split_body(wide, body, names), body), "",
        *draw_elias_fano((16, 32), 16, 31, [{0: 1, 100: -1, 255: 1}, {3: -1, 4: 1}]), "",
        *draw_elias_fano((12, 24), 12, 100, [{0: 1, 1: -1, 143: 1}, {}]),
    ]  # fmt: skip


def draw_elias_fano(dims: tuple[int, int], edge: int, topk: int, chosen: Sequence[dict[int, int]]) -> list[str]:
    plan = compute_plan({"w": dims}, edge, topk, one_bit=True)
    group = plan.groups[0]
    body = encode_payload(plan, [make_sets(group, chosen)])
    sets = "; ".join(map(describe_set, chosen))
    return [
        f"Elias-Fano: two chunks of {name_edges(group)}, k = {group.k}, l = {group.low_bits}; {sets}:", "",
        *draw_example(split_body(plan, body, ("low bits", "second plane", "signs")), body),
    ]  # fmt: skip


# --- apply ----------------------------------------------------------------------------------------------


def draw_apply() -> list[str]:
    plan, weights = make_plan(), make_weights()
    bodies = [make_body(member) for member in compute_commitments()]
    Distro(get_trained(weights), plan, 0.9, TOPK, one_bit=True).apply(bodies, LR, DECAY)
    rows = [(f"B({edge})", f"`{get_integer_basis(edge).tolist()}`") for edge in (1, 2, 3, 4)]
    decoded = [decode_payload(plan, body) for body in bodies]
    return [
        "Some bases, by rows u:", "", *draw_table(("basis", "numbers"), rows), "",
        "Some means:", "", *draw_table(("n", "v", "m"), [(n, v, compute_mean(n, v)) for n, v in VOTES]), "",
        "The three payloads together. Means and inverses, by rows, of the chunks with any:", "",
        *draw_table(("group", "chunk", "means m", "inverse X"), _invert(plan, decoded)), "",
        ("The weights after the apply, as bytes (f is the f32 "
        f"`{np.float32(1.0 - LR * DECAY).tobytes().hex()}`, r `{np.float32(LR).tobytes().hex()}`):"), "",
        *draw_example([(name, bytes(get_bytes(w))) for name, w in weights.items()],
                      b"".join(bytes(get_bytes(w)) for w in weights.values())), "",
        *draw_full_values(),
    ]  # fmt: skip


def compute_mean(count: int, total: int) -> int:
    """The mean that the code finds of `count` votes with a sum of `total`, from the inverse of one number."""
    plan = compute_plan({"w": ()}, 1, 1, one_bit=True)
    group, weights = plan.groups[0], {"w": torch.zeros(())}
    signs = [1] * ((count + total) // 2) + [-1] * ((count - total) // 2)
    applier, (block,) = Applier(plan, view_all_strips(plan, weights)), compute_blocks(plan, group, 1)
    inverse = applier.invert_block(group, block, [make_sets(group, [{0: sign}]) for sign in signs])
    return int(inverse.item()) // int(get_integer_basis(1)[0, 0])


def _invert(plan: TransformPlan, decoded: Sequence[Sequence[ChunkSets]]) -> Iterable[tuple[object, ...]]:
    strips = view_all_strips(plan, get_trained(make_weights()))
    applier = Applier(plan, strips)
    for place, group in enumerate(plan.groups):
        (block,) = compute_blocks(plan, group, 1 << 10)
        votes = [payload[place] for payload in decoded]
        inverse = applier.invert_block(group, block, votes)
        for number in range(group.chunks):
            found = [list(map(int, row)) for row in inverse[number].tolist()]
            means = _describe_means(group, votes, number)
            if means:
                yield name_edges(group), number, means, f"`{found}`"


def _describe_means(group: PlanGroup, votes: Sequence[ChunkSets], number: int) -> str:
    """The means of a chunk's positions."""
    signs: dict[int, list[int]] = {}
    for sets in votes:
        for place, sign in zip(sets.indices[number].tolist(), sets.values[number].tolist(), strict=True):
            if place < group.area:
                signs.setdefault(place, []).append(sign)
    return ", ".join(f"{compute_mean(len(found), sum(found))} at {place}" for place, found in sorted(signs.items()))


def draw_full_values() -> list[str]:
    """Two payloads with values, and their apply."""
    plan = compute_plan({"w": (2, 3)}, 4, FULL_TOPK, one_bit=False)
    group, weights = plan.groups[0], {"w": torch.zeros(2, 3)}
    chosen = ({0: 0.5, 4: -0.25}, {0: -0.125})
    bodies = [encode_payload(plan, [_make_value_sets(group, one)]) for one in chosen]
    applier, (block,) = Applier(plan, view_all_strips(plan, weights)), compute_blocks(plan, group, 6)
    votes = [decode_payload(plan, body)[0] for body in bodies]
    inverse = [[round(x, 4) for x in row] for row in applier.invert_block(group, block, votes)[0].tolist()]
    Distro(weights, plan, 0.9, FULL_TOPK, one_bit=False).apply(bodies, LR, 0.0)
    lines: list[str] = []
    for number, body in enumerate(bodies):
        names = ("ranks", "values")
        lines += [f"{'The second' if number else 'The first'}:", ""]
        lines += [*draw_example(split_body(plan, body, names), body), ""]
    after = bytes(get_bytes(weights["w"]))
    return [
        (f"Full values: one tensor of 2 {TIMES} 3 zeros, k = 2, no decay. Two payloads, 0.5 at 0 and {MINUS}0.25 at 4; "
        f"{MINUS}0.125 at 0."), "", *lines,
        (f"The means are 0.1875 at 0 and {MINUS}0.25 at 4, the inverse is about `{inverse}`. The weights after the "
        "apply move by r like all others:"), "", *draw_example([("w", after)], after),
    ]  # fmt: skip


def _make_value_sets(group: PlanGroup, chosen: dict[int, float]) -> ChunkSets:
    indices = np.full((1, group.k), group.area, dtype=np.int32)
    values = np.zeros((1, group.k), dtype=np.float32)
    indices[0, : len(chosen)], values[0, : len(chosen)] = list(chosen), list(chosen.values())
    return ChunkSets(indices, values)
