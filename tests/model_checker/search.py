"""The search itself: breadth first, so that what it finds is reached by the fewest inputs."""

import gc
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from model_checker.forms import build_copy, compute_form, compute_key, process_normalization
from model_checker.healing import Healer
from model_checker.inputs import Input, Menu, is_refused
from model_checker.invariants import Broken, check_bytes, check_state, check_step, demand
from model_checker.worlds import World
from psyche.core.state.enums import RunState
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.state import Coordinator

SAME_FORM_PER_KEY: Final = 2  # states of one form whose futures are compared, for each key that is looked at


@dataclass
class Settings:
    """How thoroughly, and how far. Each "every" is a sample by the state's key: 1 is all, 0 none."""

    max_states: int = 0  # 0: until nothing is left
    bytes_every: int = 1  # I10
    probe_every: int = 1  # inputs that must be refused
    heal_every: int = 1  # from here on everybody behaves: must come to something
    recheck_every: int = 0  # two states of one form must have the same future
    normalize: bool = True


@dataclass
class Violation:
    """What broke, and the inputs that lead there."""

    what: str
    inputs: list[str]

    def __str__(self) -> str:
        lines = [f"{number:>3}. {name}" for number, name in enumerate(self.inputs, 1)]
        return "\n".join([self.what, f"after {len(lines)} inputs:", *lines])


@dataclass
class Outcome:
    """What a search has seen."""

    world: World
    states: int = 0
    steps: int = 0  # inputs that had an effect
    refused: int = 0  # inputs that must not, and had none
    depth: int = 0  # inputs that the farthest state needs
    ends: dict[str, int] = field(default_factory=dict)  # states that the world does not go beyond
    compared: int = 0  # futures of states of one form that were compared
    healed: int = 0  # states from which honest behaviour was followed to its end
    seconds: float = 0.0
    is_complete: bool = False
    violation: Violation | None = None


@dataclass(slots=True)
class _Node:
    number: int
    key: int
    state: Coordinator
    now: int


