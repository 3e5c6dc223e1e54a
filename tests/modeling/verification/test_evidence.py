"""V13: a file shows anybody whether a member worked, and no damaged one shows anything."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from auditing_kit import LENGTH, PIECE, RATE, SAMPLES, Member, draw_tokens
from kits.bench import Bench, build_bench
from kits.results import build_result
from kits.tier import IS_WHOLE, few
from typer.testing import CliRunner, Result

from psyche.cli.app import app
from psyche.client.engine.actions import Apply
from psyche.client.judging import Judgement, judge, read_case
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_verifiers
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.committee.verdicts import MAX_TOLERANCE
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.evidence import NEEDED, Evidence, SignedResult, encode_evidence
from psyche.core.encoding.header import ResultHeader, ResultKind, decode_header, encode_header
from psyche.core.encoding.work import AuditRow, WorkRow, encode_report, encode_table
from psyche.core.state.enums import AuditReason, Lookahead
from psyche.core.state.state import ZERO32, LrSchedule, Optimizer, OptimizerKind, ScheduleKind
from psyche.errors import PsycheError, TrainerError, WireError
from psyche.telemetry.challenges import ACCUSATIONS
from psyche.testing.builders import build_hash
from psyche.wire.crypto import (
    blake3_hash,
    blob_id_of,
    compute_chain_digest,
    compute_commitment,
    compute_data_hash,
    compute_state_digest,
)
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    AuditReply,
    AuditRequest,
    LoadReply,
    LoadRequest,
    OpenRequest,
    SnapshotRequest,
    WorkRequest,
)

HEIGHT = 3
GUILTY_TOKENS = draw_tokens(99)


class InThisProcess:
    """A trainer without a process of its own."""

    def __init__(self, member: Member) -> None:
        self._engine = member.engine

    async def load(self, request: LoadRequest) -> LoadReply:
        return self._engine.load(request)

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        return self._engine.apply(request)

    async def audit(self, request: AuditRequest) -> AuditReply:
        return self._engine.audit(request)


async def find(scene: "Scene", raw: bytes) -> Judgement:
    trainer: Any = InThisProcess(scene.member)
    return await judge(trainer, read_case(raw), scene.load, ReplayStore(scene.replay, 0).read)


@dataclass
class Scene:
    """A member that worked for some rounds, what others know of it, and the folders by which it is judged."""

    member: Member
    bench: Bench
    record: bytes  # as the round after its last one began
    headers: list[ResultHeader]
    parts: dict[str, Any]
    snapshot: Path
    replay: Path

    @property
    def load(self) -> LoadRequest:
        return msgspec.structs.replace(self.member.load, path=str(self.snapshot), is_snapshot=True)

    def accuse(self, reason: AuditReason = AuditReason.GRADIENT, **changes: Any) -> Evidence:
        """Evidence of the last round; `changes` are of the header that the member signs."""
        header = replace(self.headers[-1], **changes)
        signed = self.bench.sign(0, build_result(header), HEIGHT)
        last = encode_header(self.headers[-2]) + self.member.replies[-2].payload
        parts = {name: part for name, part in self.parts.items() if name in NEEDED[reason]}
        if "payload" in parts and "body_hash" in changes:
            parts["payload"] = self.member.replies[-2].payload
        results = (SignedResult(encode_header(header), signed.signature),)
        return Evidence(reason, 5, 0.001, 0.0, self.record, results, last, **parts)

    def judge(self, evidence: Evidence) -> bool | None:
        return trio.run(find, self, encode_evidence(evidence)).guilty


def play(member: Member, run: "TwoBenches", folder: Path, tokens: bytes, lr: float = RATE) -> Scene:
    """Train up to `HEIGHT` as the record's member 0; in that round on these tokens, and at this rate."""
    snapshot, bench = folder / "snapshot", run.now
    store = ReplayStore(folder / "replay", 1 << 30)
    chain = run.begin(member, snapshot)
    headers: list[ResultHeader] = []
    for height in range(HEIGHT + 1):
        member.apply()
        applied = ((0, compute_commitment(encode_header(headers[height - 2]))),) if height >= 2 else ()
        done = make_set(height, applied)
        store.write(done, member.sets[-1].payloads)
        chain = compute_chain_digest(chain, 0, height, done.step, done.lr_bits, applied)
        work = WorkRequest(seed=bench.get_round(height).seed, piece_samples=PIECE, calibration=b"")
        honest, is_last = draw_tokens(height), height == HEIGHT
        asked = member.make_request(height, work=work, tokens=tokens if is_last else honest, lr=lr if is_last else RATE)
        member.replies.append(member.engine.train(asked))
        base = compute_state_digest(chain, member.parts[-1])
        headers.append(make_header(bench, member, height, honest, base, headers))
    shown = member.replies[-1].work
    assert shown is not None
    opened = OpenRequest(
        height=HEIGHT, seed=run.later.get_round(HEIGHT + 1).seed, opened_chunks=bench.state.config.opened_chunks
    )
    parts = {
        "table": shown.table, "tokens": draw_tokens(HEIGHT), "payload": member.replies[-1].payload,
        "opening": member.engine.open(opened).opening, "values": (0.5,) * 64,
    }  # fmt: skip
    return Scene(member, bench, encode_state(run.later.state), headers, parts, snapshot, folder / "replay")


