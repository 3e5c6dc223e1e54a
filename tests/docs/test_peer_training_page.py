"""docs/peer-training.md: the code makes the bytes of its examples, and finds its numbers.

`tests/independent_peers` holds a member to the same page that was written without the code.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
import torch
from kits.reader import Page

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.bloom import compute_bloom, compute_positions
from psyche.core.committee.elections import get_roles, get_witnesses
from psyche.core.committee.results import compute_results_root
from psyche.core.committee.schedule import compute_learning_rate, get_lr_bits, round_f32
from psyche.core.committee.shuffle import compute_order
from psyche.core.encoding.account import (
    decode_config,
    decode_model,
    encode_config,
    encode_model,
    get_config_preimage,
)
from psyche.core.encoding.bodies import encode_body
from psyche.core.encoding.header import ResultHeader, decode_header, encode_header
from psyche.core.encoding.manifest import FileEntry, encode_manifest
from psyche.core.encoding.plan import BASIS_HASH, PlanGroup, TransformPlan, compute_plan, encode_plan
from psyche.core.state.bits import compute_bits
from psyche.core.state.gossip import Finished, Ready, ReadyFlag, Result
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, Config, Coordinator, LrSchedule, Role, Round, ScheduleKind, WitnessFlag
from psyche.data.permutation import Permutation
from psyche.modeling.distro.apply import Applier
from psyche.modeling.distro.basis import get_integer_basis
from psyche.modeling.distro.blocks import compute_blocks, view_all_strips
from psyche.modeling.distro.codec import ChunkSets, encode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.weights import compute_blank_root, compute_entries, compute_slice_root, get_bytes
from psyche.wire.backend import Request, build_submit
from psyche.wire.crypto import (
    Identity,
    blake3_hash,
    blob_id_of,
    compute_chain_digest,
    compute_commitment,
    compute_data_hash,
    compute_state_digest,
)
from psyche.wire.data import BEGINS, NOT_COUNTED
from psyche.wire.gossip import decode_gossip, encode_gossip, sign_gossip
from psyche.wire.line.length import pack_length

PAGE = Page("peer-training.md")
ALICE = Identity(b"\x01" * 32)
MEMBERS = {"Alice": 5, "Bob": 1, "Carol": 4}
RUN_UID, SEED, CERTIFIED = (bytes([byte]) * 32 for byte in (7, 8, 0x0D))
LR, DECAY = round_f32(0.001), round_f32(0.1)
CONFIG_JSON = b'{"model_type": "llama"}'
FILES = (FileEntry("config.json", len(CONFIG_JSON), blob_id_of(CONFIG_JSON)),)
ALL = compute_bits((0, *MEMBERS.values()))
ROUND = Round(
    seed=SEED, random_seed=int.from_bytes(SEED[:8], "little"), members=ALL, electors=ALL, batch_size=10,
    data_index=1_000, clients_len=4, witnesses_expected=4, quorum=3,
)  # fmt: skip
Sets = Sequence[dict[int, float]]


def make_weights() -> dict[str, torch.Tensor]:
    return {
        "heads.weight": (torch.arange(64) / 64).view(2, 8, 4).contiguous(),
        "lin.weight": (torch.arange(64) / 32 - 1).view(8, 8).contiguous(),
        "norm.offset": torch.tensor([0.5, -0.5]),
        "norm.weight": torch.ones(6),
        "scale": torch.tensor(2.0),
    }


def get_trained(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in weights.items() if name != "norm.offset"}


def make_plan() -> TransformPlan:
    shapes = {name: tuple(weight.shape) for name, weight in get_trained(make_weights()).items()}
    return compute_plan(shapes, 4, 2, one_bit=True)


def compute_part(weights: dict[str, torch.Tensor]) -> bytes:
    return blake3_hash(encode_manifest(compute_entries(weights), FILES))


def pack_sets(group: PlanGroup, chunks: Sets, *, one_bit: bool = True) -> ChunkSets:
    indices = np.full((len(chunks), group.k), group.area, dtype=np.int32)
    values = np.zeros((len(chunks), group.k), dtype=np.float32)
    for number, chosen in enumerate(chunks):
        indices[number, : len(chosen)], values[number, : len(chosen)] = list(chosen), list(chosen.values())
    return ChunkSets(indices, values.astype(np.int8) if one_bit else values)


def read_sets(shown: str) -> dict[int, float]:
    """The positions and signs of a set, as the page writes it."""
    found = re.findall(r"([+\N{MINUS SIGN}]) at ([\d,]+)", shown)
    return {int(place.replace(",", "")): 1 if sign == "+" else -1 for sign, place in found}


def read_votes(name: str) -> list[ChunkSets]:
    """The sets of a member's payload, from its table."""
    table = PAGE.read_block("payload example").partition(f"{name}'s payload:\n\n")[2].partition("\n\n")[0]
    rows: dict[str, list[dict[int, float]]] = {}
    for edges, _, shown in re.findall(r"\| ([^|]+) \| (\d+) \| ([^|]+) \|", table):
        rows.setdefault(edges, []).append(read_sets(shown))
    return [pack_sets(group, chunks) for group, chunks in zip(make_plan().groups, rows.values(), strict=True)]


