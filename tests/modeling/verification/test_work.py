"""What a trainer shows of a batch, and what an auditor makes of it: V1 to V6, V8, V10, V11."""

import msgspec
import pytest
import torch
from auditing_kit import LENGTH, OPENED, PIECE, PIECES, SAMPLES, Member, draw_tokens, get_seed
from kits.tier import IS_WHOLE, few

from psyche.core.committee.verdicts import compute_distance
from psyche.core.encoding.work import compute_difference, decode_table
from psyche.core.state.enums import AuditReason
from psyche.core.state.state import ZERO32
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.trainer.batch import Cancelled, compute_gradients, decode_tokens
from psyche.modeling.verification.openings import decode_opening, draw_chunks, get_opening_bytes
from psyche.modeling.verification.sketch import Sketch
from psyche.wire.trainer import AuditRequest, LinkRequest, LoadRequest, OpenRequest, SnapshotRequest, WorkRequest


@pytest.fixture
def member(load_request: LoadRequest) -> Member:
    return Member(load_request)


@pytest.fixture(scope="module")
def old_hand(shared_load_request: LoadRequest) -> Member:
    """A member after nine rounds, of which the last, 8, is still open. Audits and openings do not change it (V8)."""
    return Member(shared_load_request).run(9)


# --- tables


def test_v2_a_row_is_the_loss_of_a_piece_and_the_sketch_of_the_gradient_up_to_it(member: Member) -> None:
    member.run(1)
    (reply,) = member.replies
    assert reply.work is not None
    *table, calibration = decode_table(reply.work.table, PIECES, is_calibrated=True)
    replica = Member(member.load).engine._get_loaded().replica
    rows = decode_tokens(draw_tokens(0), SAMPLES, LENGTH, 64)
    sketch = Sketch(get_seed(0))
    assert len(table) == PIECES == 12
    assert sum(row.loss for row in table) / reply.tokens == pytest.approx(reply.loss, rel=1e-6)
    for count in (1, 7, PIECES):
        part = compute_gradients(
            replica.model, replica.parameters, rows[: count * PIECE], micro_batch_size=99, device=torch.device("cpu"),
            clip=None, predicted=SAMPLES * (LENGTH - 1),
        )  # fmt: skip
        assert compute_distance(table[count - 1].values, sketch.compute(part.tensors)) < 1e-5
    alone = compute_gradients(
        replica.model, replica.parameters, rows[:1], micro_batch_size=1, device=torch.device("cpu"), clip=None
    )
    assert compute_distance(calibration.values, sketch.compute(alone.tensors)) < 1e-5, "V6"
    assert calibration.loss == pytest.approx(alone.loss * (LENGTH - 1))


def test_a_run_without_verification_has_the_payloads_it_had_before_and_no_table(load_request: LoadRequest) -> None:
    shown, plain = Member(load_request).run(2), Member(load_request, verifies=False).run(2, work=None)
    unasked = Member(load_request, verifies=False).run(2)
    whole = Member(load_request, verifies=False, micro_batch_size=PIECE).run(2, work=None)
    assert [reply.payload for reply in shown.replies] == [reply.payload for reply in whole.replies]
    assert [reply.work for reply in plain.replies + unasked.replies] == [None] * 4
    assert [reply.payload for reply in plain.replies] == [reply.payload for reply in unasked.replies]
    assert plain.engine._get_loaded().copies is None


def test_v1_memory_that_runs_out_makes_micro_batches_smaller_and_not_pieces(
    load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psyche.modeling.trainer import batch

    calm, compute_losses, sizes = Member(load_request, micro_batch_size=1), batch.compute_losses, list[int]()
    calm.run(1, samples=16, tokens=draw_tokens(0, 16), work=make_work(2))

    def fail(model: torch.nn.Module, rows: torch.Tensor, *others: object) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(rows))
        if len(rows) > 1 and len(sizes) > 3:
            raise torch.OutOfMemoryError
        return compute_losses(model, rows, *others)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(batch, "compute_losses", fail)
    short = Member(load_request, micro_batch_size=2)
    short.run(1, samples=16, tokens=draw_tokens(0, 16), work=make_work(2))
    assert sizes[:5] == [2, 2, 2, 2, 1]
    assert short.replies[0].work == calm.replies[0].work


def make_work(piece_samples: int) -> WorkRequest:
    return WorkRequest(seed=get_seed(0), piece_samples=piece_samples)


def test_several_devices_are_refused_in_a_run_that_verifies(load_request: LoadRequest) -> None:
    with pytest.raises(ConfigError, match="2 devices: in a run that verifies, a trainer sketches whole gradients"):
        Member(load_request, data_parallelism=2)