class Search:
    """One search through one world."""

    def __init__(
        self, world: World, settings: Settings | None = None, watch: Callable[[Outcome, int], None] | None = None
    ) -> None:
        self._world = world
        self._settings = settings or Settings()
        self._watch = watch
        self._menu = Menu(world)
        self._lens = world.lens
        self._seen: dict[int, int] = {}
        self._parents, self._names = array("q"), array("q")
        self._name_numbers: dict[str, int] = {}
        self._first: dict[int, _Node] = {}  # of keys whose futures are compared
        self._left: dict[int, int] = {}
        self._healer = Healer(world)
        self.outcome = Outcome(world)

    def run(self) -> Outcome:
        """Visit every state; stops at the first violation."""
        began = time.monotonic()
        outcome = self.outcome
        try:
            layer = deque([self._begin()])
            while layer:
                gc.freeze()  # states have no cycles; looking for some among millions takes longer than all else
                layer = self._go_through(layer)
                outcome.depth += bool(layer)
            outcome.is_complete = not self._is_full()
        except _Found as found:
            outcome.violation = found.violation
        finally:
            gc.unfreeze()
        outcome.seconds = time.monotonic() - began
        outcome.healed = self._healer.healed
        return outcome

    def _begin(self) -> _Node:
        state, now = self._healer.build_start()
        process_normalization(state)
        node = self._admit(state, now, -1, "")
        assert node is not None, "the first state is new"
        return node

    def _go_through(self, layer: deque[_Node]) -> deque[_Node]:
        following = deque[_Node]()
        while layer:
            if self._is_full():
                return deque()
            node = layer.popleft()  # what is done with need not be kept
            if not self._is_end(node):
                following += self._expand(node)
            if self._watch is not None:
                self._watch(self.outcome, len(layer) + len(following))
        return following

    def _is_full(self) -> bool:
        return 0 < self._settings.max_states <= self.outcome.states

    def _is_end(self, node: _Node) -> bool:
        state, ends = node.state, self.outcome.ends
        if state.run_state is RunState.FINISHED:
            ends["finished"] = ends.get("finished", 0) + 1
        if state.progress.epoch > self._world.max_epoch and state.run_state is not RunState.FINISHED:
            ends["a later epoch"] = ends.get("a later epoch", 0) + 1
            return True
        return False

    # --- one state

    def _expand(self, node: _Node) -> list[_Node]:
        """The states after this one that are new."""
        found: list[_Node] = []
        state = node.state
        is_probed = self._is_sampled(node.key, self._settings.probe_every)
        try:
            if is_probed:
                self._probe(node)
            for given in self._menu.offer(state, node.now):
                after = self._do(node, given)
                if after is not None:
                    self.outcome.steps += 1
                    child = self._admit(*after, node.number, given.name)
                    found += [child] if child is not None else []
            if is_probed:
                demand("a state that was left has changed", self._compute_key(state, node.now), node.key)
        except Broken as broken:
            raise self._fail(str(broken), node.number) from broken
        return found

    def _do(self, node: _Node, given: Input) -> tuple[Coordinator, int] | None:
        """The state after an input; None where it had no effect.

        Raises:
            _Found: an error that is not a refusal, a refusal that left a mark, or a broken step.
        """
        after, now = build_copy(node.state), node.now
        try:
            now = given.act(after, now)
        except CoordinatorError:
            self._check_untouched(node, after, given)
            return None
        except Exception as error:
            raise self._fail(f"a panic: {error!r}", node.number, given.name) from error
        if after.nonce == node.state.nonce:
            self._check_untouched(node, after, given)
            return (after, now) if now != node.now else None
        try:
            check_step(node.state, after)
        except Broken as broken:
            raise self._fail(str(broken), node.number, given.name) from broken
        if self._settings.normalize:
            process_normalization(after)
        return after, now

    def _check_untouched(self, node: _Node, after: Coordinator, given: Input) -> None:
        if after != node.state:
            raise self._fail("T2: what had no effect changed the state", node.number, given.name)

    def _probe(self, node: _Node) -> None:
        """Inputs that must not have an effect: all on one copy, which must stay as it was."""
        tried = build_copy(node.state)
        for given in self._menu.probe(node.state):
            try:
                refused = is_refused(given, tried, node.now)
            except Exception as error:
                raise self._fail(f"a panic: {error!r}", node.number, given.name) from error
            if not refused or (self._settings.probe_every == 1 and tried != node.state):
                raise self._fail("T2: what must be refused had an effect", node.number, given.name)
            self.outcome.refused += 1
        if tried != node.state:
            raise self._fail("T2: something that was refused changed the state", node.number)

    def _admit(self, state: Coordinator, now: int, parent: int, name: str) -> _Node | None:
        """Look at a state if it is new; None if its like has been seen."""
        key = self._compute_key(state, now)
        number = self._seen.get(key)
        if number is not None:
            self._compare(_Node(number, key, state, now))
            return None
        number = len(self._seen)
        self._seen[key] = number
        self._parents.append(parent)
        self._names.append(self._name_numbers.setdefault(name, len(self._name_numbers)))
        self.outcome.states += 1
        node = _Node(number, key, state, now)
        try:
            check_state(self._world, state, now)
            if self._is_sampled(key, self._settings.bytes_every):
                check_bytes(state)
            if self._is_sampled(key, self._settings.heal_every):
                self._healer.heal(state, now)
        except Broken as broken:
            raise self._fail(str(broken), number) from broken
        except Exception as error:
            raise self._fail(f"a panic further on: {error!r}", number) from error
        if self._is_sampled(key, self._settings.recheck_every):
            self._first[key], self._left[key] = node, SAME_FORM_PER_KEY
        return node

    def _compare(self, other: _Node) -> None:
        """Two states of one form must lead to the same forms: what `forms` leaves out decides nothing."""
        key = other.key
        first = self._first.get(key)
        if first is None or self._left[key] == 0 or other.state == first.state or self._is_end(first):
            return
        self._left[key] -= 1
        self.outcome.compared += 1
        futures = [  # but for inputs that lead back to the same form
            {self._compute_key(*after) for given in self._menu.offer(n.state, n.now) if (after := self._do(n, given))}
            - {key}
            for n in (first, other)
        ]
        if futures[0] != futures[1]:
            raise self._fail(
                "two states of one form have different futures: the form leaves out too much", first.number
            )

    def _compute_key(self, state: Coordinator, now: int) -> int:
        return compute_key(compute_form(state, now, self._lens))

    def _is_sampled(self, key: int, every: int) -> bool:
        return every == 1 or (every > 1 and key % every == 0)

    # --- the way there

    def _fail(self, what: str, number: int, last: str | None = None) -> "_Found":
        names = list(self._name_numbers)
        inputs = [] if last is None else [last]
        while number > 0:
            inputs.append(names[self._names[number]])
            number = self._parents[number]
        return _Found(Violation(what, inputs[::-1]))


class _Found(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.what)
        self.violation = violation