def read_bodies() -> dict[str, bytes]:
    """The payloads, in the order of applying."""
    bodies = dict(zip(MEMBERS, PAGE.read_bytes("payload example"), strict=False))
    return {name: bodies[name] for name in ("Carol", "Bob", "Alice")}


def read_headers() -> dict[str, ResultHeader]:
    """The headers of the three results, in the order of applying: one as bytes, the others by what differs."""
    message = decode_gossip(PAGE.read_bytes("result example")[0])
    assert isinstance(message.body, Result)
    alices = decode_header(message.body.header)
    rows = re.findall(r"\| `(\w+)` \| `(\w+)` \| `(\w+)` \|", PAGE.read_block("result example"))
    others = [
        replace(alices, **{row[0]: int(row[at]) if row[at].isdigit() else bytes.fromhex(row[at]) for row in rows})
        for at in (2, 1)
    ]
    return dict(zip(("Carol", "Bob", "Alice"), (*others, alices), strict=True))


def compute_commitments() -> dict[int, bytes]:
    return {header.member: compute_commitment(encode_header(header)) for header in read_headers().values()}


def compute_chain(height: int, applied: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """c(height): rounds 0 and 1 apply nothing."""
    before = compute_chain(height - 1) if height else CERTIFIED
    return compute_chain_digest(before, 3, height, 7 + height, get_lr_bits(LR), applied)


def test_weights_have_the_manifest_and_parts_of_the_page() -> None:
    weights, block = make_weights(), "manifest example"
    assert [encode_manifest(compute_entries(weights), FILES)] == PAGE.read_bytes(block)
    assert compute_part(weights) == PAGE.read_value(block, "Weight part")
    digest = compute_state_digest(ZERO32, compute_part(weights))
    assert digest == PAGE.read_value(block, "State digest with c = zeros")
    assert compute_blank_root(weights, FILES) == PAGE.read_value(block, "Weight part in a run with full values")
    label = "Weight part of the slice that has piece 1 only, with a `random_seed` of 65"
    assert compute_slice_root(weights, FILES, 65) == PAGE.read_value(block, label)


def test_the_plan_is_that_of_the_page() -> None:
    plan = make_plan()
    assert [encode_plan(plan)] == PAGE.read_bytes("plan example")
    assert blake3_hash(encode_plan(plan)) == PAGE.read_value("plan example", "`plan_hash`")
    assert f"`{BASIS_HASH.hex()}`" in PAGE.read_block("plan bytes")
    row = r"\| (\d) \S (\d) \(.*\) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+), (\d+) \| (\d+) \|"
    told = [tuple(map(int, found)) for found in re.findall(row, PAGE.read_block("plan example"))]
    assert told == [(*g.edges, g.chunks, g.area, g.k, g.sets, g.set_bits, *g.planes, g.payload_bytes)
                    for g in plan.groups]  # fmt: skip


def test_chunks_begin_where_the_page_says() -> None:
    plan = make_plan()
    group, strips = plan.groups[-1], view_all_strips(plan, get_trained(make_weights()))
    (block,) = compute_blocks(plan, group, 1 << 10)
    found: dict[int, tuple[str, str]] = {}
    for tile in block.tiles:
        tensor = plan.tensors[tile.tensor]
        numbers = torch.arange(strips[tile.tensor].numel()).view(strips[tile.tensor].shape)
        for number, first in enumerate(numbers[tile.strips, 0, tile.columns, 0].reshape(-1).tolist()):
            found[tile.at + number] = (tensor.name, ", ".join(map(str, np.unravel_index(first, tensor.dims))))
    rows = re.findall(r"\| (\d+) \| `([\w.]+)` \| \[([0-9, ]+)\] \|", PAGE.read_block("plan example"))
    assert {int(number): (name, place) for number, name, place in rows} == found


def test_payloads_are_encoded_as_on_the_page() -> None:
    *bodies, wide, low, none = PAGE.read_bytes("payload example")
    assert [encode_payload(make_plan(), read_votes(name)) for name in MEMBERS] == bodies
    places = (1, 2, 3, 100, 200, 500, 1_000, 2_000, 4_000, 4_095)
    others: list[tuple[bytes, tuple[int, int], int, int, Sets]] = [
        (wide, (64, 128), 64, 10, [dict.fromkeys(places, 1), {0: -1, 7: 1}]),
        (low, (16, 32), 16, 31, [{0: 1, 100: -1, 255: 1}, {3: -1, 4: 1}]),
        (none, (12, 24), 12, 100, [{0: 1, 1: -1, 143: 1}, {}]),
    ]
    for body, dims, chunk, topk, sets in others:
        plan = compute_plan({"w": dims}, chunk, topk, one_bit=True)
        assert encode_payload(plan, [pack_sets(plan.groups[0], sets)]) == body


def test_payloads_are_applied_as_on_the_page() -> None:
    weights, block = make_weights(), PAGE.read_block("apply example")
    Distro(get_trained(weights), make_plan(), 0.9).apply([*read_bodies().values()], LR, DECAY)
    shown, *_ = PAGE.read_examples("apply example")
    assert {name: bytes(get_bytes(one)) for name, one in weights.items()} == {name: shown[name] for name in weights}
    for edge, numbers in re.findall(r"\| B\((\d)\) \| `(.*)` \|", block):
        assert str(get_integer_basis(int(edge)).tolist()) == numbers
    votes = [read_votes(name) for name in MEMBERS]
    applier = Applier(make_plan(), view_all_strips(make_plan(), get_trained(make_weights())))
    for place, group in enumerate(make_plan().groups):
        (blocks,) = compute_blocks(make_plan(), group, 1 << 10)
        inverse = applier.invert_block(group, blocks, [one[place] for one in votes])
        height, width = group.edges
        rows = re.findall(rf"\| {height} \S {width} \| (\d) \| [^|]+ \| `(.*)` \|", block)
        assert rows
        assert [shown for _, shown in rows] == [
            str([list(map(int, line)) for line in inverse[int(n)]]) for n, _ in rows
        ]


def test_means_are_rounded_as_on_the_page() -> None:
    plan = compute_plan({"w": ()}, 1, 1, one_bit=True)
    (group,), weights = plan.groups, {"w": torch.zeros(())}
    applier, (block,) = Applier(plan, view_all_strips(plan, weights)), compute_blocks(plan, group, 1)
    rows = re.findall(r"\| (\d+) \| (-?\d+) \| (-?\d+) \|", PAGE.read_block("apply example"))
    assert len(rows) == 7
    for count, total, mean in (map(int, row) for row in rows):
        signs = [1] * ((count + total) // 2) + [-1] * ((count - total) // 2)
        inverse = applier.invert_block(group, block, [pack_sets(group, [{0: sign}]) for sign in signs])
        assert inverse.item() == mean * int(get_integer_basis(1)[0, 0])


def test_full_values_are_applied_as_on_the_page() -> None:
    plan, weights = compute_plan({"w": (2, 3)}, 4, 2, one_bit=False), {"w": torch.zeros(2, 3)}
    _, *bodies, after = PAGE.read_bytes("apply example")
    chosen: list[dict[int, float]] = [{0: 0.5, 4: -0.25}, {0: -0.125}]
    assert [encode_payload(plan, [pack_sets(plan.groups[0], [one], one_bit=False)]) for one in chosen] == bodies
    Distro(weights, plan, 0.9).apply(bodies, LR, 0.0)
    assert bytes(get_bytes(weights["w"])) == after


def test_orders_and_shares_are_those_of_the_page() -> None:
    block, order = PAGE.read_block("chance"), compute_order(10, SEED)
    assert f"`08`: {', '.join(map(str, order))}. So place 0 has index {order[0]}, and index 1 goes to place " in block
    assert f"place {order.index(1)}." in block
    assert f"- witnesses in order: {', '.join(map(str, get_witnesses(ROUND)))}\n" in block
    shares = compute_assignments(ROUND, Config()).items()
    assert f"- shares: {'; '.join(f'member {m} {a:,} to {b:,}' for m, (a, b) in shares)}\n" in block
    roles = get_roles(ROUND, Config(verification_percent=25))
    (verifier,) = (member for member, role in roles.items() if role is Role.VERIFIER)
    assert f"of 25 member {verifier} verifies" in block


BASE = LrSchedule(base_lr=0.001, warmup_init_lr=0.0001, final_lr=0.0002, warmup_steps=10, total_steps=110)
SCHEDULES = {
    "LINEAR": replace(BASE, kind=ScheduleKind.LINEAR),
    "COSINE": replace(BASE, kind=ScheduleKind.COSINE),
    "WARMUP_STABLE_DECAY": replace(
        BASE, kind=ScheduleKind.WARMUP_STABLE_DECAY, stable_steps=20, cosine_decay_steps=30, linear_decay_steps=40,
        cosine_decay_final_lr=0.0004, linear_decay_final_lr=0.0001,
    ),
}  # fmt: skip
RATES = re.findall(r"\| (\w+) \| (\d+) \| ([^|]*) \| (\S+) \| `(\w+)` \|", PAGE.read_block("rates"))


@pytest.mark.parametrize(("kind", "step", "cold", "rate", "bits"), RATES)
def test_rates_are_those_of_the_page(kind: str, step: str, cold: str, rate: str, bits: str) -> None:
    first, length = (int(one) for one in re.findall(r"\d+", cold)) if "f =" in cold else (0, 0)
    found = compute_learning_rate(SCHEDULES[kind], int(step), (first, first + length) if length else None)
    assert (f"{found:.9g}", f"{get_lr_bits(found):08x}") == (rate, bits)


def test_samples_are_those_of_the_page() -> None:
    for rows in (10, 16):
        orders = [Permutation(rows, b"\x05" * 32, number).permute(np.arange(rows)).tolist() for number in range(2)]
        shown = "; ".join(f"pass {n}: {', '.join(map(str, order))}" for n, order in enumerate(orders))
        assert f", of {rows} rows in all, with a seed of 32 bytes `05`: {shown}." in PAGE.read_block("samples")
    assert hash_samples(1_008, 1_009).hex() in PAGE.read_block("samples")
    labelled = np.array([25, (1 << 32) + NOT_COUNTED, BEGINS, 26, 26, 1], dtype="<u4").tobytes()
    shown = f"are `{labelled.hex()}`, and their `data_hash` is `{compute_data_hash(labelled, has_labels=True).hex()}`."
    assert shown in PAGE.read_block("samples")


def hash_samples(first: int, last: int) -> bytes:
    return compute_data_hash(np.arange(3 * (first - 1_000) + 1, 3 * (last - 999) + 1, dtype="<u4").tobytes())


def test_results_are_those_of_the_page() -> None:
    raw, headers, bodies = PAGE.read_bytes("result example")[0], read_headers(), read_bodies()
    whole = encode_header(headers["Alice"])
    assert encode_gossip(sign_gossip(ALICE, RUN_UID, 3, 0, 5, Result(compute_commitment(whole), whole))) == raw
    shares, base = (
        compute_assignments(ROUND, Config()),
        compute_state_digest(compute_chain(0), compute_part(make_weights())),
    )
    for seed, name in ((3, "Carol"), (2, "Bob"), (1, "Alice")):
        header, body = headers[name], bodies[name]
        assert header.member == MEMBERS[name]
        assert (header.batch_start, header.batch_end) == shares[header.member]
        assert header.data_hash == hash_samples(header.batch_start, header.batch_end)
        assert (header.body_hash, header.body_len) == (blob_id_of(body), len(body))
        assert header.trainer_key == Identity(bytes([seed]) * 32).public
        assert (header.run_uid, header.epoch, header.height, header.step) == (RUN_UID, 3, 0, 7)
        assert (header.lr_bits, header.plan_hash) == (get_lr_bits(LR), blake3_hash(encode_plan(make_plan())))
        assert (header.config_hash, header.base_digest) == (PAGE.read_value("config hash", "`config_hash`"), base)
    others = re.findall(r"\| commitment \| `(\w+)` \| `(\w+)` \|", PAGE.read_block("result example"))[0]
    assert [compute_commitments()[MEMBERS[name]].hex() for name in ("Bob", "Carol")] == list(others)


def test_every_field_of_a_header_is_told_on_the_page() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_block("header fields"), re.MULTILINE))
    zeros = {"momentum_after", "lookahead_root", "work_root", "flags"}  # told with momentum_before
    assert told | zeros == {one.name for one in fields(ResultHeader)}