def make_set(height: int, applied: tuple[tuple[int, bytes], ...] = ()) -> Apply:
    return Apply(
        0, height, step=height + 1, lr=RATE, lr_bits=get_lr_bits(RATE), run_update=height >= 2, full_digest=True,
        random_seed=height, applied=applied, blobs=(),
    )  # fmt: skip


def make_header(
    bench: Bench, member: Member, height: int, tokens: bytes, base: bytes, before: list[ResultHeader]
) -> ResultHeader:
    reply = member.replies[height]
    assert reply.work is not None
    previous = compute_commitment(encode_header(before[-1])) if before else ZERO32
    return bench.build_header(
        0, height, base_digest=base, data_hash=compute_data_hash(tokens), prev_commitment=previous,
        body_hash=blob_id_of(reply.payload), body_len=len(reply.payload), work_root=blob_id_of(reply.work.table),
        piece_samples=PIECE, inner_steps=0, momentum_before=reply.work.momentum_before,
        momentum_after=reply.work.momentum_after, train_count=height + 1, plan_hash=blake3_hash(member.plan),
    )  # fmt: skip


@dataclass
class TwoBenches:
    """The record in the last round of a scene, and in the one after it."""

    now: Bench
    later: Bench

    def begin(self, member: Member, snapshot: Path) -> bytes:
        """Certify this member's weights; return their digest, with which the chain begins."""
        asked = SnapshotRequest(
            kind="resume", path=str(snapshot), epoch=0, step=0, data_index=0, chain=ZERO32, digest=ZERO32
        )
        digest = compute_state_digest(ZERO32, member.engine.snapshot(asked).weight_root)
        self.now.state.certified.digest = self.later.state.certified.digest = digest
        return digest


def build_benches(members: int, rounds: int, samples: int, optimizer: Optimizer, **changes: Any) -> TwoBenches:
    built: list[Bench] = []
    for extra in range(2):
        bench = build_bench(members, global_batch_size_start=samples, global_batch_size_end=samples, **changes)
        model = bench.state.model
        model.max_seq_len, model.optimizer = LENGTH, replace(optimizer, lookahead=Lookahead.OWN)
        model.lr_schedule = LrSchedule(ScheduleKind.CONSTANT, base_lr=RATE)
        bench.start()
        for _ in range(rounds + extra):
            bench.run_round()
        built.append(bench)
    assert built[0].get_round(rounds).seed == built[1].get_round(rounds).seed
    return TwoBenches(*built)


