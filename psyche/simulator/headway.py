"""Ends a forecast that makes no headway, and says where it stood and what it lacked.

A run may stand still in two ways: no step is gained for a long while, or epoch after epoch is given up, for none
certifies anything. Neither ends by itself, and whoever asked waits for an answer.
"""

from typing import TYPE_CHECKING, Final

import trio

from psyche.core.state import RunState
from psyche.simulator.faults import Fault
from psyche.simulator.scenario import compute_patience_s
from psyche.telemetry.text import format_number, format_seconds

if TYPE_CHECKING:
    from psyche.simulator.forecast import Forecast, Question
    from psyche.simulator.world import World

LOOK_S: Final = 5.0
PATIENCES: Final = 3  # so often as long as a sound run may need for a step
GIVEN_UP: Final = 3  # epochs in a row that certified nothing
FIRST_STEP: Final = 1  # is on record without any work


class Headway:
    """Looks at a world from time to time, and ends it where nothing comes of it any more."""

    def __init__(self, world: "World", question: "Question") -> None:
        self.obstacle = ""
        self.given_up = 0  # epochs in a row
        self._world = world
        self._question = question
        self._patience_s = compute_patience_s_of(question)
        self._place = (0, 0)  # epoch, step
        self._since_s = max(60 * one.joins_after_min for one in question.classes)
        self._certified = FIRST_STEP
        self._next_epoch = 0  # after the last one that came to something

    async def watch(self) -> None:
        """Until the run stands still; who starts it ends it."""
        while not self.obstacle:
            await trio.sleep(LOOK_S)
            self._look(trio.current_time())
        self._world.give_up("headway", self.obstacle)

    def _look(self, now: float) -> None:
        state = self._world.shadow.state
        place = (state.progress.epoch, state.progress.step)
        if place != self._place:
            self._place, self._since_s = place, max(now, self._since_s)
        if state.certified.step > self._certified:
            self._next_epoch = state.certified.epoch + 1
        self._certified = max(FIRST_STEP, state.certified.step)
        if self._is_disturbed():
            self._next_epoch, self._since_s = state.progress.epoch, max(now, self._since_s)
        self.given_up = max(0, state.progress.epoch - self._next_epoch)
        if state.run_state is RunState.FINISHED:
            return
        if self.given_up >= GIVEN_UP:
            self.obstacle = f"{format_number(self.given_up, 'epoch')} in a row came to nothing"
        elif now - self._since_s > self._patience_s:
            self.obstacle = f"no step was gained for {format_seconds(now - self._since_s)}"

    def _is_disturbed(self) -> bool:
        """A fault of the plan that has an end is waited for; failures of the profile are the run's everyday."""
        return any(fault.for_s and fault in self._question.faults for fault in self._world.under_way)


def compute_patience_s_of(question: "Question") -> float:
    """How long no step may be gained before a forecast ends; a machine that comes back may be what all wait for."""
    back_s = [60 * (one.back_after_min or 0.0) for one in question.classes if one.fails_every_h is not None]
    return PATIENCES * (compute_patience_s(question.config) + max(back_s, default=0.0))


# --- in words -----------------------------------------------------------------------------------------


def describe_obstacle(forecast: "Forecast") -> str:
    """Why a run does not get on: what was seen, in which phase it ended, and what it lacked."""
    state = forecast.outcome.state
    where = f"{state.run_state.name.lower().replace('_', ' ')}, epoch {state.progress.epoch}"
    seen = f"{forecast.obstacle}; " if forecast.obstacle else ""
    return f"{seen}it ended in state {where}, step {state.progress.step}; {_describe_lack(forecast)}"


def _describe_lack(forecast: "Forecast") -> str:
    config = forecast.question.config
    alive = sum(not node.ended_away for node in forecast.accounts.nodes.values())
    if alive < config.init_min_clients:
        needed = format_number(config.init_min_clients, "client")
        return f"an epoch needs {needed}, {alive} {'was' if alive == 1 else 'were'} there"
    rounds = forecast.accounts.data_rounds
    trained = sum(len(one.trained) for one in rounds)
    wanted = sum(one.place in node.present for node in forecast.accounts.nodes.values() for one in rounds)
    limit = f"max_round_train_time is {config.max_round_train_time} s"
    if not wanted:
        return f"no round began; warmup_time is {config.warmup_time} s"
    if 2 * trained < wanted:
        slowest = format_seconds(estimate_slowest_s(forecast.question))
        return f"{trained} of {wanted} results came in time: {limit}, the slowest class trains for {slowest}"
    slowest = format_seconds(estimate_sending_s(forecast.question))
    return (
        f"results came in time, too few members had all payloads: {limit}, "
        f"the slowest line needs {slowest} to send a payload to all others"
    )


def estimate_slowest_s(question: "Question") -> float:
    """How long the slowest class trains its share of a round, with its own spread."""
    samples = -(-question.config.global_batch_size_end // question.clients)
    return max(
        (samples * question.workload.sequence_tokens / one.tokens_per_s + one.step_s) * (1 + one.spread_percent / 100)
        for one, count in zip(question.classes, question.counts, strict=True)
        if count
    )


def estimate_sending_s(question: "Question") -> float:
    """How long the slowest line needs to bring a payload to all others."""
    slowest = min(one.up_mbit_s for one, count in zip(question.classes, question.counts, strict=True) if count)
    return question.workload.payload_bytes * (question.clients - 1) * 8e-6 / slowest


def find_missed(faults: tuple[Fault, ...], happened: list[Fault]) -> tuple[Fault, ...]:
    """The faults of a plan that never happened."""
    left = list(happened)
    missed: list[Fault] = []
    for fault in faults:
        if fault in left:
            left.remove(fault)
        else:
            missed.append(fault)
    return tuple(missed)
