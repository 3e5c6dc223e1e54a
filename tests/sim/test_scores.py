"""Members of simulated runs measure a task together, over bad lines and with every kind of liar among them."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
from kits.log import choose
from scenarios.base import get_events, get_ledger
from sim_kit import build, play

from psyche.network.memory.line import LinkConditions
from psyche.sim.byzantine.program import ByzantineMember
from psyche.sim.byzantine.score_lies import SCORE_LIES
from psyche.sim.exam import SimExam
from psyche.sim.trainer import draw_values
from psyche.sim.world import Outcome
from psyche.telemetry import types
from psyche.wire.trainer import ScoreRow

DOCUMENTS, BLOCKS = 640, 20
TRUTH = 0.2765625  # of the first weights
LINES = {"uplink": LinkConditions(latency_s=0.05, jitter_s=0.1, loss=0.02)}
REFUSED = {
    "say_twice",
    "sign_for_others",
    "other_weights",
    "other_blocks",
    "write_for_others",
}  # by what each message is
DISPUTED = {"boast", "guess", "say_twice"}  # who says something else than others of the same block


def measure(*liars: str, clients: int = 4, rounds: int = 20, **config: int) -> Outcome:
    """Two epochs, of which the first measures the weights that the run begins with: they are equal in all runs."""
    cheats = tuple(ByzantineMember(who=number, kind=kind) for number, kind in enumerate(liars, start=1))
    values: dict[str, Any] = {"total_steps": 2 * rounds + 1, "rounds_per_epoch": rounds} | config
    for name in ("global_batch_size_start", "global_batch_size_end"):
        values.setdefault(name, clients)
    scenario = build(3, clients=clients, byzantine=cheats, cls=LINES, **values)
    return play(replace(scenario, eval_documents=DOCUMENTS))


def list_final(outcome: Outcome) -> list[types.EvalScore]:
    """The final scores of honest members."""
    liars = {f"client-{one.who}" for one in outcome.scenario.byzantine}
    seen = [one for one in get_events(outcome, types.EvalScore) if one.node not in liars]
    return [one for one in choose((one.event for one in seen), types.EvalScore) if one.final]


def get_final(outcome: Outcome) -> list[types.EvalScore]:
    """Those on the weights that were first measured."""
    scores = list_final(outcome)
    return [one for one in scores if one.digest == scores[0].digest]


async def compute_truth(digest: bytes) -> float:
    """The share of right answers that a simulated trainer gives with these weights."""
    exam, right = SimExam(DOCUMENTS), 0
    for block in range(BLOCKS):
        for document, request in await exam.encode(exam.plan, digest, block):
            row = ScoreRow(context=tuple(request.context), choices=tuple(map(tuple, request.choices)))
            values = draw_values(digest, row)
            right += values.index(max(values)) == document.answer
    return right / DOCUMENTS


def test_each_block_is_done_once_but_for_repeats_and_nobody_does_over_a_third() -> None:
    outcome = measure()
    scores = get_final(outcome)
    assert {(one.documents, one.percent, one.value) for one in scores} == {(DOCUMENTS, 100, TRUTH)}
    assert len(scores) == 4
    done = [one for one in get_events(outcome, types.EvalScored) if one.event.digest == scores[0].digest]  # type: ignore[attr-defined]
    counts = Counter(one.event.block for one in done)  # type: ignore[attr-defined]
    assert (len(counts), max(counts.values())) == (BLOCKS, 2)
    assert len(done) <= BLOCKS + 4
    assert max(Counter(one.node for one in done).values()) <= len(done) / 3
    texts = choose((one.event for one in get_events(outcome, types.EvalText)), types.EvalText)
    told = [one for one in texts if one.digest == scores[0].digest]
    assert [one.text for one in told] == [f"These weights: {scores[0].digest.hex()}"[: len(told[0].text)]] * 4
    assert not get_events(outcome, types.EvalDisputed)
    assert not get_events(outcome, types.Refused)


@pytest.mark.whole
@pytest.mark.parametrize("kind", sorted(SCORE_LIES))
def test_a_liar_is_named_and_changes_no_score(kind: str) -> None:
    outcome = measure(kind, clients=6, rounds=40)
    assert outcome.facts["told"]["client-1"], "it lied"
    assert {one.value for one in get_final(outcome)} == {TRUTH}
    assert len(get_final(outcome)) >= 4, "of five; results that a line loses may be done too late again"
    assert_named(outcome, {"client-1"} if kind in DISPUTED else set())
    refused = {one.event.what for one in get_events(outcome, types.Refused)}  # type: ignore[attr-defined]
    assert refused == ({types.Refusable.SCORE} if kind in REFUSED else set())


def assert_named(outcome: Outcome, expected: set[str]) -> None:
    """Every honest member that had a final score has named these, and nobody else."""
    disputes = choose((one.event for one in get_events(outcome, types.EvalDisputed)), types.EvalDisputed)
    ledger = get_ledger(outcome)
    named = {name for one in disputes for name in ledger.find_names(one.epoch, sum(1 << m for m in one.members))}
    assert named == expected


@pytest.mark.whole
async def test_64_members_with_every_kind_of_liar_have_the_right_score() -> None:
    """They have a long Cooldown: of most of a round's messages the scores have no need."""
    kinds = [*SCORE_LIES, *SCORE_LIES]
    config = {"total_steps": 2, "global_batch_size_start": 8, "global_batch_size_end": 8, "witness_nodes": 4}
    run = partial(measure, *kinds, clients=64, rounds=2, cooldown_time=40, **config)
    outcome = await trio.to_thread.run_sync(run)
    scores = list_final(outcome)
    assert max(Counter(one.digest for one in scores).values()) > 32
    for one in scores:
        assert (one.documents, one.value) == (DOCUMENTS, await compute_truth(one.digest))
    disputed = {f"client-{number}" for number, kind in enumerate(kinds, start=1) if kind in DISPUTED}
    assert_named(outcome, disputed)