# --- roots


def test_v5_each_result_names_the_root_that_the_one_before_it_left(old_hand: Member) -> None:
    works = [reply.work for reply in old_hand.replies]
    roots = [(work.momentum_before, work.momentum_after) for work in works if work is not None]
    assert roots[0][0] == ZERO32
    assert [before for before, _ in roots[1:]] == [after for _, after in roots[:-1]]
    assert len({after for _, after in roots}) == len(roots)


def test_v5_a_trainer_that_resumes_names_the_root_of_its_last_result(old_hand: Member, tmp_path: object) -> None:
    old_hand.engine.snapshot(
        SnapshotRequest(kind="resume", path=f"{tmp_path}/s", epoch=0, step=3, data_index=0, chain=ZERO32, digest=ZERO32)
    )
    resumed = Member(old_hand.load, path=f"{tmp_path}/s", is_snapshot=True)
    work = resumed.run(1).replies[0].work
    last = old_hand.replies[-1].work
    assert work is not None
    assert last is not None
    assert work.momentum_before == last.momentum_after


def test_v5_chunks_of_both_momenta_are_opened_until_the_next_round_trains(member: Member) -> None:
    member.run(3)
    reply, loaded = member.replies[2], member.engine._get_loaded()
    plan, seed = loaded.replica.plan, get_seed(3)
    raw = member.engine.open(OpenRequest(height=2, seed=seed, opened_chunks=OPENED)).opening
    places = draw_chunks(plan, seed, OPENED)
    size = get_opening_bytes(plan, places)
    assert reply.work is not None
    before = decode_opening(plan, places, reply.work.momentum_before, raw[:size])
    after = decode_opening(plan, places, reply.work.momentum_after, raw[size:])
    assert [one.place for one in before] == [one.place for one in after] == places
    assert before != after
    member.run(1)
    with pytest.raises(TrainerError, match="the momentum of round 2 is no longer here"):
        member.engine.open(OpenRequest(height=2, seed=seed, opened_chunks=OPENED))


# --- audits


@pytest.mark.parametrize("height", [4, 5, 6, 7, 8])
def test_v8_any_of_the_last_four_rounds_is_computed_again(old_hand: Member, height: int) -> None:
    assert max(old_hand.compute_distances(height, old_hand.audit(height, old_hand.make_target(height)))) < 2e-5


def test_v8_audits_change_no_bit_of_a_trainer(load_request: LoadRequest) -> None:
    busy, calm = Member(load_request), Member(load_request)
    for height in range(7 if IS_WHOLE else 3):
        busy.run(1)
        calm.run(1)
        before = busy.read_all()
        at = max(0, height - 2)
        pieces = tuple(range(PIECES)) if IS_WHOLE else (0, PIECES - 1)
        reply = busy.audit(at, *(busy.make_target(one, pieces=pieces) for one in (at, max(0, height - 3))))
        assert len(reply.targets) == 2
        assert busy.read_all() == before
    assert (busy.parts, busy.replies[-1].payload) == (calm.parts, calm.replies[-1].payload)
    assert busy.read_all() == calm.read_all()


