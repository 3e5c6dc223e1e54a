"""Requests of a run's owner: pause and resume (P4), updates of an existing run (P9), rates (M7)."""

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
from psyche.core.state.limits import HASH_BYTES, U64_MAX
from psyche.core.state.messages import Context, Pause, Resume, SetRates, Update, UpdateClientVersion
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    ClientState,
    Config,
    Coordinator,
    Mark,
    Model,
    Progress,
    RunState,
)

_CHANGEABLE: Final = frozenset({RunState.UNINITIALIZED, RunState.PAUSED})


def process_update(state: Coordinator, context: Context, message: Update) -> bool:  # noqa: ARG001
    """Change the owner's settings; return whether anything changed (P9)."""
    if message.nonce not in (None, state.nonce):
        raise CannotUpdate(f"the record is at nonce {state.nonce}, and the update was made from {message.nonce}", "P9")
    config, model = message.config or state.config, message.model or state.model
    progress, metadata = message.progress or state.progress, message.metadata or state.metadata
    bootstrap = state.bootstrap if message.bootstrap is None else message.bootstrap
    if message.changes_training:
        _check_training(state, config, model, progress)
    refuse_problems([*find_metadata_problems(metadata), *find_bootstrap_problems(bootstrap)])
    before = _get_parts(state)
    model = decode_model(encode_model(model))  # rounds the settings that the record holds as float32
    is_other_start = _get_start(model, progress) != _get_start(state.model, state.progress)
    _check_first_weights(state, message.first_weights, is_other_start=is_other_start)
    if is_other_start:
        # P3 takes progress and S8 takes weights from `certified`, which no longer fits this run
        state.certified, state.checkpoint = Mark(), Mark()
        state.epoch.warmup_failures = 0
    state.config, state.model, state.progress = copy.copy(config), model, copy.copy(progress)
    state.metadata, state.bootstrap = copy.copy(metadata), [*bootstrap]
    if message.first_weights is not None and message.first_weights != state.certified.digest:
        process_first_weights(state, message.first_weights)
    return _get_parts(state) != before


def process_first_weights(state: Coordinator, digest: bytes) -> None:
    """Put the full digest of the first weights on record: the next epoch starts from no others (S11)."""
    progress = state.progress
    state.certified = Mark(digest, progress.epoch, step=progress.step, data_index=progress.epoch_start_data_index)
    state.checkpoint = copy.copy(state.certified)


def _check_first_weights(state: Coordinator, digest: bytes | None, *, is_other_start: bool) -> None:
    if digest is None:
        return
    if len(digest) != HASH_BYTES or digest == ZERO32:
        raise ConfigRefused(f"first_weights: must have {HASH_BYTES} bytes, not all zero", "S11")
    has_trained = state.run_state is not RunState.UNINITIALIZED and state.certified.digest != ZERO32
    if has_trained and not is_other_start and digest != state.certified.digest:
        raise ConfigRefused("first_weights: the run has certified weights, so its next epoch starts from those", "S11")


def _check_training(state: Coordinator, config: Config, model: Model, progress: Progress) -> None:
    _check_changeable(state, "config, model and progress")
    check_config(config, model)
    refuse_problems(find_progress_problems(progress, config))
    if progress.epoch != state.progress.epoch and state.run_state is RunState.PAUSED:
        raise ConfigRefused(
            f"progress.epoch: cannot change to {progress.epoch}, because signatures name {state.progress.epoch}", "P5"
        )


def _check_changeable(state: Coordinator, what: str) -> None:
    if state.run_state not in _CHANGEABLE:
        raise CannotUpdate(f"the run is {state.run_state.name}: {what} can change only while it is paused or new", "P9")


def _get_parts(state: Coordinator) -> tuple[object, ...]:
    model = encode_model(state.model)  # T2: zeros of both signs are equal numbers, but other bytes
    return state.config, model, state.progress, state.metadata, state.bootstrap, state.certified


def _get_start(model: Model, progress: Progress) -> tuple[Checkpoint, list[Checkpoint], Progress]:
    """The weights, epoch, step and sample from which an epoch begins."""
    return model.checkpoint, model.extra_checkpoints, progress


def process_client_version(state: Coordinator, context: Context, message: UpdateClientVersion) -> bool:  # noqa: ARG001
    """Set the client version that the run requires; return whether it changed (P9)."""
    _check_changeable(state, "its client version")
    refuse_problems(find_version_problems(message.version))
    was, state.client_version = state.client_version, message.version
    return was != message.version


def process_rates(state: Coordinator, context: Context, message: SetRates) -> bool:  # noqa: ARG001
    """Set the earning and slashing rates of coming epochs; return whether they changed (M7)."""
    registry = state.registry
    before = (registry.future_earning_rate, registry.future_slashing_rate)
    rates = (
        before[0] if message.earning is None else message.earning,
        before[1] if message.slashing is None else message.slashing,
    )
    if not all(0 <= rate <= U64_MAX for rate in rates):
        raise ConfigRefused(f"rates must be 0 to {U64_MAX}", "M7")
    registry.future_earning_rate, registry.future_slashing_rate = rates
    return rates != before


def process_pause(state: Coordinator, context: Context, message: Pause) -> bool:  # noqa: ARG001
    """Pause the run: at once before an epoch's first round, otherwise after its drain and Cooldown (P4).

    A repeated pause changes nothing.
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
    """Resume a paused run, or start a new one; everybody must join again (P4)."""
    if state.run_state not in (RunState.PAUSED, RunState.UNINITIALIZED):
        raise CannotResume(f"the run is {state.run_state.name}; only a paused one can be resumed")
    check_config(state.config, state.model)
    process_joins_closed(state)  # M3
    following = RunState.FINISHED if is_run_done(state) else RunState.WAITING_FOR_MEMBERS
    process_state_change(state, context.now, following)
    return True
