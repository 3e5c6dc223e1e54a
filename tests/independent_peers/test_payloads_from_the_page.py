"""docs/peer-training.md is enough for payloads and weights: what was built from it alone does what the programs do."""

import json
import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from independent_messages import Header, compute_commitment, read, sign
from independent_record import (
    Record,
    Round,
    compute_filter,
    compute_rate,
    compute_root,
    find_place,
    list_positions,
    put_in_order,
    to_bitmap,
)
from independent_trainer import (
    Entries,
    Momentum,
    Plan,
    Tensors,
    apply,
    compute_chain,
    compute_digest,
    compute_means,
    decode_payload,
    encode_manifest,
    encode_payload,
    encode_slice,
    get_blob_id,
    hash3,
    invert,
    permute_row,
)
from kits.reader import Page
from kits.run_files import MODEL
from kits.runs import build_run
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_witnesses
from psyche.core.committee.schedule import compute_learning_rate, get_lr_bits
from psyche.core.encoding import plan as psyche_plan
from psyche.core.encoding.account import encode_model, encode_state, get_config_preimage
from psyche.core.state.messages import Pause
from psyche.core.state.state import LrSchedule, Model, ScheduleKind
from psyche.core.state.timeline import get_applied_height, get_attested_height, is_last_drain
from psyche.data.permutation import Permutation
from psyche.errors import WireError
from psyche.modeling.distro import codec
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.model import get_parameters, get_shapes
from psyche.modeling.trainer.batch import compute_gradients
from psyche.wire.crypto import blake3_hash

PAGE = Page("peer-training.md")
SHAPES = {"embed": (48, 32), "bias": (20,), "heads": (3, 7, 16), "odd": (16, 37), "scalar": ()}
BOB, CAROL, ALICE = 1, 4, 5


# --- the page's examples --------------------------------------------------------------------------------


def make_example() -> tuple[Tensors, dict[str, bytes], Plan]:
    tensors: Tensors = {
        "heads.weight": np.array(np.arange(64) / 64, dtype=np.float32).reshape(2, 8, 4),
        "lin.weight": np.array(np.arange(64) / 32 - 1, dtype=np.float32).reshape(8, 8),
        "norm.offset": np.array([0.5, -0.5], dtype=np.float32),
        "norm.weight": np.ones(6, dtype=np.float32),
        "scale": np.array(2, dtype=np.float32),
    }
    shapes = {name: tensor.shape for name, tensor in tensors.items() if name != "norm.offset"}
    return tensors, {"config.json": b'{"model_type": "llama"}'}, Plan(shapes, 4, 2, one_bit=True)


def read_sets_of(block: str, owner: str) -> list[list[Entries]]:
    """The table of one payload's sets."""
    found = re.search(rf"{owner}'s payload:\n\n(.*?)\n\n", PAGE.read_block(block), re.DOTALL)
    assert found is not None
    groups: dict[str, list[Entries]] = {}
    for name, shown in re.findall(r"\| ([^|]+) \| \d+ \| ([^|]+) \|", found[1]):
        signs = re.findall(r"(\S) at (\d+)", shown)
        groups.setdefault(name, []).append({int(place): 1 if sign == "+" else -1 for sign, place in signs})
    return list(groups.values())


TIMES = " \N{MULTIPLICATION SIGN} "
TRAINERS = {"Alice": ALICE, "Bob": BOB, "Carol": CAROL}


def test_the_plan_of_the_page() -> None:
    _, _, plan = make_example()
    assert plan.encode() == PAGE.read_examples("plan example")[0][""]
    assert hash3(plan.encode()) == PAGE.read_value("plan example", "`plan_hash`")


