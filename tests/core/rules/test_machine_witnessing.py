"""W4 and W5: each check violated once, in their order, and what acceptance does. S3 and T7 with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kits.runs import Run, build_run, expect_refusal

from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.elections import get_witnesses
from psyche.core.committee.seeds import compute_mix
from psyche.core.state.errors import (
    CoordinatorError,
    InvalidBloom,
    InvalidWitness,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, ClientState, RoundFlag, WitnessFlag
from psyche.testing.builders import build_hash

ONES = b"\xff" * 320


@pytest.fixture
def run() -> Run:
    """Round 1 of 4 members with overlap: R(0) is attested, everybody is a witness."""
    run = build_run(4, rounds_per_epoch=9).warm_up()
    run.run_round()
    return run


def pad_bloom(bits: int) -> bytes:
    return ((1 << bits) - 1).to_bytes(320, "little")


Edit = Callable[[WitnessMessage], WitnessMessage]


def change(**fields: Any) -> Edit:
    return lambda message: replace(message, **fields)


REFUSED: list[tuple[str, Edit, type[CoordinatorError]]] = [
    ("another epoch", change(epoch=1), WrongRound),
    ("a past height", change(height=0), WrongRound),
    ("a coming height", change(height=2), WrongRound),
    ("no such member", change(member=4), UnknownMember),
    ("a negative member", change(member=-1), UnknownMember),
    ("another's number", change(member=1), UnknownMember),
    ("held outside the attested round", change(held=0b10000), InvalidWitness),
    ("held negative", change(held=-1), InvalidWitness),
    ("heard outside the round", change(heard=0b10000), InvalidWitness),
    ("missing outside the epoch", change(missing=0b10000), InvalidWitness),
    ("all ones as bloom", change(broadcast_bloom=ONES), InvalidBloom),
    ("more bits than the items can set", change(broadcast_bloom=pad_bloom(29)), InvalidBloom),
    ("a short bloom", change(broadcast_bloom=b""), InvalidBloom),
    ("a root for nothing", change(held=0, broadcast_bloom=bytes(320)), InvalidWitness),
    ("something without a root", change(results_root=ZERO32), InvalidWitness),
    ("a short root", change(results_root=b"r"), InvalidWitness),
    ("no digest, not said", change(state_digest=ZERO32), InvalidWitness),
    ("a short digest", change(state_digest=b"d"), InvalidWitness),
    ("unknown flags", change(flags=WitnessFlag(8)), InvalidWitness),
    ("a time that does not fit", change(at_s=1 << 32), InvalidWitness),
    ("a negative time", change(at_s=-1), InvalidWitness),
    ("too much metadata", change(metadata=bytes(257)), InvalidWitness),
]


@pytest.mark.parametrize(("edit", "error"), [pytest.param(e, x, id=name) for name, e, x in REFUSED])
def test_w4_each_check_refuses_and_changes_no_byte(run: Run, edit: Edit, error: type[CoordinatorError]) -> None:
    message = edit(run.build_witness(0))
    with expect_refusal(run.state, error):
        run.apply(message, run.state.clients[0].p2p)


def test_w4_the_bounds_themselves_are_accepted(run: Run) -> None:
    run.send(run.build_witness(0, broadcast_bloom=pad_bloom(28), at_s=(1 << 32) - 1, metadata=bytes(256)))
    run.send(run.build_witness(1, missing=0b1111, flags=WitnessFlag.NO_DIGEST, state_digest=ZERO32))
    assert len(run.state.current.witnesses) == 2


def test_w4_a_bloom_never_has_more_than_1400_bits() -> None:
    run = build_run(201, rounds_per_epoch=9, global_batch_size_start=201, global_batch_size_end=201).warm_up()
    run.run_round()
    member = get_witnesses(run.state.current)[0]
    with expect_refusal(run.state, InvalidBloom, "1400"):
        run.send(run.build_witness(member, broadcast_bloom=pad_bloom(1_401)))
    run.send(run.build_witness(member, broadcast_bloom=pad_bloom(1_400)))


def test_w4_the_first_broken_rule_in_order_is_named(run: Run) -> None:
    wrong_everywhere = run.build_witness(1, held=1 << 9, broadcast_bloom=ONES, state_digest=ZERO32)
    run.state.clients[1].state = ClientState.DROPPED
    with expect_refusal(run.state, InvalidWitness, "DROPPED"):
        run.send(wrong_everywhere)
    run.state.clients[1].state = ClientState.HEALTHY
    with expect_refusal(run.state, InvalidWitness, "held"):
        run.send(wrong_everywhere)
    with expect_refusal(run.state, InvalidBloom):
        run.send(replace(wrong_everywhere, held=0b1111))
    with expect_refusal(run.state, WrongRound):
        run.send(replace(wrong_everywhere, height=7))


@pytest.mark.parametrize("where", ["height 0 with overlap", "last drain round"])
def test_w4_where_nothing_is_attested_nothing_can_be_held(where: str) -> None:
    run = build_run(3, rounds_per_epoch=1).warm_up()
    if where == "last drain round":
        run.run_round()
        run.run_round()
        assert run.state.current.height == 2
    with expect_refusal(run.state, InvalidWitness, "held"):
        run.send(run.build_witness(0, held=0b1, results_root=build_hash("root")))
    run.send(run.build_witness(0))
    assert run.state.current.witnesses[0].heard == 0b111


# --- W5


def test_w5_acceptance_appends_the_record_and_mixes(run: Run) -> None:
    message = run.build_witness(2, at_s=7, missing=0b1)
    run.send(message)
    record = run.state.current.witnesses[0]
    assert (record.member, record.at_s, record.missing, record.held) == (2, 7, 1, 0b1111)
    assert (record.results_root, record.state_digest) == (message.results_root, message.state_digest)
    assert record.broadcast_bloom == message.broadcast_bloom
    assert run.state.current.mix == compute_mix(ZERO32, 2, message.results_root, message.state_digest)
    assert run.state.current.complete_len == 1


def test_w5_root_and_digest_are_stored_when_q_agree(run: Run) -> None:
    round_ = run.state.current
    for member, flags in enumerate((RoundFlag(0), RoundFlag(0), RoundFlag.ROOT | RoundFlag.DIGEST | RoundFlag.FULL)):
        run.send(run.build_witness(member))
        assert round_.flags == flags
    assert round_.agreed_held == 0b1111
    assert round_.agreed_root == round_.witnesses[0].results_root
    assert round_.agreed_digest == run.compute_digest()


def test_w5_a_root_counts_only_with_the_same_bits(run: Run) -> None:
    message = run.build_witness(0)
    run.send(message)
    run.send(run.build_witness(1))
    run.send(replace(run.build_witness(2), held=0b0111, broadcast_bloom=bytes(320)))
    assert not run.state.current.flags & RoundFlag.ROOT


def test_s3_a_zero_root_never_wins(run: Run) -> None:
    for member in range(4):
        run.send(run.build_witness(member, held=0))
    assert not run.state.current.flags & RoundFlag.ROOT
    assert run.state.current.agreed_root == ZERO32


def test_s3_full_and_partial_digests_are_counted_apart(run: Run) -> None:
    run.send(run.build_witness(0))
    run.send(run.build_witness(1))
    run.send(run.build_witness(2, flags=WitnessFlag.COMPLETE))
    assert not run.state.current.flags & RoundFlag.DIGEST
    run.send(run.build_witness(3))
    assert run.state.current.flags & RoundFlag.DIGEST


def test_w3_blooms_are_keyed_by_the_round_that_reports(run: Run) -> None:
    message = run.build_witness(0)
    commitments = run.compute_commitments(run.state.rounds[0])
    assert message.broadcast_bloom == compute_bloom(run.state.current.seed, 0, commitments.values())
