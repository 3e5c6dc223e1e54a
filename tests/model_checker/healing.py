"""Heal, then demand progress: from any state on everybody behaves, and the run must come to something (I5).

The faulty member either behaves like the others, or says nothing at all from now on.
"""

from typing import Final

from model_checker.forms import DIGESTS, build_copy, compute_form, compute_key, process_normalization
from model_checker.inputs import RESUME, TICK, Input, Menu, build_join, build_ready, build_wait, build_witness
from model_checker.invariants import Broken
from model_checker.worlds import Report, World
from psyche.core.state.enums import ClientState, RunState, SlotState
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.state import ZERO32, Coordinator
from psyche.testing.builders import START_UNIX

MAX_INPUTS: Final = 400  # of three epochs of four members, with room


class Healer:
    """Follows honest behaviour to its end; what is known to end well is not followed again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._menu = Menu(world)
        self._ends_well: dict[bool, set[int]] = {False: set(), True: set()}
        self.healed = 0

    def build_start(self) -> tuple[Coordinator, int]:
        """The state in which the search begins: so many honest epochs lie behind it."""
        state, now = self._world.build_start(), START_UNIX
        while state.progress.epoch < self._world.certified_epochs:
            now = self._go_on(state, now, silent=False)
        return state, now

    def heal(self, start: Coordinator, now: int) -> None:
        """Whether honest behaviour leads on, with and without the faulty member.

        Raises:
            Broken: it does not; the message says where it ends.
        """
        for silent in (False, True) if self._world.faulty else (False,):
            self._follow(build_copy(start), now, silent=silent)
        self.healed += 1

    def _follow(self, state: Coordinator, now: int, *, silent: bool) -> None:
        known, passed = self._ends_well[silent], list[int]()
        mark = self._get_aim(state)
        for _ in range(MAX_INPUTS):
            key = hash((self._compute_key(state, now), mark))
            if key in known or self._is_there(state, mark) or self._is_short(state, silent=silent):
                known.update(passed)
                return
            passed.append(key)
            now = self._go_on(state, now, silent=silent)
            process_normalization(state)
        who = "the faulty member is silent" if silent else "everybody behaves"
        raise Broken(
            f"I5: {MAX_INPUTS} inputs on, while {who}, the run is in {state.run_state.name}: nothing certified"
        )

    def _get_aim(self, state: Coordinator) -> int:
        """The epoch from which on weights must be certified: the running one may be past saving."""
        return state.progress.epoch

    def _is_there(self, state: Coordinator, aim: int) -> bool:
        """An epoch that ran its course has certified something, or the run has come to its end."""
        past = state.certified.digest != ZERO32 and state.certified.epoch >= aim
        ended = state.progress.epoch > aim and past and state.certified.step > 1
        return state.run_state is RunState.FINISHED or ended

    def _is_short(self, state: Coordinator, *, silent: bool) -> bool:
        """Whether too few are left who may join at all: nothing can lead on then, and nothing must."""
        faulty = self._world.faulty_participant
        banned = {s.signer for s in state.registry.slots if s.state is SlotState.BANNED}
        able = [
            p
            for p in range(self._world.members)
            if not (silent and p == faulty) and self._world.get_keys(p)[0] not in banned
        ]
        return len(able) < state.config.init_min_clients

    def _compute_key(self, state: Coordinator, now: int) -> int:
        return compute_key(compute_form(state, now, self._world.lens))

    # --- what honest members and the backend do next

    def _go_on(self, state: Coordinator, now: int, *, silent: bool) -> int:
        """The next honest input: messages first, then a tick, then time."""
        for given in (*self._get_messages(state, silent=silent), TICK):
            nonce = state.nonce
            try:
                after = given.act(state, now)
            except CoordinatorError:
                continue
            if state.nonce != nonce:
                return after
        deadlines = [d for d in self._world.get_deadlines(state) if state.state_start_unix + d > now]
        if not deadlines:
            raise Broken(f"I5: in {state.run_state.name} no honest input has an effect, and no deadline is left")
        return build_wait(state, deadlines[0]).act(state, now)

    def _get_messages(self, state: Coordinator, *, silent: bool) -> list[Input]:
        faulty = self._world.faulty_participant
        if state.run_state is RunState.PAUSED:
            return [RESUME]
        if state.run_state is RunState.WAITING_FOR_MEMBERS:
            able = (p for p in range(self._world.members) if not (silent and p == faulty))
            return [build_join(self._world, participant) for participant in able]
        quiet = self._world.get_keys(faulty)[1] if silent and faulty is not None else b""
        speakers = [m for m, c in enumerate(state.clients) if c.state is ClientState.HEALTHY and c.p2p != quiet]
        if state.run_state is RunState.WARMUP:
            return [build_ready(state, member, self._get_start(state)) for member in speakers]
        if not state.in_round:
            return []
        report = Report(held="but faulty", heard="but faulty") if silent else Report()
        training = state.run_state is RunState.ROUND_TRAIN
        return [
            build_witness(state, member, message)
            for member in speakers
            for message in self._menu.build_messages(state, member, report, complete=training)
        ]

    def _get_start(self, state: Coordinator) -> str:
        digests = {value: name for name, value in DIGESTS.items()}
        return "X" if state.certified.digest == ZERO32 else digests[state.certified.digest]
