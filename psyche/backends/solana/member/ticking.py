"""Messages that a person sends to a run by hand: ticks, and places of the weights."""

from collections.abc import Callable

import trio

from psyche.backends.solana.interface.coordinator import build_user_message
from psyche.backends.solana.interface.events import StateChangedEvent
from psyche.backends.solana.lookup import find_run
from psyche.backends.solana.member.link import ChainTime
from psyche.backends.solana.member.logic import is_tick_due
from psyche.backends.solana.rpc.sender import Confirmed
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import NameCheckpoint, Tick
from psyche.core.state.state import ZERO32, Checkpoint, RunState
from psyche.errors import ConfigError
from psyche.telemetry.status import PHASES


async def tick_run(
    session: ChainSession, run_id: str, every_s: float, count: int | None, say: Callable[[str], None]
) -> None:
    """Look at a run again and again, and send a tick whenever it changes the record."""
    is_asked, looks = True, 0
    min_slot: int | None = None
    while count is None or looks < count:
        if looks:
            await trio.sleep(every_s)
        looks += 1
        found = await find_run(session, run_id, min_slot)
        before = RunState(found.state.run_state)
        if found.state.halted:
            raise ConfigError(
                f"run {run_id!r} is {PHASES[before]}: nothing moves" + _describe_way_on(session, run_id, before)
            )
        slot, unix = await session.rpc.get_clock()
        if not is_tick_due(found.state, bytes(session.key), ChainTime(slot, unix)):
            say(f"{before.name.lower()}: nothing is due")
            continue
        plan = ChainPlan(
            f"ticks run {run_id!r}, each time that a tick is due",
            (Step("tick", (build_user_message(found.accounts, session.key, Tick(None)),)),),
        )
        try:
            landed = await session.carry_out(plan, is_asked=is_asked)
        except CoordinatorError as error:  # a client was faster
            say(str(error))
            continue
        is_asked = False
        min_slot = landed.slot if landed else None
        say(f"{before.name.lower()} -> {await _describe_change(session, run_id, landed)}")


async def _describe_change(session: ChainSession, run_id: str, landed: Confirmed | None) -> str:
    """Where a tick has brought a run, in its own words; else, where the run is by now."""
    for event in reversed(landed.events if landed else ()):
        if isinstance(event, StateChangedEvent):
            return f"{event.phase} (epoch {event.epoch}, height {event.height}, step {event.step})"
    after = await find_run(session, run_id, landed.slot if landed else None)
    return RunState(after.state.run_state).name.lower()


def _describe_way_on(session: ChainSession, run_id: str, state: RunState) -> str:
    return "" if state is RunState.FINISHED else f"; {session.write_command('run resume', run_id)} lets it go on"


async def plan_checkpoint(session: ChainSession, run_id: str, source: Checkpoint) -> ChainPlan:
    """Plan to name a place of the certified weights (S10); no steps: it is on record already."""
    found = await find_run(session, run_id)
    state, certified = found.state, found.state.certified
    if state.run_state is RunState.UNINITIALIZED:
        raise ConfigError(f"run {run_id!r}: has not begun, so there is nothing to name yet")
    if certified.digest == ZERO32:
        raise ConfigError(
            f"run {run_id!r}: has no certified weights yet; they are there when its first epoch has ended"
        )
    is_named = state.checkpoint.digest == certified.digest
    if is_named and source in (state.model.checkpoint, *state.model.extra_checkpoints):
        return ChainPlan("", ())
    message = NameCheckpoint(certified.epoch, certified.digest, source)
    step = Step("checkpoint", (build_user_message(found.accounts, session.key, message),))
    return ChainPlan(f"puts {source.name} on record as a place of the weights of step {certified.step}", (step,))
