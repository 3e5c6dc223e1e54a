"""Scores of known tasks where a user looks: the page, the trackers' rows, and the metrics."""

import pytest

from psyche.analysis.run_view import RunView
from psyche.telemetry import types
from psyche.telemetry.events import Entry, EventLog
from psyche.telemetry.logging import configure_logging
from psyche.telemetry.printer import EventPrinter
from psyche.watch.document import describe_run
from psyche.watch.metrics import write_metrics
from psyche.watch.page import describe_course
from psyche.watch.rows import describe_scores


def make_score(step: int, value: float, percent: int = 100, task: str = "piqa") -> Entry:
    score = types.EvalScore(
        task=task, metric="acc_norm", value=value, standard_error=0.02, documents=6 * percent, shots=0, epoch=1,
        step=step, digest=bytes(32), percent=percent, final=percent == 100,
    )  # fmt: skip
    return Entry(1.0, "ada", score)


@pytest.fixture
def view() -> RunView:
    return RunView()


def test_the_newest_score_of_each_task_is_shown(view: RunView) -> None:
    for one in (make_score(60, 0.5, 50), make_score(60, 0.51), make_score(60, 0.4, 80), make_score(20, 0.3)):
        view.take(one)
    assert [*describe_course(view)] == ["piqa 0.5100 ± 0.0200 at step 60 (600 documents)"]
    view.take(make_score(120, 0.6, 50))
    assert [*describe_course(view)] == ["piqa 0.6000 ± 0.0200 at step 120 (300 documents, 50 % of it so far)"]
    assert describe_scores(view) == {"eval/piqa": 0.6}
    (shown,) = describe_run(view, "0", 1.0)["scores"]
    assert (shown["task"], shown["value"], shown["percent"], shown["final"]) == ("piqa", 0.6, 50, False)
    assert 'psyche_eval_score{run="",task="piqa"} 0.6' in write_metrics([view])


def test_what_the_newest_weights_write_commands_nothing(view: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a \x1b[2J\u202emat\nand"
    for step in (60, 20):
        text = types.EvalText(prompt="The cat", text=f"{evil}{step}", member=1, epoch=1, step=step, digest=bytes(32))
        view.take(Entry(1.0, "ada", text))
    escaped = r"a \x1b[2J\u202emat"
    assert [*describe_course(view)] == [rf"at step 60 it writes: The cat |{escaped}\nand60"]
    shown = describe_run(view, "0", 1.0)
    assert shown["text"] == {"step": 60, "prompt": "The cat", "text": f"{escaped}\nand60"}
    configure_logging("console")
    log = EventLog(None, node="ada")
    printer = EventPrinter(log.subscribe(), shorten=True)
    for one in (evil, evil.replace(" ", "").replace("\n", "")):
        log.emit(types.EvalText(prompt="The cat", text=one, member=1, epoch=1, step=1, digest=bytes(32)))
    printer.refresh()
    told = capsys.readouterr().err
    assert told.count("eval_text") == told.count("\n") == 2
    assert not {"\x1b", "\u202e"} & set(told)


def test_a_log_with_many_tasks_fills_no_memory_and_their_names_command_nothing(view: RunView) -> None:
    view.take(make_score(1, 0.5, task="a\x1b[2J\u202etask\n" + "x" * 1_000))
    shown = [*describe_course(view), describe_run(view, "0", 1.0)["scores"][0]["task"]]
    assert all(one.isprintable() and len(one) < 200 for one in shown)
    for number in range(100):
        view.take(make_score(1, 0.5, task=f"task {number}"))
    assert len(view.scores) == 32
    assert "eval/task_0" in describe_scores(view)
