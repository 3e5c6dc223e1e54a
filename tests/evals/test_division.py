"""A task divided among members: each block done once by somebody, whoever is slow, dead or lying."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.encoding.header import NumericClass
from psyche.errors import WireError
from psyche.evals.division import BLOCK_DOCUMENTS, cut_blocks, find_home, get_part, go_round, is_repeated
from psyche.evals.results import (
    RESULTS,
    BlockResult,
    Merged,
    Tally,
    judge_block,
)
from psyche.wire.crypto import Identity

DIGEST, TASK = b"d" * 32, b"t" * 32
FULL = (1 << 32) - 1


def make_result(member: int = 0, block: int = 0, right: int = 0b1011, **changes: object) -> BlockResult:
    made = BlockResult(
        run_uid=b"r" * 32, digest=DIGEST, task_hash=TASK, epoch=7, member=member, block=block, count=32,
        numeric_class=NumericClass.FP32, right=right, right_norm=right, score_sum=-12.5,
    )  # fmt: skip
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


# --- who does what ------------------------------------------------------------------------------------------


@given(documents=st.integers(0, 500), certified=st.binary(min_size=32, max_size=32))
def test_blocks_have_each_document_once_and_are_full_but_for_the_last(documents: int, certified: bytes) -> None:
    blocks = cut_blocks(certified, TASK, documents)
    assert sorted(place for block in blocks for place in block) == list(range(documents))
    assert all(len(block) == BLOCK_DOCUMENTS for block in blocks[:-1])
    assert not blocks or 1 <= len(blocks[-1]) <= BLOCK_DOCUMENTS


def test_the_order_is_fixed_for_everybody_and_another_for_other_weights_and_tasks() -> None:
    assert cut_blocks(DIGEST, TASK, 64)[0][:6] == (23, 30, 26, 43, 54, 39)
    assert len({cut_blocks(*ids, 64)[0] for ids in ((DIGEST, TASK), (TASK, DIGEST), (DIGEST, DIGEST))}) == 3


@given(members=st.integers(1, 300), blocks=st.integers(0, 400))
def test_each_block_is_in_one_members_part_and_parts_are_alike(members: int, blocks: int) -> None:
    parts = [get_part(member, members, blocks) for member in range(members)]
    assert [block for part in parts for block in part] == list(range(blocks))
    assert {len(part) for part in parts} <= {blocks // members, -(-blocks // members)}
    assert all(find_home(block, members, blocks) == member for member, part in enumerate(parts) for block in part)
    rounds = list(go_round(members - 1, members, blocks))
    assert (sorted(rounds), rounds[:1]) == (list(range(blocks)), [(members - 1) * blocks // members][:blocks])


def test_a_member_repeats_a_twentieth_of_the_blocks_which_its_secret_draws() -> None:
    drawn = [[is_repeated(secret, DIGEST, TASK, block) for block in range(20_000)] for secret in (b"a" * 32, b"b" * 32)]
    assert all(900 < sum(one) < 1_100 for one in drawn)
    assert sum(map(all, zip(*drawn, strict=True))) < 100, "of another secret other ones"


# --- the message --------------------------------------------------------------------------------------------

MESSAGES = st.integers(0, 32).flatmap(
    lambda count: st.builds(
        BlockResult, run_uid=st.binary(min_size=32, max_size=32), digest=st.binary(min_size=32, max_size=32),
        task_hash=st.binary(min_size=32, max_size=32), epoch=st.integers(0, 65_535), member=st.integers(0, 255),
        block=st.integers(0, FULL), count=st.just(count), numeric_class=st.sampled_from(NumericClass),
        right=st.integers(0, (1 << count) - 1), right_norm=st.integers(0, (1 << count) - 1),
        score_sum=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)  # fmt: skip


@given(result=MESSAGES)
def test_a_result_has_197_bytes_and_comes_back_as_it_was_signed(result: BlockResult) -> None:
    identity = Identity(b"i" * 32)
    signed = RESULTS.sign(identity, result)
    raw = RESULTS.encode(signed)
    assert len(raw) == RESULTS.most_bytes == 197
    assert RESULTS.decode(raw) == signed
    assert RESULTS.is_signed_by(signed, identity.public)
    assert not RESULTS.is_signed_by(replace(signed, block=signed.block ^ 1), identity.public)
    assert not RESULTS.is_signed_by(signed, Identity(b"j" * 32).public)


@given(raw=st.one_of(st.binary(max_size=250), st.binary(min_size=183, max_size=183).map(b"psyche/score/1".__add__)))
def test_bytes_are_a_result_or_refused(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        assert RESULTS.encode(RESULTS.decode(raw)) == raw


@pytest.mark.parametrize(
    ("place", "byte", "words"),
    [(0, 0, "must be 197 that begin with"), (113, 255, "BlockResult.member: 65280 is above the limit of 255"),
     (118, 33, "BlockResult.count: 33 is above the limit of 32"), (118, 3, "right: has a bit beyond the 3 documents"),
     (119, 2, "BlockResult.numeric_class: 2 is no NumericClass"), (132, 1, "BlockResult.pad: byte 118 is not zero")],
)  # fmt: skip
def test_a_field_without_a_valid_value_is_named(place: int, byte: int, words: str) -> None:
    raw = bytearray(RESULTS.encode(make_result(signature=bytes(64))))
    raw[place] = byte
    with pytest.raises(WireError, match=words):
        RESULTS.decode(bytes(raw))


# --- what they say together ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "counted", "differing"),
    [
        ([(3, 0b1111), (1, 0b1110)], 1, ()),  # one of 32 may differ
        ([(0, 0b1111), (1, 0b1001)], None, (0, 1)),
        ([(0, 0b1111), (1, 0b1001), (2, 0b1101)], 2, ()),  # close to both
        ([(0, FULL), (1, 0b1001), (2, 0b1101)], 1, (0,)),
        ([(0, FULL), (1, FULL), (2, 0b1001), (3, 0b1001)], None, (0, 1, 2, 3)),  # until another one comes
        ([(0, FULL), (1, FULL), (2, 0b1001), (3, 0b1001), (4, 0b1001)], 2, (0, 1)),
        ([], None, ()),
    ],
)
def test_what_two_agree_on_counts_and_who_differs_is_named(
    results: list[tuple[int, int]], counted: int | None, differing: tuple[int, ...]
) -> None:
    verdict = judge_block({bytes([member]): make_result(member, right=right) for member, right in results})
    assert (verdict.counted.member if verdict.counted else None, tuple(b"".join(verdict.differing))) == (
        counted, differing
    )  # fmt: skip


def test_bf16_may_differ_in_two_and_nothing_is_said_of_two_classes() -> None:
    bf16 = {
        key: make_result(right=right, numeric_class=NumericClass.BF16) for key, right in ((b"0", 15), (b"1", 9))
    }  # fmt: skip
    assert judge_block(bf16).differing == ()
    assert judge_block({b"0": bf16[b"0"], b"2": make_result(right=FULL)}).differing == ()
    assert judge_block(bf16 | {b"2": make_result(right=FULL, numeric_class=NumericClass.BF16)}).differing == (b"2",)


def merge(results: Sequence[BlockResult], blocks: int) -> Merged:
    tally = Tally(blocks)
    return [tally.add(one, bytes([one.epoch, one.member])) for one in results][-1]


@given(
    truth=st.lists(st.integers(0, FULL), min_size=1, max_size=8),
    liars=st.sets(st.integers(0, 6), max_size=3),
    lies=st.lists(st.integers(0, FULL), min_size=21, max_size=21),
    order=st.randoms(use_true_random=False),
)
def test_no_lie_of_three_in_seven_who_do_not_agree_changes_a_score(
    truth: list[int], liars: set[int], lies: list[int], order: Random
) -> None:
    results = [
        make_result(member, block, lies[(3 * member + block) % 21] if member in liars else right)
        for block, right in enumerate(truth)
        for member in range(7)
    ]
    order.shuffle(results)
    merged = merge(results, len(truth))
    assert merged == merge(results[::-1], len(truth)), "in whatever order they come"
    assert merged.is_final
    slack = len(truth)  # a lie of one bit is no lie that anybody can see
    assert abs(merged.acc.right - sum(map(int.bit_count, truth))) <= slack
    assert {one.member for found in merged.disputes.values() for one in found} <= liars


def test_a_score_is_shown_from_half_of_the_blocks_on_and_never_mixes_weights() -> None:
    halves = [make_result(block=block, right=0xFFFF) for block in (0, 2)]
    merged = merge(halves, 4)
    assert (merged.blocks_counted, merged.is_shown, merged.is_final) == (2, True, False)
    assert (merged.acc.value, merged.acc.documents) == (0.5, 64)
    assert merged.acc.standard_error == pytest.approx(0.0630, abs=1e-4)
    assert not merge(halves, 5).is_shown
    with pytest.raises(WireError, match="results of several tasks or weights are not one score"):
        merge([*halves, make_result(digest=b"e" * 32)], 4)


def test_a_member_of_the_next_epoch_with_the_same_number_is_somebody_else() -> None:
    """Of epoch 8 member 0 contradicts member 0 of epoch 7, with whom another one agrees."""
    lie = make_result(0, 1, right=FULL, epoch=8)
    merged = merge([make_result(0, 0), make_result(0, 1), lie, make_result(1, 1, epoch=8)], 2)
    assert merged.disputes == {1: (lie,)}
    assert merged.is_final, "what member 0 of epoch 7 did alone still counts"
