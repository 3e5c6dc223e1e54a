"""What a member says in a round: the bytes of the page, made by an independent member."""

import struct

import numpy as np
import pytest
import torch
from independent_messages import encode_report, read, sign
from independent_network import pack
from independent_record import compute_filter, compute_root, to_bitmap
from independent_trainer import Plan, Tensors, apply, compute_digest, encode_manifest, encode_payload
from test_payloads_from_the_page import ALICE, BOB, PAGE, find_chain, find_commitments, make_example

from psyche.core.encoding.plan import compute_plan
from psyche.data.dummy import DummyData
from psyche.modeling.distro.optimizer import Distro

RUN_UID, SEED, ROUND = b"\x07" * 32, b"\x01" * 32, (3, 1)


def find_digest() -> bytes:
    """D(1)."""
    tensors, files, _ = make_example()
    return compute_digest(find_chain(), encode_manifest(tensors, files))


def find_held() -> tuple[bytes, bytes]:
    """The bitmap and the root of round 0."""
    commitments = find_commitments()
    held = to_bitmap(commitments)
    return held, compute_root(3, 0, held, commitments)


def test_ready_and_finished_of_the_page() -> None:
    held, root = find_held()
    ready = find_digest() + b"\x00"
    finished = held + root + to_bitmap((BOB, ALICE))
    shown = PAGE.read_bytes("messages example")[:3]
    said = [("ready", ready), ("finished", finished), ("finished", finished + ready)]
    assert [sign(SEED, kind, RUN_UID, ROUND, ALICE, body).raw for kind, body in said] == shown
    for raw, (kind, body) in zip(shown, said, strict=True):
        found = read(raw, RUN_UID)
        assert found is not None
        assert (found.kind, found.height, found.member, found.body) == (kind, 1, ALICE, body)


def test_the_witness_message_of_the_page() -> None:
    held, root = find_held()
    commitments = find_commitments()
    bloom = compute_filter(b"\x08" * 32, ALICE, commitments.values())
    metadata = struct.pack("<Iff", 8, 2.5, 1_000)
    heard = to_bitmap((0, *commitments))
    report = encode_report(ROUND, ALICE, 1 | 2, held, heard, bloom, root, find_digest(), 12, metadata)
    shown, request = PAGE.read_bytes("messages example")[3:]
    assert report == shown
    body = pack([4, ["submit", 6, report, None, None, None]])
    assert struct.pack("<I", len(body)) + body == request


def test_subnormal_numbers_and_zeros_are_changed_as_the_page_says() -> None:
    plan = Plan({"w": (4,)}, 4, 1, one_bit=True)
    tensors: Tensors = {"w": np.array([1e-40, -0.0, -0.0, 1.0], dtype=np.float32)}
    body = encode_payload(plan, [[{1: 1}]])  # X is positive, positive, negative, negative
    weights = {"w": torch.from_numpy(tensors["w"].copy())}
    theirs = Distro(weights, compute_plan({"w": (4,)}, 4, 1, one_bit=True), 0.9)
    theirs.apply([body], 0.0, 0.0)
    ours = apply(plan, tensors, [body], np.float32(0), np.float32(0))["w"]
    assert ours.tobytes() == weights["w"].numpy().tobytes()
    assert np.signbit(ours).tolist() == [False, True, False, False]
    assert ours[0] == np.float32(1e-40)


@pytest.mark.parametrize("start", [0, 1_000, (1 << 62) - 4])
def test_dummy_rows_are_those_of_the_page(start: int) -> None:
    rows, size, mask = range(start, start + 3), 5, (1 << 64) - 1
    numbers = [[(row * size + column) & mask for column in range(size)] for row in rows]
    found = [[((x ^ x >> 15) * 0x9E3779B97F4A7C15 & mask) >> 33 for x in row] for row in numbers]
    ours = [[x % 1_000 for x in row] for row in found]
    assert DummyData(size, 1_000).samples(start, start + 2).tolist() == ours