def test_the_manifest_of_the_page() -> None:
    tensors, files, _ = make_example()
    manifest = encode_manifest(tensors, files)
    assert manifest == PAGE.read_examples("manifest example")[0][""]
    assert hash3(manifest) == PAGE.read_value("manifest example", "Weight part")
    assert compute_digest(bytes(32), manifest) == PAGE.read_value("manifest example", "State digest with c = zeros")
    blank = encode_manifest(tensors, files, blank=True)
    assert hash3(blank) == PAGE.read_value("manifest example", "Weight part in a run with full values")
    piece = hash3(encode_slice(tensors, files, 65))
    assert piece == PAGE.read_value(
        "manifest example", "Weight part of the slice that has piece 1 only, with a `random_seed` of 65"
    )


def test_the_chunks_of_the_page_begin_where_it_says() -> None:
    tensors, _, plan = make_example()
    group = plan.groups[-1]
    numbers = {cut.name: np.arange(tensors[cut.name].size).reshape(cut.dims) for cut in group.cuts}
    rows = re.findall(r"\| (\d+) \| `([\w.]+)` \| \[([0-9, ]+)\] \|", PAGE.read_block("plan example"))
    assert [int(number) for number, _, _ in rows] == list(range(group.chunks))
    shown = [int(numbers[name][tuple(int(one) for one in place.split(", "))]) for _, name, place in rows]
    assert group.cut(numbers)[:, 0, 0].tolist() == shown


def test_the_payloads_of_the_page() -> None:
    _, _, plan = make_example()
    *bodies, wide, low, none = (example[""] for example in PAGE.read_examples("payload example"))
    for name, body in zip(TRAINERS, bodies, strict=True):
        sets = read_sets_of("payload example", name)
        assert encode_payload(plan, sets) == body
        assert decode_payload(plan, body) == sets
    places = (1, 2, 3, 100, 200, 500, 1_000, 2_000, 4_000, 4_095)
    examples: list[tuple[tuple[int, int], int, int, bytes, list[Entries]]] = [
        ((64, 128), 64, 10, wide, [dict.fromkeys(places, 1), {0: -1, 7: 1}]),
        ((16, 32), 16, 31, low, [{0: 1, 100: -1, 255: 1}, {3: -1, 4: 1}]),
        ((12, 24), 12, 100, none, [{0: 1, 1: -1, 143: 1}, {}]),
    ]
    for dims, chunk, topk, body, sets in examples:
        plan = Plan({"w": dims}, chunk, topk, one_bit=True)
        assert encode_payload(plan, [sets]) == body
        assert decode_payload(plan, body) == [sets]


def find_commitments() -> dict[int, bytes]:
    """The commitments of the page's three results, in the order of applying."""
    alices = PAGE.read_examples("result example")[0][""][-448:]
    header, found = Header.decode(alices), {ALICE: compute_commitment(alices)}
    assert header.encode() == alices
    for number, name in enumerate(("Bob", "Carol")):
        rows = dict(
            re.findall(r"\| `?(\w+)`? \| " + r"`\w+` \| " * number + r"`(\w+)`", PAGE.read_block("result example"))
        )
        first, last, member = (int(rows[name]) for name in ("batch_start", "batch_end", "member"))
        assert member == TRAINERS[name]
        body = encode_payload(make_example()[2], read_sets_of("payload example", name))
        seed = bytes([number + 2]) * 32
        other = replace(
            header, member=member, share=(first, last), data_hash=hash3(list_ids(first, last)),
            body_hash=get_blob_id(body), body_len=len(body), trainer_key=find_key(seed),
        ).encode()  # fmt: skip
        found[member] = compute_commitment(other)
        assert found[member].hex() == rows["commitment"]
        header = Header.decode(alices)
    order = {CAROL: 1_000, BOB: 1_003, ALICE: 1_008}
    return {member: found[member] for member in sorted(found, key=order.__getitem__)}


