"""Scenarios of audits, challenges and juries (V9, V12, V14, V15)."""

from typing import Any

from conformance_stage import Stage, scenario
from kits.runs import Run, accuse, build_run, convene, find_verifiers, go_to_verifiers, is_refused, vote

from psyche.core.committee.elections import get_witnesses
from psyche.core.state.limits import NOBODY
from psyche.core.state.messages import JudgeChallenge, Pause, ReportAudit, Resume
from psyche.core.state.state import AuditReason, ClientState
from psyche.testing.builders import build_hash

GRADIENT, WITHHELD, UNCLEAR = AuditReason.GRADIENT, AuditReason.WITHHELD, AuditReason.UNCLEAR


def build_verified(stage: Stage, members: int = 8, least: int = 1, **config: object) -> Run:
    """A run in a round with verifiers, recorded from there on."""
    settings: dict[str, Any] = {"verification_percent": 30, "convict": True, "rounds_per_epoch": 20}
    settings |= {"witness_nodes": 5} | config
    run = build_run(members, **settings).warm_up()
    go_to_verifiers(run, least)
    return stage.begin(run)


@scenario("V12: a jury convicts, another clears the accused; the second false accusation ejects the accuser")
def juries(stage: Stage) -> None:
    run = build_verified(stage)
    accuse(run)
    vote(run, convene(run), guilty=True)
    strikes: dict[int, int] = {}
    while not any(run.state.clients[member].state is ClientState.EJECTED for member in strikes):
        verifier, _ = accuse(run)
        strikes[verifier] = strikes.get(verifier, 0) + 1
        vote(run, convene(run), guilty=False)
    run.run_round()


@scenario("V12: who withheld is dropped with a strike, one that has left gets the strike alone; votes split and expire")
def withheld(stage: Stage) -> None:
    run = build_verified(stage, rounds_per_epoch=30)
    accuse(run, WITHHELD)
    vote(run, convene(run), guilty=True)
    _, target = accuse(run, WITHHELD)
    jury = convene(run)
    run.withdraw(target)
    vote(run, jury, guilty=True)
    accuse(run)
    for place, juror in enumerate(convene(run)):
        run.judge(juror, guilty=place % 2 == 0)
    for _ in range(8):
        run.run_round()


@scenario("V9: each rule of an audit broken once, and what opens no challenge; V12: each rule of a vote broken once")
def audits_refused(stage: Stage) -> None:
    run = stage.build(8, verification_percent=30, convict=True, rounds_per_epoch=20, witness_nodes=4)
    lost, hash_ = ReportAudit(0, 0, 0, 1, 1, 2, build_hash("c")), build_hash("c")
    stage.refused(lambda: run.apply(lost, run.keys(0)[1]))
    stage.refused(lambda: run.apply(JudgeChallenge(0, 0, 0, 0, 1), run.keys(0)[1]))
    run.warm_up()
    first = find_verifiers(run)[0]
    stage.refused(lambda: run.report(first))  # height 0: nothing to audit
    verifier, *_ = go_to_verifiers(run, 2)
    height, idle = run.state.current.height, next(m for m in range(8) if m not in find_verifiers(run))
    for change in (
        {"epoch": 1}, {"height": height + 1}, {"height": height - 2}, {"target": verifier}, {"target": 300},
        {"reason": AuditReason.NONE}, {"reason": 10}, {"commitment": bytes(32)}, {"target": NOBODY},
        {"target": NOBODY, "piece": NOBODY}, {"target": NOBODY, "reason": AuditReason.NONE, "piece": 3},
    ):  # fmt: skip
        values: dict[str, Any] = {"target": idle, "reason": GRADIENT, "piece": 3, "height": height}
        values |= change
        stage.refused(lambda v=values: run.report(verifier, **v))
    stage.refused(lambda: run.report(idle))
    strange = ReportAudit(0, height, verifier, idle, 3, GRADIENT, hash_)
    stage.refused(lambda: run.apply(strange, build_hash("stranger")))
    run.report(verifier, idle, GRADIENT)
    stage.refused(lambda: run.report(verifier, idle, GRADIENT))
    second = find_verifiers(run)[1]
    run.run_round()
    run.report(second, idle, GRADIENT, height=height)  # accused already: noted, no challenge
    play_votes(stage, run, verifier, idle)
    run.run_round()
    run.run_round()
    run.apply(Pause())
    run.finish_epoch()
    stage.refused(lambda: run.apply(lost, run.keys(0)[1]))
    stage.refused(lambda: run.apply(JudgeChallenge(0, 0, 0, 0, 1), run.keys(0)[1]))


