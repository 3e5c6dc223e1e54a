"""What an owner reads when the rules of the record refuse a command: plain words, and what to do next."""

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from psyche.backends.port import Administration
from psyche.core.state.errors import CannotResume, CannotUpdate, ConfigRefused, CoordinatorError, Halted
from psyche.core.state.state import RunState
from psyche.errors import BackendError, PsycheError
from psyche.telemetry.run_line import WriteCommand, write_briefly
from psyche.telemetry.status import PHASES
from psyche.wire.backend import RunStatus

_Found = TypeVar("_Found")
_Backend = TypeVar("_Backend", bound=Administration)
STANDINGS: Final = PHASES | {  # in a sentence
    RunState.WARMUP: "warming up",
    RunState.ROUND_WITNESS: PHASES[RunState.ROUND_TRAIN],
    RunState.COOLDOWN: "saving the epoch's weights",
}
_STATES: Final = re.compile(rf"\b({'|'.join(state.name for state in RunState)})\b")


async def call_in_words(
    function: Callable[[_Backend], Awaitable[_Found]], backend: _Backend, write: WriteCommand = write_briefly
) -> _Found:
    """Call `function` with a run's backend; a refusal of the record becomes a sentence for the run's owner.

    `write` writes the commands that it names.
    """
    try:
        return await function(backend)
    except CoordinatorError as error:
        try:
            status = await backend.get_status()
        except PsycheError:
            raise BackendError(put_in_words(error)) from error
        raise BackendError(explain_refusal(error, status, write)) from error


def explain_refusal(error: CoordinatorError, status: RunStatus, write: WriteCommand = write_briefly) -> str:
    """Explain a refusal to the run's owner; `status` is how the run stands just after it."""
    match error:
        case CannotResume():
            return _explain_resume(status, write)
        case CannotUpdate() if status.run_state == RunState.PAUSED:  # a member named a place for the weights (S10)
            return "the record has changed since it was read, and nothing was changed: run this command again"
        case CannotUpdate():  # the run went on while the owner was asked
            return f"{put_in_words(error)}. {_describe_way_to_pause(status, write)}; then run this command again"
        case ConfigRefused() if not status.total_steps:  # `psyche run create` was cut off, or named no file
            create = write("run create --state FOLDER")
            return f"the run has no settings yet: {create} completes it; then run this command again"
        case Halted():
            reasons = {
                RunState.PAUSED: f"the run is paused already; {write('run resume')} lets it go on",
                RunState.FINISHED: "the run is finished: there is nothing to pause",
                RunState.UNINITIALIZED: f"the run is not started yet; {write('run resume')} starts it",
            }
            return reasons.get(RunState(status.run_state), put_in_words(error))
        case _:
            return put_in_words(error)


def put_in_words(error: CoordinatorError) -> str:
    """Return the message of a refusal without numbers of rules, and with states as people call them."""
    return _STATES.sub(lambda found: STANDINGS[RunState[found[1]]], error.message)


def _explain_resume(status: RunStatus, write: WriteCommand) -> str:
    state = RunState(status.run_state)
    if state is RunState.FINISHED:
        return "the run is finished and cannot be resumed; docs/owner.md shows how to train its weights further"
    if state is RunState.PAUSED:
        return "the run was not paused yet, but is now: run this command again"
    if status.pending_pause:
        return f"the run is not paused yet. {_describe_way_to_pause(status, write)}; then resume it"
    return f"the run is not paused: it is {STANDINGS[state]}, and there is nothing to resume"


def _describe_way_to_pause(status: RunStatus, write: WriteCommand) -> str:
    watch = f"{write('run info --watch', signed=False)} shows when it is paused"
    if status.pending_pause:
        return f"The pause takes effect at the end of this epoch, a few rounds from now: wait for it ({watch})"
    return f"Pause it with {write('run pause')}, and wait until it is paused ({watch})"