def find_key(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def list_ids(first: int, last: int) -> bytes:
    return np.arange(3 * (first - 1_000) + 1, 3 * (last - 999) + 1, dtype="<u4").tobytes()


def apply_example() -> tuple[Tensors, dict[str, bytes]]:
    tensors, files, plan = make_example()
    bodies = [encode_payload(plan, read_sets_of("payload example", name)) for name in ("Carol", "Bob", "Alice")]
    return apply(plan, tensors, bodies, np.float32(0.001), np.float32(0.1)), files


def test_the_weights_of_the_page() -> None:
    _, _, plan = make_example()
    after, _ = apply_example()
    shown = PAGE.read_examples("apply example")[0]
    assert {name: tensor.tobytes() for name, tensor in after.items()} == {name: shown[name] for name in after}
    payloads = [decode_payload(plan, encode_payload(plan, read_sets_of("payload example", name))) for name in TRAINERS]
    inverses = {
        (TIMES.join(map(str, group.edges)), number): one
        for place, group in enumerate(plan.groups)
        for number, one in enumerate(invert(group, [payload[place] for payload in payloads]).tolist())
    }
    rows = re.findall(r"\| (\d . \d) \| (\d) \| [^|]+ \| `(\[\[.*\]\])` \|", PAGE.read_block("apply example"))
    assert len(rows) == 10
    assert [inverses[name, int(number)] for name, number, _ in rows] == [json.loads(shown) for _, _, shown in rows]


def test_the_means_of_the_page() -> None:
    (group,) = Plan({"w": ()}, 1, 1, one_bit=True).groups
    rows = re.findall(r"\| (\d+) \| (-?\d+) \| (-?\d+) \|", PAGE.read_block("apply example"))
    assert len(rows) == 7
    for count, total, mean in (map(int, row) for row in rows):
        votes: list[list[Entries]] = [[{0: 1 if place < (count + total) // 2 else -1}] for place in range(count)]
        assert compute_means(group, votes).item() == mean, (count, total)


def test_the_full_values_of_the_page() -> None:
    plan, tensors = Plan({"w": (2, 3)}, 4, 2, one_bit=False), {"w": np.zeros((2, 3), dtype=np.float32)}
    *bodies, after = (example[""] for example in PAGE.read_examples("apply example")[1:])
    chosen: list[list[list[Entries]]] = [[[{0: 0.5, 4: -0.25}]], [[{0: -0.125}]]]
    assert [encode_payload(plan, one) for one in chosen] == bodies
    assert [decode_payload(plan, body) for body in bodies] == chosen
    found = apply(plan, tensors, bodies, np.float32(0.001), np.float32(0))
    assert found["w"].tobytes() == after


def find_chain() -> bytes:
    """c(1): no round has applied anything."""
    (bits,) = struct.unpack("<I", np.float32(0.001).tobytes())
    chain = b"\x0d" * 32
    for height in range(2):
        chain = compute_chain(chain, 3, height, 7 + height, bits, ())
    return chain


def test_the_digests_of_the_page() -> None:
    after, files = apply_example()
    example = PAGE.read_examples("digests")[0]
    (bits,) = struct.unpack("<I", np.float32(0.001).tobytes())
    chain = find_chain()
    assert chain == example["c(1)"]
    pairs = list(find_commitments().items())
    assert [member for member, _ in pairs] == [CAROL, BOB, ALICE]
    chain = compute_chain(chain, 3, 2, 9, bits, pairs)
    assert chain == PAGE.read_value("digests", "c(2)")
    assert compute_digest(chain, encode_manifest(after, files)) == PAGE.read_value("digests", "D(2)")


def test_the_roots_and_filters_of_the_page() -> None:
    commitments, seed = find_commitments(), b"\x08" * 32
    held = to_bitmap(commitments)
    assert compute_root(3, 0, held, commitments) == PAGE.read_value("report example", "Results root")
    held = to_bitmap((0, *commitments))
    assert compute_root(3, 0, held, commitments) == PAGE.read_value("report example", "Root with member 0")
    positions = re.findall(r"Bob's result: ([0-9, ]+)\.", PAGE.read_block("report example"))
    assert list_positions(seed, ALICE, commitments[BOB]) == [int(one) for one in positions[0].split(", ")]
    assert compute_filter(seed, ALICE, commitments.values()) == PAGE.read_examples("report example")[0]["bloom"]


def test_the_config_hash_of_the_page() -> None:
    config, model = (example[""] for example in PAGE.read_examples("config hash"))
    raw = bytearray(165_192)
    raw[560:1_520], raw[1_520:1_648] = model, config
    record = Record(bytes(raw))
    assert record.config_hash == PAGE.read_value("config hash", "`config_hash`")
    assert record.config_hash == PAGE.read_examples("result example")[0]["config_hash"]
    assert hash3(b"psyche/config/1", config, model) != record.config_hash, "the sources are set in the example"
    decay, _, *sizes = record.settings
    assert (np.float32(decay), *sizes) == (np.float32(0.1), 2, 4, True)
    assert record.find_rate(7) == np.float32(0.001)


def test_alices_message_of_the_page() -> None:
    raw = PAGE.read_examples("result example")[0][""]
    said = read(raw, b"\x07" * 32)
    assert said is not None
    assert said.raw == sign(b"\x01" * 32, "result", b"\x07" * 32, (3, 0), ALICE, said.body, said.header).raw == raw
    assert said.is_signed_by(Header.decode(said.header).trainer_key)


def test_orders_and_shares_of_the_page() -> None:
    shown = re.findall(
        r"under a key of 32 bytes `08`: ([0-9, ]+)\. So place 0 has index (\d+), and index 1 goes to "
        r"place (\d+)",
        PAGE.read_block("chance"),
    )[0]
    assert put_in_order(list(range(10)), b"\x08" * 32) == [int(one) for one in shown[0].split(", ")]
    assert put_in_order(list(range(10)), b"\x08" * 32)[0] == int(shown[1])
    assert find_place(1, 10, b"\x08" * 32) == int(shown[2])
    members = to_bitmap((0, 1, 4, 5))
    raw = bytearray(18_752)
    raw[:32], raw[32:64], raw[288:320], raw[192:200] = b"\x08" * 32, members, members, b"\x08" * 8
    struct.pack_into("<Q", raw, 200, 1_000)
    struct.pack_into("<HHH", raw, 232, 10, 4, 4)  # batch_size, clients_len, witnesses_expected
    round_ = Round(bytes(raw))
    shares = re.findall(r"member (\d) ([\d,]+) to ([\d,]+)", PAGE.read_block("chance"))
    assert round_.find_shares(0) == {int(m): (to_int(first), to_int(last)) for m, first, last in shares}
    assert sorted(round_.find_shares(25)) == [1, 4, 5]
    witnesses = re.findall(r"witnesses in order: ([0-9, ]+)", PAGE.read_block("chance"))[0]
    assert round_.find_witnesses() == [int(one) for one in witnesses.split(", ")]


def to_int(shown: str) -> int:
    return int(shown.replace(",", ""))


def test_the_rates_of_the_page() -> None:
    base = struct.pack("<4x2d", 0.001, 0.0001)
    schedules = {
        "LINEAR": struct.pack("<I", 1) + base + struct.pack("<dII", 0.0002, 10, 110),
        "COSINE": struct.pack("<I", 2) + base + struct.pack("<dII", 0.0002, 10, 110),
        "WARMUP_STABLE_DECAY": struct.pack("<I", 3) + base + struct.pack("<2d4I", 0.0004, 0.0001, 10, 20, 30, 40),
    }
    rows = re.findall(r"\| (\w+) \| (\d+) \| ([^|]*) \| \S+ \| `(\w+)` \|", PAGE.read_block("rates"))
    assert len(rows) == 21
    for name, step, cold, bits in rows:
        rate = compute_rate(schedules[name], int(step))
        first, length = (int(one) for one in re.findall(r"\d+", cold)) if "f =" in cold else (0, 0)
        if length and first <= int(step) <= first + length:
            rate = rate * (int(step) - first) / length
        assert struct.pack(">f", rate).hex() == bits, (name, step)


def test_the_samples_of_the_page() -> None:
    found = re.findall(r"of (\d+) rows in all.*?: (pass 0.*)\.", PAGE.read_block("samples"))
    assert [int(rows) for rows, _ in found] == [10, 16]
    for rows, orders in found:
        for number, order in re.findall(r"pass (\d): ([0-9, ]+)", orders):
            places = [permute_row(row, int(rows), b"\x05" * 32, int(number)) for row in range(int(rows))]
            assert places == [int(one) for one in order.split(", ")]
    assert hash3(list_ids(1_008, 1_009)).hex() in PAGE.read_block("samples")


# --- against the programs -------------------------------------------------------------------------------


def make_plans(chunk: int, topk: int, *, one_bit: bool) -> tuple[Plan, psyche_plan.TransformPlan]:
    return Plan(SHAPES, chunk, topk, one_bit=one_bit), psyche_plan.compute_plan(SHAPES, chunk, topk, one_bit=one_bit)


def read_sets(plan: psyche_plan.TransformPlan, body: bytes) -> list[list[Entries]]:
    """What the programs' decoder finds, in the independent member's form."""
    found: list[list[Entries]] = []
    for group, sets in zip(plan.groups, codec.decode_payload(plan, body), strict=True):
        pairs = [zip(i.tolist(), v.tolist(), strict=True) for i, v in zip(sets.indices, sets.values, strict=True)]
        found.append([{place: value for place, value in pair if place < group.area} for pair in pairs])
    return found


@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize(("chunk", "topk"), [(8, 3), (16, 8), (16, 40), (32, 200), (128, 1), (4, 16)])
def test_plans_and_payloads_are_those_of_the_programs(chunk: int, topk: int, *, one_bit: bool) -> None:
    plan, theirs = make_plans(chunk, topk, one_bit=one_bit)
    assert plan.encode() == psyche_plan.encode_plan(theirs)
    assert plan.size == psyche_plan.get_payload_bytes(theirs)
    draw = np.random.default_rng(topk)
    chosen: list[list[Entries]] = []
    for group in plan.groups:
        sizes = draw.integers(0, group.k + 1, group.chunks)
        places = [sorted(draw.choice(group.area, size, replace=False).tolist()) for size in sizes]
        chosen.append([{place: draw_value(draw, one_bit=one_bit) for place in row} for row in places])
    body = encode_payload(plan, chosen)
    assert read_sets(theirs, body) == chosen == decode_payload(plan, body)


def draw_value(draw: np.random.Generator, *, one_bit: bool) -> float:
    return int(draw.choice((-1, 1))) if one_bit else float(np.float32(draw.uniform(0.5, 1) * draw.choice((-1, 1))))


@given(noise=st.dictionaries(st.integers(0, 10_000), st.integers(0, 255), max_size=6), one_bit=st.booleans(),
       sizes=st.sampled_from([(4, 2), (16, 40), (8, 5)]))  # fmt: skip
def test_both_find_or_refuse_the_same(noise: dict[int, int], one_bit: bool, sizes: tuple[int, int]) -> None:
    shapes = {"w": (16, 16), "v": (3,)}
    plan = Plan(shapes, *sizes, one_bit=one_bit)
    theirs = psyche_plan.compute_plan(shapes, *sizes, one_bit=one_bit)
    raw = bytearray(plan.size)
    for place, byte in noise.items():
        raw[place % plan.size] = byte
    assert try_decode(plan, bytes(raw)) == try_read(theirs, bytes(raw))


def try_decode(plan: Plan, body: bytes) -> list[list[Entries]] | None:
    try:
        return decode_payload(plan, body)
    except AssertionError:
        return None


def try_read(plan: psyche_plan.TransformPlan, body: bytes) -> list[list[Entries]] | None:
    try:
        return read_sets(plan, body)
    except WireError:
        return None


def test_a_real_members_payload_is_decoded_and_applied_alike() -> None:
    """Two trainers train a Llama for three rounds; the independent peer follows their weights bit by bit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in MODEL.items() if k != "architectures"}))
    parameters = get_parameters(model)
    theirs = psyche_plan.compute_plan(get_shapes(parameters), 16, 16, one_bit=True)
    trainers = [Distro(parameters, theirs, 0.95) for _ in range(2)]
    weights: Tensors = {name: one.detach().numpy().copy() for name, one in parameters.items()}
    plan = Plan({name: one.shape for name, one in weights.items()}, 16, 16, one_bit=True)
    own = Momentum(plan, 0.95)
    for height in range(3):
        bodies = [train(model, trainer, height, number) for number, trainer in enumerate(trainers)]
        assert [decode_payload(plan, body) for body in bodies] == [read_sets(theirs, body) for body in bodies]
        bodies.append(own.compress(weights, np.float32(0.003)))  # as of a loss that is the sum of all squares
        trainers[0].apply(bodies, float(np.float32(0.003)), float(np.float32(0.1)))
        weights = apply(plan, weights, bodies, np.float32(0.003), np.float32(0.1))
        assert {name: one.tobytes() for name, one in weights.items()} == {
            name: one.detach().numpy().tobytes() for name, one in parameters.items()
        }


def train(model: Any, trainer: Distro, height: int, number: int) -> bytes:
    rows = torch.randint(0, MODEL["vocab_size"], (2, 16), generator=torch.Generator().manual_seed(9 * height + number))
    parameters, cpu = get_parameters(model), torch.device("cpu")
    gradients = compute_gradients(model, parameters, rows, micro_batch_size=2, device=cpu, clip=1.0)
    return trainer.compress(gradients.tensors, 0.003, (), in_flight=True, height=height)


@given(st.integers(1, 5_000), st.binary(min_size=32, max_size=32), st.integers(0, 9), st.data())
def test_rows_are_shuffled_alike(rows: int, seed: bytes, number: int, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, rows - 1))
    assert Permutation(rows, seed, number).permute(np.array([row])).tolist() == [permute_row(row, rows, seed, number)]


@given(st.sampled_from(ScheduleKind), st.integers(0, 130), st.integers(0, 20), st.integers(1, 40))
def test_rates_are_those_of_the_programs(kind: ScheduleKind, step: int, warmup: int, length: int) -> None:
    end = {"total_steps": warmup + length, "final_lr": 0.0002}
    phases = {"stable_steps": length, "cosine_decay_steps": length, "linear_decay_steps": 10}
    rates = {"cosine_decay_final_lr": 0.001, "linear_decay_final_lr": 0.0002}
    more = {ScheduleKind.LINEAR: end, ScheduleKind.COSINE: end, ScheduleKind.WARMUP_STABLE_DECAY: phases | rates}
    schedule = LrSchedule(kind, 0.004, 0.0001, warmup, **more.get(kind, {}))
    rate = compute_rate(encode_model(Model(lr_schedule=schedule))[464:520], step)
    assert struct.unpack("<I", struct.pack("<f", rate))[0] == get_lr_bits(compute_learning_rate(schedule, step))


@pytest.mark.parametrize("overlap", [True, False])
def test_the_record_is_read_like_the_programs_read_it(*, overlap: bool) -> None:
    run = build_run(5, overlap=overlap, witness_nodes=3, global_batch_size_start=7, global_batch_size_end=7)
    run.warm_up()
    while run.state.in_round:
        state, round_, record = run.state, run.state.current, Record(encode_state(run.state))
        ours = record.current
        assert record.config_hash == blake3_hash(get_config_preimage(state))
        assert (ours.height, ours.step, ours.seed) == (round_.height, round_.step, round_.seed)
        assert ours.find_witnesses() == get_witnesses(round_)
        assert ours.find_shares(record.verification_percent) == compute_assignments(round_, state.config)
        assert record.find_attested(ours.height) == get_attested_height(state.config, state.epoch, ours.height)
        assert record.find_applied(ours.height) == get_applied_height(state.config, state.epoch, ours.height)
        assert record.is_last_drain(ours.height) == is_last_drain(state.config, state.epoch, ours.height)
        if round_.height == 2:
            run.apply(Pause())
        run.run_round()