def play_votes(stage: Stage, run: Run, verifier: int, target: int) -> None:
    stage.refused(lambda: run.judge(verifier))  # too early
    jury = convene(run)
    others = [m for m in range(8) if m not in get_witnesses(run.state.current)]
    for member in (verifier, target, others[0]):
        stage.refused(lambda m=member: run.judge(m))
    stage.refused(lambda: run.judge(jury[0], challenge=1))
    stage.refused(lambda: run.judge(jury[0], epoch=7))
    stage.refused(lambda: run.judge(jury[0], height=run.state.current.height - 1))
    vote_ = JudgeChallenge(0, run.state.current.height, jury[0], 0, 1)
    stage.refused(lambda: run.apply(vote_, build_hash("stranger")))
    run.judge(jury[0])
    stage.refused(lambda: run.judge(jury[0]))
    run.withdraw(jury[1])
    stage.refused(lambda: run.judge(jury[1]))


@scenario("V15: challenges at the end of epochs of two rounds cost a credit and go on; the target leaves in between")
def challenges_go_on(stage: Stage) -> None:
    run = build_verified(stage, 6, verification_percent=50, rounds_per_epoch=2, witness_nodes=4)
    accuse(run)
    run.finish_epoch()
    target = run.state.challenges[0].target
    run.leave(target)
    run.rejoin()
    run.warm_up()
    vote(run, convene(run), guilty=True)
    accuse(run)
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    run.finish_epoch()
    run.apply(Pause())
    run.apply(Resume())


@scenario("V15: votes of an epoch's last round are void in the next one, whose jury decides")
def votes_are_void(stage: Stage) -> None:
    run = build_verified(stage, 6, verification_percent=50, rounds_per_epoch=4, witness_nodes=5)
    while run.state.current.height < 3:
        run.run_round()
    accuse(run)
    run.judge(convene(run)[0])
    assert run.state.challenges[0].guilty == 1
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    vote(run, convene(run), guilty=True)
    run.run_round()


@scenario("V14: a run that shows keeps findings and opens no challenge; unclear ones never do")
def findings_shown(stage: Stage) -> None:
    run = build_verified(stage, convict=False, witness_nodes=3)
    accuse(run)
    run.run_round()
    accuse(run, UNCLEAR)
    run.report(go_to_verifiers(run, 2)[1])
    run.run_round()


@scenario("V12: sixteen challenges are open, and the seventeenth accusation is a doubt")
def table_full(stage: Stage) -> None:
    run = build_verified(stage, 60, 18, witness_nodes=3, verification_percent=40)
    verifiers = find_verifiers(run)
    targets = [m for m in run.get_members() if m not in verifiers]
    for verifier, target in zip(verifiers[:18], targets, strict=False):
        run.report(verifier, target, GRADIENT)
    jury = convene(run, 3)
    vote(run, jury, guilty=True, number=3)
    assert is_refused(run, jury[0], 3)
    run.run_round()
    run.run_round()


@scenario("V12: what decides nothing is kept as a doubt where four are accused, and not where five are")
def table_busy(stage: Stage) -> None:
    run = build_verified(stage, 20, 5, witness_nodes=3, verification_percent=40)
    for accused in (5, 4):
        verifiers = go_to_verifiers(run, accused)
        targets = [m for m in run.get_members() if m not in verifiers]
        for verifier, target in zip(verifiers[:accused], targets, strict=False):
            run.report(verifier, target, GRADIENT)
        for _ in range(5):
            run.run_round()
