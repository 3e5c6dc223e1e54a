"""What a run owes its clients (I5): it heals, it certifies its epochs, and it ends with success."""

from typing import Final

import trio

from psyche.core.committee.elections import compute_quorum
from psyche.core.state.bits import get_members
from psyche.core.state.state import ZERO32, ClientState, Coordinator, Round, RunState
from psyche.core.state.timeline import get_round
from psyche.sim.faults import BitFlip
from psyche.sim.invariants.views import Check, ClientView, WorldView
from psyche.sim.scenarios.scenario import compute_patience_s, compute_transition_s
from psyche.telemetry import types

QUIET_S: Final = 60.0  # the after-effects of a fault, such as a trainer that hangs, are over by then
HEALING_DIGESTS: Final = 3  # one that shows the fault, one during the healing, one that comes late
EPOCHS: Final = 2  # slowest epochs to wait for: the one in which a fault ends may be given up


class Liveness:
    """Follows a world; `check` notes a violation if its condition does not hold."""

    def __init__(self, world: WorldView, check: Check) -> None:
        self._world = world
        self._check = check
        self._fault_at = 0.0  # when a fault last began or ended
        self._disturbed_at = -QUIET_S  # the same, but for flipped weights
        self._run_state = RunState.UNINITIALIZED
        self._height = 0
        self._certified = (0.0, -1)  # (when the newest weights were certified, their step)
        self._digests: dict[str, tuple[int, int, bytes]] = {}  # by client: epoch, height and digest of the last apply
        self._steady: set[bytes] = set()  # keys of members that were neither late nor absent in the last round
        self._struck: dict[str, int] = {}  # by client: number of trainer faults when its weights were last right
        self._wrong: dict[str, int] = {}  # by client: number of agreed digests in a row that its weights contradict

    def take_event(self, node: str, event: types.Event) -> None:
        match event:
            case types.Applied():
                self._digests[node] = (event.epoch, event.height, event.digest)
            case types.Fault() | types.FaultOver():
                self._fault_at = trio.current_time()
                if event.what != BitFlip.kind:
                    self._disturbed_at = self._fault_at
            case _:
                pass

    def take_record(self, state: Coordinator) -> None:
        """Take the state after one more record."""
        if state.certified.step != self._certified[1]:
            self._certified = (trio.current_time(), state.certified.step)
        if self._run_state is RunState.ROUND_WITNESS and state.run_state is not RunState.ROUND_WITNESS:
            closed = get_round(state, self._height)
            if closed is not None and closed.agreed_digest != ZERO32:
                self._count_wrong(state, closed)
            self._steady = {client.p2p for client in state.clients if not client.late and not client.missed}
        self._run_state, self._height = state.run_state, state.current.height

    def _count_wrong(self, state: Coordinator, closed: Round) -> None:
        """S7: a member with wrong weights heals, if nothing else is wrong."""
        healthy = {client.p2p for client in state.clients if client.state is ClientState.HEALTHY}
        wrong = self._find_wrong(state, closed) if state.in_round else []
        self._wrong = {host.name: self._wrong.get(host.name, 0) + 1 for host in wrong}
        for host in wrong:
            count = self._wrong[host.name]
            healed = f"{host.name} has the agreed weights again within {HEALING_DIGESTS} agreed digests"
            self._check(count <= HEALING_DIGESTS, "I5", healed, f"they contradict {count}")
            self._check(host.key in healthy, "I5", f"{host.name} heals as a member", "it is none any more")

    def _find_wrong(self, state: Coordinator, closed: Round) -> list[ClientView]:
        """The members of a round with wrong weights; empty if they are too many, or if something else is wrong."""
        world = self._world
        if world.under_way or trio.current_time() - self._disturbed_at < QUIET_S:
            return []
        members = {state.clients[member].p2p for member in get_members(closed.members)}
        agreed = (state.progress.epoch, closed.height, closed.agreed_digest)
        wrong = [
            host for host in world.clients
            if host.key in members and host.is_alive and host.is_corrupt
            and self._digests.get(host.name) != agreed
        ]  # fmt: skip
        self._struck |= {host.name: host.struck for host in world.clients if host not in wrong}
        bad = sum(host.key in members and (host in wrong or not host.is_honest) for host in world.clients)
        if len(members) - bad < compute_quorum(len(members)):  # if equally wrong, they may have won the vote
            return []
        return [host for host in wrong if host.is_honest and self._is_owed(host)]

    def _is_owed(self, host: ClientView) -> bool:
        """Whether it must heal: one fault hit it in good standing; a second one, in its replay, would make it leave."""
        alone = host.struck - self._struck.get(host.name, 0) <= 1
        return alone and (host.key in self._steady or host.name in self._wrong)

    def find_excuse(self) -> str:
        """The reason why a run with more liars than the protocol tolerates may stand still; empty if there is none."""
        if self._is_withheld():
            return "only a liar has the certified weights, and gives them to nobody"
        return "too many of the proven members lie" if self._is_outvoted() else ""

    def _is_withheld(self) -> bool:
        """Whether only liars have the certified weights: the run does not go on while one of them claims them (P5)."""
        certified = self._world.shadow.state.certified.digest
        holders = [host for host in self._world.clients if certified != ZERO32 and host.has_weights(certified)]
        return any(host.is_alive for host in holders) and not any(host.is_honest for host in holders)

    def _is_outvoted(self) -> bool:
        """Whether the honest are no quorum: an epoch has no more newcomers than proven members (M10), and many lie.

        False where no honest newcomer waits for its turn.
        """
        proven = {slot.p2p for slot in self._world.shadow.state.registry.slots if slot.proven}
        honest = [host.key in proven for host in self._world.clients if host.is_honest]
        liars = sum(host.key in proven for host in self._world.clients if not host.is_honest)
        all_proven = sum(honest) + liars
        newcomers = min(all_proven, len(honest) - sum(honest))
        return (
            newcomers > 0
            and sum(honest) < compute_quorum(all_proven)
            and sum(honest) + newcomers < compute_quorum(all_proven + newcomers)
        )

    def has_stalled(self) -> bool:
        """Whether no epoch was certified for longer than a run may need (P3)."""
        world = self._world
        if world.is_finished or not world.owes_progress():
            return False
        return self._compute_wait() > EPOCHS * self._compute_epoch()

    def _compute_wait(self) -> float:
        """Seconds since the last certification, or since nothing is wrong any more if that is later."""
        return trio.current_time() - max(self._world.quiet_since, self._certified[0])

    def _compute_epoch(self) -> float:
        """The longest time an epoch may take, in seconds."""
        config = self._world.config
        transition_s = compute_transition_s(self._world.scenario)
        round_s = config.max_round_train_time + config.round_witness_time + 2 * transition_s
        patience_s = compute_patience_s(config, self._world.scenario.faults, transition_s)
        return patience_s + (config.rounds_per_epoch + 3) * round_s

    def check_epochs(self) -> None:
        """P3: without faults, epochs are certified; the run does not give up one after the other."""
        holds = not self.has_stalled() or bool(self.find_excuse())
        self._check(holds, "I5", "newly certified weights", f"none for {self._compute_wait():.0f} s")

    def check_end(self) -> None:
        """P8: a finished run lets its clients end, unless a fault is still under way."""
        world = self._world
        quiet = not world.under_way and trio.current_time() - self._fault_at >= QUIET_S
        if not (world.is_finished and quiet and world.scenario.must_advance):
            return
        for host in world.clients:
            if host.is_honest:
                self._check(not host.is_alive, "I5", f"{host.name} ends when the run is finished", "it runs on")
                self._check(not host.code, "I5", f"{host.name} ends with success", f"code {host.code}")
