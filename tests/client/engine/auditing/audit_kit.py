"""Verified runs for tests of verifiers and jurors."""

from collections.abc import Callable
from typing import Any

from kits.bench import Bench, build_bench
from kits.runs import Run
from kits.verification.work import answer_audit

from psyche.client.engine import actions as act
from psyche.core.committee.elections import get_verifiers
from psyche.core.encoding.header import ResultHeader, ResultKind, decode_header
from psyche.core.state.gossip import Result
from psyche.core.state.state import AuditReason, ChallengeState

SETTINGS: dict[str, Any] = {
    "verification_percent": 30, "convict": True, "global_batch_size_start": 48, "global_batch_size_end": 48,
    "rounds_per_epoch": 30,
}  # fmt: skip


def build_verified(members: int = 6, own: int = 0, **changes: Any) -> Bench:
    manual, shows_momenta = changes.pop("manual", ()), changes.pop("shows_momenta", False)
    optimizer = changes.pop("optimizer", None)
    bench = build_bench(members, own, manual, **(SETTINGS | changes))
    bench.state.model.optimizer = optimizer or bench.state.model.optimizer
    bench.shows_momenta = shows_momenta
    return bench.start()


def build_verifier(members: int = 6, least_height: int = 1, **changes: Any) -> Bench:
    """A run in a round in which the engine under test has audits; nothing of the round has happened yet."""
    manual, claims = changes.pop("manual", ()), changes.pop("claims", {})
    for own in range(members):
        bench = build_verified(members, own, manual=(act.Audit, *manual), **changes)
        bench.claims = dict(claims)
        for _ in range(12):
            if bench.state.current.height >= least_height and bench.index in bench.get_record().tasks:
                return bench
            run_honest_round(bench)
    raise AssertionError("no member was elected")


def run_honest_round(bench: Bench) -> Bench:
    """A round without faults, in which the engine under test does its audits too."""
    bench.play()
    answer(bench, answer_audit)
    bench.close()
    return bench


def run_to_audits(bench: Bench) -> Bench:
    """Play rounds until the engine under test has audits."""
    for _ in range(12):
        if bench.index in bench.get_record().tasks:
            return bench
        run_honest_round(bench)
    raise AssertionError("it was not elected")


def answer(bench: Bench, answer_audit: Callable[[act.Audit], act.Audited]) -> None:
    """Answer what it asks of its trainer, until it asks for no more."""
    for _ in range(99):
        running = bench.engine.audits.desk.running
        if running is None:
            return
        bench.feed(answer_audit(running))
    raise AssertionError("it asks for ever")


def get_reports(bench: Bench) -> list[tuple[ResultHeader, act.Announce]]:
    """The reports that it has announced."""
    found: list[tuple[ResultHeader, act.Announce]] = []
    for action, message in zip(bench.get_all(act.Announce), bench.get_announced(), strict=True):
        assert isinstance(message.body, Result)
        header = decode_header(message.body.header)
        if header.result_kind is ResultKind.AUDIT:
            found.append((header, action))
    return found


def accuse(bench: Bench, target: int, reason: AuditReason = AuditReason.GRADIENT, piece: int = 0) -> int:
    """Another verifier of the running round accuses a trainer of the one before; return the audited height."""
    height = bench.state.current.height - 1
    verifier = next(v for v in get_verifiers(bench.state.current, bench.state.config) if v not in (target, bench.index))
    commitment = bench.get_known(target, height)[0].commitment
    run: Run = bench.run
    run.report(verifier, target, reason, piece=piece, commitment=commitment)
    assert any(c.state is ChallengeState.OPEN for c in bench.state.challenges)
    return height
