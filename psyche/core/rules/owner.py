"""What the owner of a run says: pause and resume (P4), changes of a run that exists (P9), rates (M7)."""

import copy
from typing import Final

from psyche.core.encoding.account import decode_model, encode_model
from psyche.core.rules.formation import process_joins_closed
from psyche.core.rules.membership import process_vacancies
from psyche.core.rules.stopping import is_run_done
from psyche.core.rules.timing import process_state_change
from psyche.core.state.bits import get_members
from psyche.core.state.config_checks import (
    check_config,
    find_bootstrap_problems,
    find_metadata_problems,
    find_progress_problems,
    find_version_problems,
    refuse_problems,
)
from psyche.core.state.errors import CannotResume, CannotUpdate, ConfigRefused, Halted
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import Context, Pause, Resume, SetRates, Update, UpdateClientVersion
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Checkpoint, ClientState, Config, Coordinator, Mark, Model, Progress, RunState

_CHANGEABLE: Final = frozenset({RunState.UNINITIALIZED, RunState.PAUSED})


def process_update(state: Coordinator, context: Context, message: Update) -> bool:  # noqa: ARG001
    """Make the changes; whether there was any (P9).

    Raises:
        CannotUpdate: config, model or progress of a run that is neither paused nor new.
        ConfigRefused: what would come out breaks a rule; the message names key and rule.
    """
    config, model = message.config or state.config, message.model or state.model
    progress, metadata = message.progress or state.progress, message.metadata or state.metadata
    bootstrap = state.bootstrap if message.bootstrap is None else message.bootstrap
    if message.changes_training:
        _check_training(state, config, model, progress)
    refuse_problems([*find_metadata_problems(metadata), *find_bootstrap_problems(bootstrap)])
    before = _get_parts(state)
    model = decode_model(encode_model(model))  # as it stands on record: some settings are float32 there
    if _get_start(model, progress) != _get_start(state.model, state.progress):
        # P3 takes progress from `certified`, and S8 weights: both are of another run now
        state.certified, state.checkpoint = Mark(), Mark()
        state.epoch.warmup_failures = 0
    state.config, state.model, state.progress = copy.copy(config), model, copy.copy(progress)
    state.metadata, state.bootstrap = copy.copy(metadata), [*bootstrap]
    return _get_parts(state) != before


def _check_training(state: Coordinator, config: Config, model: Model, progress: Progress) -> None:
    _check_changeable(state, "config, model and progress")
    check_config(config, model)
    refuse_problems(find_progress_problems(progress, config))
    if progress.epoch != state.progress.epoch and state.run_state is RunState.PAUSED:
        raise ConfigRefused(
            f"progress.epoch: {progress.epoch}, but signatures name {state.progress.epoch}: it stays (P5)"
        )


def _check_changeable(state: Coordinator, what: str) -> None:
    if state.run_state not in _CHANGEABLE:
        raise CannotUpdate(f"the run is {state.run_state.name}: {what} change only while it is paused or new (P9)")


def _get_parts(state: Coordinator) -> tuple[object, ...]:
    return state.config, state.model, state.progress, state.metadata, state.bootstrap


def _get_start(model: Model, progress: Progress) -> tuple[Checkpoint, list[Checkpoint], int, int]:
    """From which weights, and where in schedule and data, an epoch begins."""
    return model.checkpoint, model.extra_checkpoints, progress.step, progress.epoch_start_data_index


def process_client_version(state: Coordinator, context: Context, message: UpdateClientVersion) -> bool:  # noqa: ARG001
    """Ask for another version of the client; whether it is another (P9).

    Raises:
        CannotUpdate: the run is neither paused nor new.
        ConfigRefused: the text does not fit its place.
    """
    _check_changeable(state, "its version can")
    refuse_problems(find_version_problems(message.version))
    was, state.client_version = state.client_version, message.version
    return was != message.version


def process_rates(state: Coordinator, context: Context, message: SetRates) -> bool:  # noqa: ARG001
    """Set what the coming epochs pay and slash; whether that is new (M7).

    Raises:
        ConfigRefused: a rate does not fit 64 bits.
    """
    registry = state.registry
    before = (registry.future_earning_rate, registry.future_slashing_rate)
    rates = (
        before[0] if message.earning is None else message.earning,
        before[1] if message.slashing is None else message.slashing,
    )
    if not all(0 <= rate <= U64_MAX for rate in rates):
        raise ConfigRefused(f"rates must be 0 to {U64_MAX} (M7)")
    registry.future_earning_rate, registry.future_slashing_rate = rates
    return rates != before


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