@pytest.mark.parametrize("samples", [1, 3])
def test_v1_a_batch_of_fewer_than_eight_samples_has_a_piece_for_each_and_is_audited(
    member: Member, samples: int
) -> None:
    tokens = draw_tokens(5, samples)
    work = WorkRequest(seed=get_seed(0), piece_samples=1, calibration=tokens[: 4 * LENGTH])
    (reply,) = member.run(1, tokens=tokens, samples=samples, work=work).replies
    assert reply.work is not None
    table = decode_table(reply.work.table, samples, is_calibrated=True)
    pieces = tuple(range(samples))
    target = member.make_target(0, tokens=tokens, samples=samples, piece_samples=1, pieces=pieces)
    (found,) = member.audit(0, target).targets
    claims = [compute_difference(table, piece) for piece in pieces]
    assert max(compute_distance(claim, one.values[0]) for claim, one in zip(claims, found.pieces, strict=True)) < 1e-5


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_v8_an_audit_that_is_cancelled_keeps_what_is_done_and_puts_everything_back(old_hand: Member, stop: int) -> None:
    before = old_hand.read_all()
    left = [stop]

    def beat() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Cancelled

    reply = old_hand.audit(8, old_hand.make_target(8), old_hand.make_target(7), beat=beat)
    assert reply.cancelled
    assert len(reply.targets) == 1
    assert len(reply.targets[0].pieces) == -(-stop // 2), "it is looked at before each micro-batch and at the end"
    assert old_hand.read_all() == before


def test_weights_of_which_there_is_no_copy_are_refused_by_name(old_hand: Member) -> None:
    reply = old_hand.audit(3, old_hand.make_target(3))
    assert (reply.targets, reply.refused) == (
        (),
        "the weights of round 3 are not here: a copy is made every four rounds",
    )
    with pytest.raises(TrainerError, match="the sets do not lead to the weights of round 6"):
        old_hand.engine.audit(
            AuditRequest(height=6, seeds=(), targets=(old_hand.make_target(6),), applies=tuple(old_hand.sets[6:7])),
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": b"1234"}, "batch: 4 bytes"),
        ({"pieces": (99,)}, "no such piece"),
        ({"piece_samples": 12}, "piece_samples: 12 of a batch of 12"),
        ({"last_body": b"none"}, "payload: 4 bytes"),
        ({"payload": b"none"}, "payload: 4 bytes"),
    ],
)
def test_a_target_that_cannot_be_computed_is_refused_alone(
    old_hand: Member, changes: dict[str, object], reason: str
) -> None:
    before = old_hand.read_all()
    reply = old_hand.audit(8, old_hand.make_target(8, **changes), old_hand.make_target(8))
    assert reason in reply.targets[0].refused
    assert max(old_hand.compute_distances(8, reply, number=1)) < 2e-5
    assert old_hand.read_all() == before


@pytest.mark.parametrize(
    "cheat",
    [
        {"tokens": draw_tokens(77)},
        {"last_body": b""},
        {"tokens": draw_tokens(8)[4 * LENGTH :] + draw_tokens(8)[: 4 * LENGTH]},
    ],
    ids=["other data", "no look-ahead", "other samples"],
)
def test_v10_what_is_not_the_gradient_of_the_samples_is_far_away(old_hand: Member, cheat: dict[str, object]) -> None:
    assert min(old_hand.compute_distances(8, old_hand.audit(8, old_hand.make_target(8, **cheat)))) > 0.04


def test_v10_the_targets_arithmetic_is_emulated(old_hand: Member) -> None:
    bf16 = old_hand.compute_distances(8, old_hand.audit(8, old_hand.make_target(8, numeric_class=1)))
    assert all(1e-4 < distance < 0.1 for distance in bf16)


# --- links


def audit_link(
    member: Member, height: int, link: LinkRequest, payload: bytes | None = None
) -> tuple[int, float, float]:
    body = member.replies[height].payload if payload is None else payload
    (found,) = member.audit(height, member.make_target(height, payload=body, link=link)).targets
    return found.link_reason, found.link_distance, found.agreement


@pytest.mark.parametrize("height", few([0, 1, 4], 2))
def test_v11_an_honest_round_is_linked_to_its_payload(member: Member, height: int) -> None:
    member.run(height + 1)
    reason, distance, agreement = audit_link(member, height, member.make_link(height))
    assert (reason, distance < 1e-3) == (AuditReason.NONE, True)
    assert agreement > 0.8


def test_v11_what_was_not_made_of_the_momentum_is_found(old_hand: Member) -> None:
    honest = old_hand.make_link(8)
    raw = honest.opening
    forged = msgspec.structs.replace(honest, opening=raw[:-1] + bytes([raw[-1] ^ 1]))
    assert audit_link(old_hand, 8, forged)[0] == AuditReason.PATHS
    assert audit_link(old_hand, 8, honest, old_hand.replies[0].payload)[0] == AuditReason.SELECTION
    swapped = msgspec.structs.replace(honest, taken_out=())
    assert audit_link(old_hand, 8, swapped)[1] > 0.12, "values in flight were not taken out"


def test_v11_a_momentum_that_grew_by_another_gradient_is_found(member: Member) -> None:
    member.run(1)
    other = member.make_request(1, tokens=draw_tokens(77))
    member.apply()
    member.replies.append(member.engine.train(other))
    reason, distance, _ = audit_link(member, 1, member.make_link(1))
    assert (reason, distance > 0.12) == (AuditReason.NONE, True)


def test_a_trainer_of_a_run_that_does_not_verify_neither_opens_nor_audits(load_request: LoadRequest) -> None:
    member = Member(load_request, verifies=False).run(1, work=None)
    with pytest.raises(TrainerError, match="load it for a run that verifies"):
        member.engine.open(OpenRequest(height=0, seed=get_seed(1), opened_chunks=OPENED))
    with pytest.raises(TrainerError, match="load it for a run that verifies"):
        member.audit(0, member.make_target(0))