def test_the_settings_have_the_hash_of_the_page() -> None:
    config, model = PAGE.read_bytes("config hash")
    settings = Coordinator(config=decode_config(config), model=decode_model(model))
    assert (encode_config(settings.config), encode_model(settings.model)) == (config, model)
    assert settings.model.extra_checkpoints[0].name, "the example has two sources of the weights"
    assert blake3_hash(get_config_preimage(settings)) == PAGE.read_value("config hash", "`config_hash`")


def test_digests_are_those_of_the_page() -> None:
    weights, applied = make_weights(), [*compute_commitments().items()]
    Distro(get_trained(weights), make_plan(), 0.9).apply([*read_bodies().values()], LR, DECAY)
    chain, (hashed,) = compute_chain(2, applied), PAGE.read_bytes("digests")
    assert chain == blake3_hash(hashed) == PAGE.read_value("digests", "c(2)")
    assert compute_part(weights) == PAGE.read_value("digests", "Weight part after the apply")
    assert compute_state_digest(chain, compute_part(weights)) == PAGE.read_value("digests", "D(2)")


def test_reports_are_those_of_the_page() -> None:
    commitments, block = compute_commitments(), "report example"
    held = compute_bits(commitments)
    assert compute_results_root(3, 0, held, commitments) == PAGE.read_value(block, "Results root")
    assert compute_results_root(3, 0, held | 1, commitments) == PAGE.read_value(block, "Root with member 0")
    positions = ", ".join(map(str, compute_positions(SEED, 5, commitments[1])))
    assert f"Bob's result: {positions}." in PAGE.read_block(block)
    assert [compute_bloom(SEED, 5, commitments.values())] == PAGE.read_bytes(block)


def test_what_alice_says_is_on_the_page() -> None:
    commitments = compute_commitments()
    digest = compute_state_digest(compute_chain(1), compute_part(make_weights()))
    held = compute_bits(commitments)
    root, ready, seen = compute_results_root(3, 0, held, commitments), Ready(digest, ReadyFlag(0)), compute_bits((1, 5))
    report = WitnessMessage(
        epoch=3, height=1, member=5, flags=WitnessFlag.COMPLETE | WitnessFlag.FULL_DIGEST, at_s=12, held=held,
        heard=held | 1, missing=0, broadcast_bloom=compute_bloom(SEED, 5, commitments.values()), results_root=root,
        state_digest=digest, metadata=struct.pack("<Iff", 8, 2.5, 1_000.0),
    )  # fmt: skip
    bodies = (ready, Finished(held, root, seen), Finished(held, root, seen, ready))
    said = [encode_gossip(sign_gossip(ALICE, RUN_UID, 3, 1, 5, body)) for body in bodies]
    body = msgspec.msgpack.encode(Request(4, build_submit(report)))
    assert [*said, encode_body(report), pack_length(len(body)) + body] == PAGE.read_bytes("messages example")
