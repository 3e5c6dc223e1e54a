"""The owner stops a run, and lets it go on (P4)."""

from psyche.core.rules.formation import process_joins_closed
from psyche.core.rules.membership import process_vacancies
from psyche.core.rules.stopping import is_run_done
from psyche.core.rules.timing import process_state_change
from psyche.core.state.bits import get_members
from psyche.core.state.config_checks import check_config
from psyche.core.state.errors import CannotResume, Halted
from psyche.core.state.messages import Context, Pause, Resume
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import ClientState, Coordinator, RunState


def process_pause(state: Coordinator, context: Context, message: Pause) -> bool:  # noqa: ARG001
    """Pause at once before the first round, else after the epoch's drain and Cooldown (P4). A repeat changes nothing.

    Raises:
        Halted: there is nothing to pause.
    """
    if state.halted:
        raise Halted(f"the run is {state.run_state.name} already")
    if state.in_round or state.run_state is RunState.COOLDOWN:
        was, state.pending_pause = state.pending_pause, True
        return not was
    if state.run_state is RunState.WARMUP:
        for member in get_members(get_healthy(state)):
            state.clients[member].state = ClientState.WITHDRAWN
        process_vacancies(state)
    state.epoch.cold_start = True
    process_state_change(state, context.now, RunState.PAUSED)
    return True


def process_resume(state: Coordinator, context: Context, message: Resume) -> bool:  # noqa: ARG001
    """Go on; everybody joins again. The first resume starts a run (P4).

    Raises:
        CannotResume: the run is neither paused nor new.
        ConfigRefused: its configuration breaks a rule.
    """
    if state.run_state not in (RunState.PAUSED, RunState.UNINITIALIZED):
        raise CannotResume(f"the run is {state.run_state.name}; only a paused one can be resumed")
    check_config(state.config, state.model)
    process_joins_closed(state)  # M3
    following = RunState.FINISHED if is_run_done(state) else RunState.WAITING_FOR_MEMBERS
    process_state_change(state, context.now, following)
    return True