@pytest.fixture(scope="module")
def run(shared_load_request: LoadRequest) -> TwoBenches:
    return build_benches(1, HEIGHT, SAMPLES, shared_load_request.model.optimizer)


@pytest.fixture(scope="module")
def scene(shared_load_request: LoadRequest, run: TwoBenches, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Of an honest member. Nobody may change it; to judge by its trainer loads the epoch's first weights."""
    return play(Member(shared_load_request), run, tmp_path_factory.mktemp("honest"), draw_tokens(HEIGHT))


@pytest.fixture(scope="module")
def lazy_scene(scene: Scene, run: TwoBenches, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return play(Member(scene.member.load), run, tmp_path_factory.mktemp("lazy"), GUILTY_TOKENS)


@pytest.fixture(scope="module")
def poison_scene(scene: Scene, run: TwoBenches, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Of a member whose table is honest, but whose momentum goes the other way."""
    return play(Member(scene.member.load), run, tmp_path_factory.mktemp("poison"), draw_tokens(HEIGHT), -RATE)


FIRST = [AuditReason.GRADIENT, AuditReason.LINK]
COMPUTED = [*FIRST, *(reason for reason in NEEDED if NEEDED[reason] and reason not in FIRST)]


@pytest.mark.parametrize("reason", [*few(COMPUTED, 2), AuditReason.MOMENTUM])
def test_v13_who_worked_is_innocent_whatever_it_is_accused_of(scene: Scene, reason: AuditReason) -> None:
    assert scene.judge(scene.accuse(reason)) is False


@pytest.mark.parametrize("reason", few(COMPUTED, 2))
def test_v13_who_trained_other_data_is_guilty(lazy_scene: Scene, reason: AuditReason) -> None:
    assert lazy_scene.judge(lazy_scene.accuse(reason)) is True


def test_v13_who_sends_the_opposite_beside_an_honest_table_is_shown_by_what_it_opened(poison_scene: Scene) -> None:
    assert poison_scene.judge(poison_scene.accuse()) is False
    found = trio.run(find, poison_scene, encode_evidence(poison_scene.accuse(AuditReason.LINK)))
    assert found.guilty
    assert found.found.startswith("its momentum grew by something that differs by 2 from its gradient; up to 0.001 is")


def test_v13_a_payload_or_a_momentum_of_another_round_is_shown_by_the_headers_and_what_was_opened(scene: Scene) -> None:
    old = blob_id_of(scene.member.replies[-2].payload)
    assert scene.judge(scene.accuse(AuditReason.SELECTION, body_hash=old)) is True
    assert scene.judge(scene.accuse(AuditReason.MOMENTUM, momentum_before=build_hash("x"))) is True
    assert scene.judge(scene.accuse(AuditReason.MOMENTUM, train_count=9)) is None


@pytest.mark.parametrize("reason", [AuditReason.WITHHELD, AuditReason.PATHS])
def test_v13_what_nobody_signs_shows_nothing_afterwards(scene: Scene, reason: AuditReason) -> None:
    found = trio.run(find, scene, encode_evidence(scene.accuse(reason)))
    assert (found.guilty, "only its jury has seen it" in found.found) == (None, True)


@pytest.mark.parametrize("reason", [AuditReason.SIGNS, AuditReason.MOMENTUM])
def test_v13_whom_somebody_accuses_of_a_whole_round_of_local_steps_is_innocent(
    scene: Scene, reason: AuditReason
) -> None:
    case = read_case(encode_evidence(scene.accuse(reason)))
    case.state.model.optimizer = Optimizer(OptimizerKind.LOCAL_STEPS)
    nothing: Any = None
    found = trio.run(judge, nothing, case, scene.load, nothing)
    assert (found.guilty, "nobody looks at whole rounds of local steps" in found.found) == (False, True)


def test_v13_a_member_whose_arithmetic_is_off_is_judged_by_its_own_tolerance(lazy_scene: Scene) -> None:
    """V6."""
    case = read_case(encode_evidence(replace(lazy_scene.accuse(), tolerance=0.002, calibration=9.0)))
    assert case.tolerance == MAX_TOLERANCE


def name_nothing(scene: Scene, height: int = HEIGHT - 1, **changes: Any) -> Evidence:
    """Evidence of a round whose header names what nobody has seen, with the result of the round before."""
    header = replace(scene.headers[height], **changes)
    signature = scene.bench.sign(0, build_result(header), height).signature
    accused = scene.accuse(prev_commitment=build_hash("garbage"))
    return replace(accused, last_result=encode_header(header) + signature)


def test_v13_who_names_nothing_of_the_round_before_is_judged_without_a_look_ahead(scene: Scene) -> None:
    """As its jury judges it: it has sent a result in that round, and must name it (V4)."""
    assert scene.judge(name_nothing(scene)) is True


def forge_last(scene: Scene) -> Evidence:
    good = scene.accuse()
    return replace(good, last_result=good.last_result[:-1] + b"\xff")


def forge_signature(scene: Scene) -> Evidence:
    good = scene.accuse()
    return replace(good, results=(replace(good.results[0], signature=bytes(64)),))


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda one: replace(one.accuse(), tokens=GUILTY_TOKENS), "tokens: they are not those of the header"),
        (lambda one: replace(one.accuse(), table=one.parts["table"][:-1] + b"\1"), "table: it is not the one"),
        (lambda one: replace(one.accuse(AuditReason.LINK), payload=b"x"), "payload: it is not the one"),
        (forge_signature, "signature: member 0 did not sign"),
        (lambda one: replace(one.accuse(), last_result=b""), "last result: it is not the one that the header names"),
        (lambda one: replace(one.accuse(), last_result=bytes(448)), "last result: it is not the one that the header"),
        (lambda one: name_nothing(one, HEIGHT), "last result: it is not the one that the header names"),
        (lambda one: name_nothing(one, batch_end=3), "member 0 does not have this batch in round 2"),
        (
            lambda one: replace(name_nothing(one), last_result=one.accuse().last_result[:448] + bytes(64)),
            "did not sign",
        ),
        (
            lambda one: one.accuse(prev_commitment=build_hash("garbage")),
            "last result: it is not the one that the header",
        ),
        (forge_last, "last result: its payload is not the one of its header"),
        (lambda one: replace(one.accuse(), piece=99), "piece 99: the member has 12"),
        (lambda one: replace(one.accuse(), tolerance=0.0005), "tolerance: 0.0005, but that of the run is 0.001"),
        (lambda one: one.accuse(height=0), "record: it does not have round 0"),
        (lambda one: one.accuse(epoch=1), "record: it is of another run or epoch"),
        (lambda one: one.accuse(step=9), "header: round 3 has step 4, not 9"),
        (lambda one: one.accuse(batch_end=3), "header: member 0 does not have this batch in round 3"),
        (lambda one: one.accuse(result_kind=ResultKind.AUDIT), "left, .* are needed"),
    ],
)
def test_v13_what_the_member_did_not_sign_is_no_evidence(scene: Scene, forge: Any, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_case(encode_evidence(forge(scene)))


def test_v13_an_opening_that_is_not_under_the_signed_roots_accuses_nobody(scene: Scene) -> None:
    good = scene.accuse(AuditReason.LINK)
    for opening in (good.opening[:-1], good.opening[:-1] + bytes([good.opening[-1] ^ 1])):
        with pytest.raises(WireError, match="opening: "):
            scene.judge(replace(good, opening=opening))
    with pytest.raises(WireError, match="it is not known what the momentum was before"):
        scene.judge(scene.accuse(AuditReason.LINK, train_count=9))
    with pytest.raises(WireError, match="its payload is missing"):
        scene.judge(replace(scene.accuse(), last_result=good.last_result[:448]))


def test_v13_other_weights_and_missing_sets_decide_nothing(scene: Scene, tmp_path: Path) -> None:
    good = scene.accuse()
    with pytest.raises(TrainerError, match="another plan of chunks"):
        scene.judge(scene.accuse(plan_hash=build_hash("x")))
    scene = replace(scene, replay=Path(shutil.copytree(scene.replay, tmp_path / "replay")))
    sets = sorted(scene.replay.rglob("*.set"))
    sets[2].rename(sets[2].with_suffix(".gone"))
    with pytest.raises(TrainerError, match="the replay store lacks the set of round 2"):
        scene.judge(good)
    sets[2].write_bytes(sets[0].read_bytes())
    with pytest.raises(TrainerError, match="the replayed sets give the weights"):
        scene.judge(good)


@dataclass
class Reported:
    """A verifier's report of one piece that another member trained in the epoch's first round."""

    scene: Scene
    reporter: int
    rows: list[AuditRow]
    resketched: tuple[float, ...]

    def accuse(self, values: tuple[float, ...], **row: Any) -> Evidence:
        bench, scene = self.scene.bench, self.scene
        body = encode_report([self.rows[0]._replace(**row)])
        table = encode_table([WorkRow(1.0, values)])
        header = bench.build_header(
            self.reporter, 1, result_kind=ResultKind.AUDIT, batch_start=0, batch_end=0, data_hash=ZERO32,
            train_count=0, inner_steps=0, piece_samples=0, prev_commitment=ZERO32, body_hash=blob_id_of(body),
            body_len=len(body), work_root=blob_id_of(table),
        )  # fmt: skip
        trained = scene.headers[0]
        results = (
            SignedResult(encode_header(header), bench.sign(self.reporter, build_result(header), 1).signature, body),
            SignedResult(encode_header(trained), bench.sign(trained.member, build_result(trained), 0).signature),
        )
        return Evidence(
            AuditReason.GRADIENT, 0, 0.001, 0.0, scene.record, results, table=table, values=values,
            tokens=scene.parts["tokens"],
        )  # fmt: skip


@pytest.fixture(scope="module")
def reported(shared_load_request: LoadRequest, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("reported")
    optimizer = shared_load_request.model.optimizer
    run = build_benches(3, 1, 3 * SAMPLES, optimizer, verification_percent=40)
    member, bench = Member(shared_load_request), run.now
    chain = run.begin(member, folder / "snapshot")
    member.apply()
    ReplayStore(folder / "replay", 1 << 30).write(done := make_set(0), ())
    reporter = get_verifiers(bench.get_round(1), bench.state.config)[0]
    shares = compute_assignments(bench.get_round(0), bench.state.config)
    trainer = next(one for one in shares if one != reporter)
    samples = shares[trainer][1] - shares[trainer][0] + 1
    seeds, tokens = (bench.get_round(0).seed, bench.get_round(1).seed), draw_tokens(0, samples)
    target = member.make_target(0, tokens=tokens, samples=samples, pieces=(2,))
    asked = AuditRequest(height=0, seeds=seeds, targets=(target,), applies=())
    (found,) = member.engine.audit(asked).targets[0].pieces
    base = compute_state_digest(compute_chain_digest(chain, 0, 0, done.step, done.lr_bits, ()), member.parts[0])
    header = bench.build_header(
        trainer, 0, base_digest=base, data_hash=compute_data_hash(tokens), piece_samples=PIECE, inner_steps=0,
        plan_hash=blake3_hash(member.plan),
    )  # fmt: skip
    scene = Scene(
        member, bench, encode_state(run.later.state), [header], {"tokens": tokens}, folder / "snapshot",
        folder / "replay",
    )  # fmt: skip
    return Reported(scene, reporter, [AuditRow(trainer, 2, False, 0.0, found.values[0])], found.values[1])


def test_v13_a_verifier_is_judged_by_what_it_reports_of_another_members_work(reported: Reported) -> None:
    """V9: its table is under the seed of its own round."""
    assert reported.scene.judge(reported.accuse(reported.resketched)) is False
    assert reported.scene.judge(reported.accuse(reported.rows[0].values)) is True


@pytest.mark.parametrize("row", [{"is_report": True}, {"target": 200}])
def test_v13_a_row_about_another_result_is_no_evidence(reported: Reported, row: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="row 0 of the report is not about the result that follows"):
        read_case(encode_evidence(reported.accuse(reported.resketched, **row)))


def verify(scene: Scene, file: Path, replay: str = "") -> Result:
    places = ["--weights", str(scene.snapshot), "--replay", replay or str(scene.replay)]
    return CliRunner().invoke(app, ["verify", str(file), *places])


@pytest.mark.whole
def test_v13_the_command_says_what_it_finds(scene: Scene, poison_scene: Scene, tmp_path: Path) -> None:
    piece, link = AuditReason.GRADIENT, AuditReason.LINK
    for one, reason, code, words in (
        (scene, piece, 0, "innocent"), (scene, link, 0, "innocent"), (poison_scene, link, 3, "guilty"),
        (scene, AuditReason.WITHHELD, 4, "cannot be said"),
    ):  # fmt: skip
        file = tmp_path / "one.evidence"
        file.write_bytes(encode_evidence(one.accuse(reason)))
        found = verify(one, file)
        where = (
            f"member 0, round 3 of epoch 0{', piece 5' * (reason is piece)}, is accused: {ACCUSATIONS[reason]}. Found: "
        )
        assert (found.exit_code, found.stdout.startswith(where)) == (code, True)
        assert found.stdout.rstrip().endswith(f": {words}")
    file.write_bytes(encode_evidence(scene.accuse()))
    assert verify(scene, file, "nowhere").stdout.startswith("cannot be said: ")


def test_v13_the_command_says_why_it_cannot_say_anything(scene: Scene, tmp_path: Path) -> None:
    cut = tmp_path / "cut.evidence"
    cut.write_bytes(encode_evidence(scene.accuse())[:-1])
    for file, reason in ((tmp_path / "none", "No such file"), (scene.replay, "directory"), (cut, "cut or damaged")):
        undecided = verify(scene, file)
        assert (undecided.exit_code, undecided.stdout.startswith("cannot be said: ")) == (4, True)
        assert reason in undecided.stdout
        assert "Traceback" not in undecided.output


def test_v13_no_damaged_file_shows_anything_but_a_reason(scene: Scene, reported: Reported) -> None:
    """Bits flipped and bytes cut; and the same sealed again, which only a liar does."""
    whole = [scene.accuse(reason) for reason in (AuditReason.GRADIENT, AuditReason.LINK, AuditReason.MOMENTUM)]
    good, draw, refused = [*whole, reported.accuse(reported.resketched)], Random(7), 0
    raws = [encode_evidence(one) for one in good]
    for number in range(10_000 if IS_WHOLE else 300):
        known, raw = good[number % 4], raws[number % 4]
        changed = bytearray(raw if draw.random() < 0.7 else raw[: draw.randrange(1, len(raw))])
        changed[draw.choice((draw.randrange(len(changed)), -1 - draw.randrange(len(changed) // 9 + 1)))] ^= (
            1 << draw.randrange(8)
        )
        with pytest.raises(WireError, match="the file is cut or damaged"):
            read_case(bytes(changed))
        sealed = bytes(changed[:-32]) + hashlib.sha256(changed[:-32]).digest()
        try:
            case = read_case(sealed)
        except PsycheError:
            refused += 1
        else:
            signed = (case.accused, case.trained)
            assert signed == tuple(decode_header(known.results[at].header) for at in (0, -1)), "it cannot be changed"
    assert refused > 0
