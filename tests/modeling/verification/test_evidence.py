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
from kits.tier import IS_WHOLE
from typer.testing import CliRunner, Result

from psyche.cli.app import app
from psyche.client.engine.actions import Apply
from psyche.client.judging import compute_values, judge, read_case
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.committee.verdicts import Verdict
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.evidence import Evidence, encode_evidence
from psyche.core.encoding.header import ResultHeader, encode_header
from psyche.core.state.enums import Lookahead
from psyche.core.state.state import ZERO32, LrSchedule, ScheduleKind
from psyche.errors import PsycheError, TrainerError, WireError
from psyche.wire.crypto import (
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


@dataclass
class Scene:
    """A member that worked for some rounds, what others know of it, and its evidence of the last one."""

    member: Member
    evidence: Evidence
    snapshot: Path
    replay: Path

    @property
    def load(self) -> LoadRequest:
        return msgspec.structs.replace(self.member.load, path=str(self.snapshot), is_snapshot=True)

    def judge(self, raw: bytes) -> Verdict:
        case = read_case(raw)
        trainer: Any = InThisProcess(self.member)

        async def compute() -> tuple[float, ...]:
            return await compute_values(trainer, case, self.load, ReplayStore(self.replay, 0).read)

        return judge(case, trio.run(compute)).verdict


def play(member: Member, bench: Bench, folder: Path, tokens: bytes) -> Scene:
    """Train up to `HEIGHT` as the record's member 0; in that round on other tokens than it says."""
    snapshot = folder / "snapshot"
    chain, store = ZERO32, ReplayStore(folder / "replay", 1 << 30)
    root = member.engine.snapshot(
        SnapshotRequest(kind="resume", path=str(snapshot), epoch=0, step=0, data_index=0, chain=ZERO32, digest=ZERO32)
    ).weight_root
    chain = bench.state.certified.digest = compute_state_digest(ZERO32, root)
    headers: list[ResultHeader] = []
    for height in range(HEIGHT + 1):
        member.apply()
        done = Apply(
            0, height, step=height + 1, lr=RATE, lr_bits=get_lr_bits(RATE), run_update=height >= 2, full_digest=True,
            random_seed=height, applied=(), blobs=(),
        )  # fmt: skip
        store.write(done, member.sets[-1].payloads)
        chain = compute_chain_digest(chain, 0, height, done.step, done.lr_bits, ())
        seed = next(one.seed for one in bench.state.rounds if one.height == height)
        work = WorkRequest(seed=seed, piece_samples=PIECE, calibration=b"")
        honest = draw_tokens(height)
        trained = tokens if height == HEIGHT else honest
        member.replies.append(member.engine.train(member.make_request(height, work=work, tokens=trained)))
        base = compute_state_digest(chain, member.parts[-1])
        headers.append(make_header(bench, member, height, honest, base, headers))
    signed = bench.sign(0, build_result(headers[-1]), HEIGHT)
    work_shown = member.replies[-1].work
    assert work_shown is not None
    last = encode_header(headers[-2]) + member.replies[-2].payload
    evidence = Evidence(
        5, encode_header(headers[-1]), signed.signature, work_shown.table, last, draw_tokens(HEIGHT),
        encode_state(bench.state), (0.5,) * 64,
    )  # fmt: skip
    return Scene(member, evidence, snapshot, folder / "replay")


def make_header(
    bench: Bench, member: Member, height: int, tokens: bytes, base: bytes, before: list[ResultHeader]
) -> ResultHeader:
    reply = member.replies[height]
    assert reply.work is not None
    previous = compute_commitment(encode_header(before[-1])) if before else ZERO32
    return bench.build_header(
        0, height, base_digest=base, data_hash=compute_data_hash(tokens), prev_commitment=previous,
        body_hash=blob_id_of(reply.payload), body_len=len(reply.payload), work_root=blob_id_of(reply.work.table),
        piece_samples=PIECE, inner_steps=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = build_bench(1, global_batch_size_start=SAMPLES, global_batch_size_end=SAMPLES)
    model = bench.state.model
    model.max_seq_len, model.optimizer.lookahead = LENGTH, Lookahead.OWN
    model.lr_schedule = LrSchedule(ScheduleKind.CONSTANT, base_lr=RATE)
    bench.start()
    for _ in range(HEIGHT):
        bench.run_round()
    return bench


@pytest.fixture(scope="module")
def scene(shared_load_request: LoadRequest, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Of an honest member. Nobody may change it; to judge by its trainer loads the epoch's first weights."""
    bench.state.model.optimizer = replace(shared_load_request.model.optimizer, lookahead=Lookahead.OWN)
    return play(Member(shared_load_request), bench, tmp_path_factory.mktemp("honest"), draw_tokens(HEIGHT))


@pytest.fixture(scope="module")
def lazy_scene(scene: Scene, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return play(Member(scene.member.load), bench, tmp_path_factory.mktemp("lazy"), GUILTY_TOKENS)


def test_v13_who_worked_is_innocent_and_who_trained_other_data_is_guilty(scene: Scene, lazy_scene: Scene) -> None:
    assert scene.judge(encode_evidence(scene.evidence)) is Verdict.OK
    assert lazy_scene.judge(encode_evidence(lazy_scene.evidence)) is Verdict.FAIL


def forge_last(scene: Scene) -> Evidence:
    return replace(scene.evidence, last_result=scene.evidence.last_result[:-1] + b"\xff")


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda one: replace(one.evidence, tokens=GUILTY_TOKENS), "tokens: they are not those of the header"),
        (lambda one: replace(one.evidence, table=one.evidence.table[:-1] + b"\1"), "table: it is not the one"),
        (lambda one: replace(one.evidence, signature=bytes(64)), "signature: member 0 did not sign"),
        (lambda one: replace(one.evidence, last_result=b""), "last result: it is not the one that the header names"),
        (forge_last, "last result: its payload is not the one of its header"),
        (lambda one: replace(one.evidence, piece=99), "piece 99: the member has 12"),
    ],
)
def test_v13_what_the_member_did_not_sign_is_no_evidence(scene: Scene, forge: Any, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_case(encode_evidence(forge(scene)))


def test_v13_other_weights_and_missing_sets_decide_nothing(scene: Scene, tmp_path: Path) -> None:
    raw = encode_evidence(scene.evidence)
    scene = replace(scene, replay=Path(shutil.copytree(scene.replay, tmp_path / "replay")))
    sets = sorted(scene.replay.rglob("*.set"))
    sets[2].rename(sets[2].with_suffix(".gone"))
    with pytest.raises(TrainerError, match="the replay store lacks the set of round 2"):
        scene.judge(raw)
    sets[2].write_bytes(sets[0].read_bytes())
    with pytest.raises(TrainerError, match="the replayed sets give the weights"):
        scene.judge(raw)


def verify(scene: Scene, file: Path, replay: str = "") -> Result:
    places = ["--weights", str(scene.snapshot), "--replay", replay or str(scene.replay)]
    return CliRunner().invoke(app, ["verify", str(file), *places])


@pytest.mark.whole
def test_v13_the_command_says_what_it_finds(scene: Scene, lazy_scene: Scene, tmp_path: Path) -> None:
    for one, code, words in ((scene, 0, "innocent"), (lazy_scene, 3, "guilty")):
        file = tmp_path / f"{words}.evidence"
        file.write_bytes(encode_evidence(one.evidence))
        found = verify(one, file)
        assert (found.exit_code, "member 0, round 3 of epoch 0, piece 5" in found.stdout) == (code, True)
        assert found.stdout.rstrip().endswith(f": {words}")
    assert verify(lazy_scene, file, "nowhere").stdout.startswith("cannot be said: ")


def test_v13_the_command_says_why_it_cannot_say_anything(scene: Scene, tmp_path: Path) -> None:
    cut = tmp_path / "cut.evidence"
    cut.write_bytes(encode_evidence(scene.evidence)[:-1])
    for file, reason in ((tmp_path / "none", "No such file"), (scene.replay, "directory"), (cut, "cut or damaged")):
        undecided = verify(scene, file)
        assert (undecided.exit_code, undecided.stdout.startswith("cannot be said: ")) == (4, True)
        assert reason in undecided.stdout
        assert "Traceback" not in undecided.output


def test_v13_no_damaged_file_shows_anything_but_a_reason(scene: Scene) -> None:
    """Bits flipped and bytes cut; and the same sealed again, which only a liar does."""
    good, draw = scene.evidence, Random(7)
    raw, refused = encode_evidence(good), 0
    for _ in range(10_000 if IS_WHOLE else 300):
        changed = bytearray(raw if draw.random() < 0.7 else raw[: draw.randrange(1, len(raw))])
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        with pytest.raises(WireError, match="the file is cut or damaged"):
            read_case(bytes(changed))
        sealed = bytes(changed[:-32]) + hashlib.sha256(changed[:-32]).digest()
        try:
            assert encode_header(read_case(sealed).header) == good.header, "nothing that is signed can be changed"
        except PsycheError:
            refused += 1
    assert refused > 0
