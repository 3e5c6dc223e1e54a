"""The stage that the scenarios of the traces play on; each is recorded under its name."""

from collections.abc import Callable, Iterator
from unittest import mock

from conformance_traces import Recorder, Trace
from kits import runs
from kits.runs import Run, build_run

from psyche.core.encoding.account import encode_state
from psyche.core.state.errors import CoordinatorError

Scenario = Callable[["Stage"], None]
SCENARIOS: dict[str, tuple[str, Scenario]] = {}


def scenario(what: str) -> Callable[[Scenario], Scenario]:
    """Register a function as the trace of its name."""

    def register(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__.replace("_", "-")] = (what, function)
        return function

    return register


class Stage:
    """What a scenario plays on: `begin` starts the recording."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.started: tuple[Run, bytes] | None = None

    def begin(self, run: Run) -> Run:
        self.started = run, encode_state(run.state)
        self.recorder.trace = Trace("", "", self.started[1])
        return run

    def build(self, members: int = 3, **config: object) -> Run:
        """A new run, recorded from its first join on."""
        run = self.begin(build_run(0, **config))
        run.join(*range(members))
        return run

    def refused(self, call: Callable[[], object]) -> None:
        """An event that the machine must refuse."""
        try:
            call()
        except CoordinatorError:
            return
        raise AssertionError("the scenario expects a refusal")


def record(name: str) -> Trace:
    """Play one scenario and record it."""
    what, function = SCENARIOS[name]
    recorder = Recorder()
    stage = Stage(recorder)
    with mock.patch.object(runs, "apply", recorder):
        function(stage)
    assert stage.started is not None
    assert recorder.trace is not None
    run, start = stage.started
    return Trace(name, what, start, recorder.trace.events, encode_state(run.state))


def iter_traces() -> Iterator[Trace]:
    """All traces, freshly recorded."""
    return (record(name) for name in SCENARIOS)
