"""What is known of one run now, folded from event logs, or from what its backend answers: all views draw this.

    view = RunView()
    for entry in read_entries(folder):
        view.take(entry)
    view.step, view.curve.last, view.get_members(now), view.get_troubles(now)

Nothing here grows with the run: of rounds the last ones are kept, of curves 2,000 points. Texts are cleaned before
anybody is shown them: they may come from strangers.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from psyche.analysis.accounts import SERVER, Accounts
from psyche.analysis.audits import AuditsView
from psyche.analysis.members import (
    MAX_TEXT_BYTES,
    LossPoint,
    MemberView,
    WaitView,
    clean_name,
    describe_absence,
    describe_state,
)
from psyche.analysis.series import Series, clean_point, is_loss, make_point
from psyche.analysis.tally import NodeAccount, Place, RoundAccount, sort_nodes
from psyche.analysis.troubles import Trouble, Troubles
from psyche.core.state.enums import ClientState, RunState
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from psyche.telemetry.notable import describe_event
from psyche.telemetry.status import ENDED, LEFT, PHASES, NodeView
from psyche.telemetry.types import describe_wait
from psyche.wire.backend import MemberInfo, Members, RunStatus
from psyche.wire.history import HistoryPoint
from psyche.wire.report import clean_text

LAST_ROUNDS: Final = 50
MAX_LINES: Final = 2_000
MAX_NODES: Final = 1_024  # whose events are taken
MAX_OPEN: Final = 16  # rounds that somebody trains
MAX_MEASURED: Final = 32  # steps whose tensors' figures are kept
MAX_TENSORS: Final = 2_000
MAX_TASKS: Final = 32
KEY_CHARS: Final = 8
Energies = tuple[int, float, float]  # how many were measured; of the update, and of the gradient
PACE_ROUNDS: Final = 20  # whose median says how long a step takes
REFERENCE_S: Final = 30.0  # after so long another client's view of the record counts
STILL_S: Final = 60.0  # a run that has not moved for longer, and for five rounds, stands still
STILL_ROUNDS: Final = 5
LATE_STEPS: Final = 1  # a report is on its way while the next round begins
LATE_S: Final = 10.0  # after the limit of a phase
_AT_REST: Final = frozenset({PHASES[s] for s in (RunState.FINISHED, RunState.PAUSED, RunState.UNINITIALIZED)})


class LineView(NamedTuple):
    """Something worth a line; `number` grows by one, `level` is that of logging."""

    number: int
    t: float
    node: str
    level: int
    text: str


@dataclass(slots=True)
class Passed:
    """What was passed over."""

    torn: int = 0  # lines that are no events
    unknown: int = 0  # events of other versions
    missing: int = 0  # files that are gone


@dataclass(slots=True)
class _OpenRound:
    start: float
    step: int = 0
    losses: dict[str, float] = field(default_factory=dict[str, float])
    tokens: int = 0
    run_tokens: int = 0
    learning_rate: float | None = None


class RunView:
    """Folds events with `take`, or answers of a backend with `take_status`, `take_members` and `take_history`."""

    def __init__(self, name: str = "", keep: int = LAST_ROUNDS) -> None:
        self.name = name  # of the source
        self.run_id = ""
        self.phase = ""
        self.phase_since = 0.0
        self.limit: float | None = None  # when the phase ends at the latest, unix seconds
        self.epoch = self.height = self.step = self.total_steps = 0
        self.epoch_rounds = 0
        self.members = 0  # healthy ones of the epoch
        self.tokens = 0
        self.learning_rate: float | None = None
        self.status: RunStatus | None = None  # of a backend, the newest
        self.curve: Series[HistoryPoint] = Series()
        self.nodes: dict[str, NodeView] = {}
        self.accounts = Accounts(reference="", keep=keep)
        self._notes: deque[tuple[int, Entry]] = deque(maxlen=MAX_LINES)
        self.passed = Passed()
        self.problem = ""  # why the source cannot be read now
        self.problem_since = 0.0
        self.updated = 0.0  # unix seconds of the newest event or answer
        self.revision = 0  # grows with everything that is taken
        self.checkpoints: tuple[str, ...] = ()  # lasting places of the weights
        self.checkpoint_step = 0
        self.info: Members | None = None  # of a backend that says who takes part
        self.name_key: Callable[[bytes], str] = bytes.hex
        self.measured: dict[int, dict[str, Energies]] = {}  # by step and tensor, summed over members
        self.scores: dict[str, types.EvalScore] = {}  # by task: the newest, of the weights of one digest each
        self.text: types.EvalText | None = None  # of the newest weights
        self.audits = AuditsView()
        self._curves: dict[str, Series[LossPoint]] = {}
        self._open: dict[Place, _OpenRound] = {}
        self._is_told = False  # the server's log has the curve
        self._waited: deque[tuple[bytes, ...]] = deque(maxlen=LAST_ROUNDS)
        self._troubles = Troubles()
        self._moved = 0.0
        self._numbers = 0
        self._listed: tuple[int, list[MemberView]] = (-1, [])  # the members, and the revision that they are of
        self._handlers: dict[type[types.Event], Callable[[float, str, Any], None]] = {
            types.StateChanged: self._on_state, types.RoundOver: self._on_round_over, types.Trained: self._on_trained,
            types.RoundStarted: self._on_round, types.ClientStarted: self._on_client,
            types.CheckpointShared: self._on_checkpoint, types.TensorMeasured: self._on_measured,
            types.EvalScore: self._on_score,
            types.EvalText: self._on_text,
            **self._troubles.handlers,
        }  # fmt: skip

    # --- events --------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Fold in an event; those of one node come in their order, those of several roughly by time."""
        t, node, event = entry
        kind = type(event)
        self.revision += 1
        self.updated = max(self.updated, t)
        view = self.nodes.get(node)
        if kind is types.Unknown or (view is None and len(self.nodes) >= MAX_NODES and node != SERVER):
            self.passed.unknown += 1
            return
        if (handler := self._handlers.get(kind)) is not None:
            handler(t, node, event)
        self.audits.take(event)
        if node != SERVER:
            if view is None:
                view = self.nodes[node] = NodeView(node)
            view.update(t, event)
        self.accounts.take(t, node, event)
        if event.level >= types.INFO:
            self._numbers += 1
            self._notes.append((self._numbers, entry))

    def get_lines(self, after: int = 0) -> list[LineView]:
        """What deserved a line, of those that are kept the ones after a number."""
        found: list[LineView] = []
        for number, (t, node, event) in reversed(self._notes):
            if number <= after:
                break
            text = clean_text(describe_event(event), MAX_TEXT_BYTES)
            found.append(LineView(number, t, clean_name(node), event.level, text))
        return found[::-1]

    def _on_state(self, t: float, node: str, event: types.StateChanged) -> None:
        accounts = self.accounts
        if accounts.reference not in (SERVER, node) and (
            node == SERVER or not accounts.reference or t - self._moved > REFERENCE_S
        ):
            accounts.reference = node
        if node != accounts.reference:
            return
        self._move(t, (event.epoch, event.height, PHASES[event.run_state]))
        self.step, self.members = event.step, event.members

    def _move(self, t: float, place: tuple[int, int, str]) -> None:
        if place[0] != self.epoch:
            self._troubles.end_epoch()
        if place != (self.epoch, self.height, self.phase):
            self.epoch, self.height, self.phase = place
            self._moved = self.phase_since = t

    def _on_round_over(self, _t: float, _node: str, event: types.RoundOver) -> None:
        if not self._is_told:
            self._is_told, self.curve = True, Series[HistoryPoint]()
        self.total_steps, self.tokens = event.total_steps, event.tokens
        self._waited.append(event.waited_for)
        self.curve.add(clean_point(make_point(event)))

    def _on_trained(self, t: float, node: str, event: types.Trained) -> None:
        if not is_loss(event.loss):
            return
        self._curves.setdefault(node, Series()).add(LossPoint(event.step + 1, event.loss, event.seconds))
        if self._is_told:
            return
        found = self._open.setdefault((event.epoch, event.height), _OpenRound(t - event.seconds))
        if len(self._open) > MAX_OPEN:
            del self._open[min(self._open)]
        found.step, found.losses[node] = event.step + 1, event.loss
        found.tokens += event.tokens
        found.learning_rate, found.run_tokens = event.learning_rate, event.run_tokens

    def _on_measured(self, _t: float, _node: str, event: types.TensorMeasured) -> None:
        found = self.measured.setdefault(event.step + 1, {})
        if len(self.measured) > MAX_MEASURED:
            del self.measured[min(self.measured)]
        if event.name in found or len(found) < MAX_TENSORS:
            count, update, grad = found.get(event.name, (0, 0.0, 0.0))
            found[event.name] = (count + 1, update + event.update_energy, grad + event.grad_energy)

    def _on_score(self, _t: float, _node: str, event: types.EvalScore) -> None:
        task = clean_name(event.task)
        known = self.scores.get(task)
        is_newer = known is None or (event.step, event.final, event.percent) >= (known.step, known.final, known.percent)
        if is_newer and (known is not None or len(self.scores) < MAX_TASKS):
            self.scores[task] = event

    def _on_text(self, _t: float, _node: str, event: types.EvalText) -> None:
        if self.text is None or event.step >= self.text.step:
            self.text = event

    def _on_round(self, t: float, _node: str, event: types.RoundStarted) -> None:
        """Without a server's log: a round is over when somebody is in a later one."""
        place = (event.epoch, event.height)
        if self._is_told or not self._open or min(self._open) >= place:
            return
        for closed in sorted(one for one in self._open if one < place):
            found = self._open.pop(closed)
            losses, seconds = list(found.losses.values()), max(t - found.start, 1e-3)
            # Of members whose logs are elsewhere it is known how many they are, and what they trained since a step ago.
            is_next = self.curve.last is not None and self.curve.last.step == found.step - 1
            trained = max(found.tokens, found.run_tokens - self.tokens if is_next else 0)
            self.tokens = found.run_tokens or self.tokens + found.tokens
            self.curve.add(
                HistoryPoint(
                    step=found.step, unix=int(t), seconds=seconds, members=max(len(losses), self.members),
                    results=len(losses), loss=statistics.median(losses), least=min(losses), greatest=max(losses),
                    tokens_per_s=trained / seconds, tokens=self.tokens,
                    epoch=closed[0], height=closed[1], learning_rate=found.learning_rate,
                )
            )  # fmt: skip

    def _on_client(self, _t: float, node: str, event: types.ClientStarted) -> None:
        self.run_id = self.run_id or clean_name(event.run_id)
        self._troubles.begin(node)

    def _on_checkpoint(self, _t: float, _node: str, event: types.CheckpointShared) -> None:
        self.checkpoint_step = event.step
        self.checkpoints = (clean_text(event.path, MAX_TEXT_BYTES),)

    # --- a backend's answers -------------------------------------------------------------------------

    def take_status(self, status: RunStatus, t: float | None = None) -> None:
        """Take what a backend says of its run; `t` is when, by the watcher's clock."""
        self.revision += 1
        self.problem, self.status, self.run_id = "", status, clean_name(status.run_id)
        self.updated = status.now_unix if t is None else t
        self._move(self.updated, (status.epoch, status.height, PHASES[RunState(status.run_state)]))
        self.phase_since = status.state_start_unix
        self.limit = float(status.limit_unix) if status.limit_unix else None
        self.step, self.total_steps, self.members = status.step, status.total_steps, status.healthy
        self.epoch_rounds, self.tokens = status.epoch_rounds, status.tokens
        self.learning_rate = status.learning_rate if math.isfinite(status.learning_rate) else None
        self.checkpoints = tuple(clean_text(one, MAX_TEXT_BYTES) for one in status.checkpoint_sources)
        self.checkpoint_step = status.checkpoint_step
        self.audits.take_status(status.verification)
        last = self.curve.last
        if last is not None and last.step > status.step:  # the run went back
            self.curve = Series(point for point in self.curve if point.step <= status.step)

    def take_members(self, members: Members, name_key: Callable[[bytes], str] = bytes.hex) -> None:
        self.revision += 1
        self.info, self.name_key = members, name_key
        believed = (one.report for one in members.members if one.state != ClientState.EJECTED)
        self.audits.take_reports(report for report in believed if report is not None)
        listed = {name_key(one.key) for one in members.members}
        self._curves = {key: curve for key, curve in self._curves.items() if key in listed}
        for one in members.members:
            said = one.report
            if said is not None and is_loss(said.loss):
                curve = self._curves.setdefault(name_key(one.key), Series())
                if curve.last is None or curve.last.step < said.step:
                    curve.add(LossPoint(said.step, said.loss or 0.0))

    def take_history(self, points: Iterable[HistoryPoint]) -> None:
        self.revision += 1
        self.curve.extend(map(clean_point, points))

    def take_problem(self, problem: str, now: float) -> None:
        """Note that the source cannot be read now; the next answer ends that."""
        self.problem_since = self.problem_since if self.problem else now
        self.problem = clean_text(problem, MAX_TEXT_BYTES)
        self.revision += 1

    # --- figures -------------------------------------------------------------------------------------

    @property
    def share_done(self) -> float:
        return min(1.0, self.step / self.total_steps) if self.total_steps else 0.0

    @property
    def step_s(self) -> float | None:
        """Seconds from step to step, by the clock: the median of the last rounds, with what is between them."""
        last = [*self.curve][-PACE_ROUNDS:]
        if len(last) < 2:
            return last[0].seconds or None if last else None
        gaps = [(b.unix - a.unix) / (b.step - a.step) for a, b in pairwise(last)]
        # Clocks of whole seconds make single gaps 0 or 1: the mean of the middle half keeps both, but no pause.
        middle = sorted(gaps)[len(gaps) // 4 : len(gaps) - len(gaps) // 4]
        return math.fsum(middle) / len(middle) or None

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step at the pace of the last rounds; None: not known."""
        pace = self.step_s
        return None if pace is None or not self.total_steps else pace * max(0, self.total_steps - self.step)

    @property
    def loss(self) -> float | None:
        return self.curve.last.loss if self.curve.last is not None else None

    @property
    def tokens_per_s(self) -> float:
        if self.status is not None:
            return self.status.tokens_per_s or (self.curve.last.tokens_per_s if self.curve.last else 0.0)
        return math.fsum(one.tokens_per_s for one in self.get_members())

    @property
    def is_claimed(self) -> bool:
        """Whether the curve is what witnesses on a chain claim."""
        return self.curve.last is not None and self.curve.last.is_claimed

    @property
    def rounds(self) -> list[RoundAccount]:
        """The last rounds, with what each waited for; only of logs."""
        return self.accounts.rounds

    def get_time(self, now: float) -> float:
        """The run's own time when the watcher's clock says `now`: what a backend tells goes by its clock."""
        return now if self.status is None else self.status.now_unix + now - self.updated

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is to happen: the run is over, or its owner has not started it."""
        return self.phase in _AT_REST

    def count_waits(self) -> Counter[str]:
        """In how many of the last rounds each member was waited for last, by its key."""
        if self.info is not None:
            return Counter({self.name_key(one.key): one.waited for one in self.info.members if one.waited})
        if self._waited:
            names = ((key, self.accounts.find_node(key)) for keys in self._waited for key in keys)
            return Counter(name or key.hex() for key, name in names)
        return Counter(one.bound.who for one in self.rounds if one.bound.who and not one.is_drain)

    def get_members(self) -> list[MemberView]:
        """The clients: of a backend as it lists them, of logs by name."""
        if self._listed[0] != self.revision:  # a drawing asks several times, and each time costs members x rounds
            self._listed = (self.revision, self._list_members())
        return self._listed[1]

    def _list_members(self) -> list[MemberView]:
        waits = self.count_waits()
        if self.info is not None:
            points = [*self.curve][::-1]
            return [self._show_info(one, self.info.now_unix, points) for one in self.info.members]
        accounts = [self.accounts.nodes[name] for name in self.nodes if name in self.accounts.nodes]
        names = self.accounts.get_names(self.epoch)
        rounds = [(one.place, one) for one in self.rounds if one.is_decided and not one.is_drain]
        return [
            self._show_node(one, [judged for place, judged in rounds if place in one.present], waits, names)
            for one in sort_nodes(accounts)
        ]

    def _show_node(
        self, account: NodeAccount, judged: Sequence[RoundAccount], waits: Mapping[str, int], names: Mapping[int, str]
    ) -> MemberView:
        view, wait = self.nodes[account.name], self.nodes[account.name].waiting
        done = sum(account.name in one.members for one in judged)
        is_absent = account.away_since is not None and view.epoch == self.epoch and view.phase not in (LEFT, ENDED)
        what = None if wait is None else WaitView(
            clean_text(describe_wait(wait, names), MAX_TEXT_BYTES), wait.until, clean_text(wait.then, MAX_TEXT_BYTES)
        )  # fmt: skip
        return MemberView(
            key=account.name, name=clean_name(account.name), index=view.index, phase=view.phase, epoch=view.epoch,
            height=view.height, step=view.step, loss=view.loss if is_loss(view.loss) else None,
            tokens_per_s=view.tokens_per_s, bytes_sent=view.bytes_sent, bytes_received=view.bytes_received,
            rounds_done=account.rounds_done + done, rounds_missed=account.rounds_missed + len(judged) - done,
            waited=waits.get(account.name, 0), wait=what, heard=view.updated, digest=view.digest,
            error=clean_text(view.get_note(self.updated), MAX_TEXT_BYTES), error_since=view.noted,
            state="away" if account.away_since is not None else "", curve=self._curves.get(account.name),
            absence="its process has ended" if is_absent else "", **_count_missed(account.name, judged),
        )  # fmt: skip

    def _show_info(self, one: MemberInfo, now: int, points: Sequence[HistoryPoint]) -> MemberView:
        said, key = one.report, self.name_key(one.key)
        known = MemberView(
            key=key, name=key[:8], index=one.index, state=describe_state(one), rounds_done=one.credits,
            rounds_missed=max(0, one.due - one.credits), credits=one.credits, waited=one.waited,
            curve=self._curves.get(key), absence=describe_absence(one), silent=one.missed, late=one.late,
        )  # fmt: skip
        if said is None:
            return known
        wait = WaitView(clean_text(said.wait, MAX_TEXT_BYTES)) if said.wait and one.is_connected is not False else None
        hidden = "only the owner may read it" if one.has_error else ""
        heard = float(now - one.report_age_s)
        then = next((point.step for point in points if point.unix <= heard), 0)  # an old report is no lag
        lag = max(0, then - said.step - LATE_STEPS)
        return replace(
            known, name=clean_name(said.name) or key[:8], phase=clean_name(said.phase), epoch=said.epoch,
            height=said.height, step=said.step if lag or one.index is None else max(said.step, self.step), lag=lag,
            loss=said.loss if is_loss(said.loss) else None, tokens_per_s=said.tokens_per_s, bytes_sent=said.bytes_sent,
            bytes_received=said.bytes_received, wait=wait, error=clean_text(said.error, MAX_TEXT_BYTES) or hidden,
            error_since=float(now - one.error_age_s), heard=heard,
        )  # fmt: skip

    def name_member(self, key: bytes) -> str:
        """The member whose key begins so, as the other lines name it."""
        if self.info is not None:
            said = next((one for one in self.info.members if one.key.startswith(key)), None)
            name = "" if said is None or said.report is None else clean_name(said.report.name)
            return name or self.name_key(key)[:KEY_CHARS]
        known = (name for identity, name in self.accounts.keys.items() if identity.startswith(key))
        return clean_name(next(known, "")) or self.name_key(key)[:KEY_CHARS]

    # --- trouble -------------------------------------------------------------------------------------

    def get_troubles(self, now: float) -> list[Trouble]:
        """What keeps the run from going on, now."""
        still = self._find_stillness(now)
        others = self._troubles.find(self.get_members(), self.nodes, self.accounts.find_node, now)
        # Who takes part is of no interest while nothing is to happen.
        shown = [one for one in others if not self.is_at_rest or one.cause not in ("gone", "slow")]
        return [*([] if still is None else [still]), *shown]

    def _find_stillness(self, now: float) -> Trouble | None:
        if self.is_at_rest:
            return None
        if self.problem:
            return Trouble("still", "", self.problem, self.problem_since)
        if not self.phase or not self._moved:
            return None
        if lost := self._find_lost_backend():
            return lost
        patience_s = max(STILL_S, STILL_ROUNDS * (self.step_s or 0.0))
        if self.limit is not None:
            patience_s = max(patience_s, self.limit - self.phase_since + LATE_S)
        is_still = now - self._moved > patience_s
        return Trouble("still", "", self.phase, self._moved) if is_still else None

    def _find_lost_backend(self) -> Trouble | None:
        """What is wrong if none of the clients whose logs are here reaches the record."""
        absent = self._troubles.find_absent(self.accounts.find_node)
        nodes = [view for view in self.nodes.values() if self._is_here(view) and view.node not in absent]
        if not nodes or any(view.note_type is not types.BackendLost for view in nodes):
            return None
        return Trouble(
            "still", "", "no member whose log is here reaches the run's record", max(one.noted for one in nodes)
        )

    def _is_here(self, view: NodeView) -> bool:
        account = self.accounts.nodes.get(view.node)
        is_heard = self.updated - view.updated < REFERENCE_S and view.phase != ENDED
        return is_heard and (account is None or account.away_since is None)


def _count_missed(name: str, judged: Sequence[RoundAccount]) -> dict[str, int]:
    """In how many rounds in a row, up to now, a member was silent or late: in the same way as in the last one."""
    counts = {"silent": 0, "late": 0}
    for one in reversed([one for one in judged if not one.is_void]):
        way = "late" if name in one.trained else "silent"
        if name in one.members or counts["silent" if way == "late" else "late"]:
            break
        counts[way] += 1
    return counts
