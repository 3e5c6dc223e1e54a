"""How many cheats are put out within 20 rounds at 5 % verification, and what kept the others in (V7, V12).

    python benchmarks/conviction.py [--quick] [--seeds 8]

The state machine itself draws trainers, verifiers and juries, and counts accusations and votes of members whose work
and verdicts are played: cheats fake all of their pieces or each other one, 16 samples a member. Where they collude,
three in ten members cheat, pass each other as verifiers and acquit each other as jurors.
"""

import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from _table import build_parser, finish, print_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from kits.runs import Run, build_run

from psyche.core.committee.audits import AuditTask, compute_audits
from psyche.core.rules.audits import find_entry, find_jury, get_doubted
from psyche.core.state.state import AuditReason, ChallengeState, ClientState
from psyche.core.state.timeline import get_round

ROUNDS: Final = 20
SAMPLES: Final = 16  # of a member, and pieces of its batch
GRADIENT: Final = AuditReason.GRADIENT


class Case(NamedTuple):
    members: int
    cheats: int
    share: float  # of its pieces that a cheat fakes
    is_colluding: bool


CASES: Final = tuple(
    Case(members, members * 3 // 10 if is_colluding else members // 8, share, is_colluding)
    for members in (64, 256)
    for is_colluding in (False, True)
    for share in (1.0, 0.5)
)


@dataclass
class Played:
    """One epoch, and what became of each cheat."""

    run: Run
    case: Case
    draw: random.Random
    cheats: set[int]
    waiting: list[tuple[int, int, list[AuditTask]]] = field(default_factory=list)  # round, verifier, failed audits
    found: Counter[int] = field(default_factory=Counter)  # cheat -> audits in which honest verifiers saw it cheat
    accused: Counter[int] = field(default_factory=Counter)

    def is_in(self, member: int) -> bool:
        return self.run.state.clients[member].state is ClientState.HEALTHY

    def is_friend(self, member: int) -> bool:
        return self.case.is_colluding and member in self.cheats

    def play_round(self) -> None:
        self._audit()
        self._accuse(self.run.state.current.height - 1)  # what this round can still take of the one before
        for number, challenge in enumerate(self.run.state.challenges):
            if challenge.state is ChallengeState.OPEN and not challenge.voters:
                self._judge(number)
        self._accuse(-1)
        self.run.run_round()

    def _audit(self) -> None:
        state, found = self.run.state, defaultdict[int, list[AuditTask]](list)
        height = state.current.height
        audited = get_round(state, height - 1) if height else None
        if audited is None:
            return
        for task in compute_audits(state.current, audited, state.config, get_doubted(state, height)):
            is_fake = task.target in self.cheats and not task.is_report and self.draw.random() < self.case.share
            if is_fake and not self.is_friend(task.verifier):
                found[task.verifier].append(task)
                self.found[task.target] += 1
        self.waiting += [(height, verifier, tasks) for verifier, tasks in found.items()]

    def _accuse(self, last: int) -> None:
        """Accuse whom a challenge opens against; reports of rounds up to `last` wait no longer."""
        left: list[tuple[int, int, list[AuditTask]]] = []
        for height, verifier, tasks in self.waiting:
            if not self.is_in(verifier):
                continue
            free = [t for t in tasks if find_entry(self.run.state, verifier, t.target) is not None]
            if not free and height > last:
                left.append((height, verifier, tasks))
                continue
            self.run.report(verifier, (free or tasks)[0].target, GRADIENT, height=height)
            self.accused.update(task.target for task in free[:1])
        self.waiting = left

    def _judge(self, number: int) -> None:
        for juror in find_jury(self.run.state, self.run.state.challenges[number]) or ():
            if self.run.state.challenges[number].state is ChallengeState.OPEN and self.is_in(juror):
                self.run.judge(juror, not self.is_friend(juror), number)

    def tell(self, cheat: int) -> str:
        if not self.is_in(cheat):
            return "out"
        if self.accused[cheat]:
            return "no jury yet"
        return "no entry" if self.found[cheat] else "not found"


def play(case: Case, seed: int) -> Counter[str]:
    batch = SAMPLES * case.members
    run = build_run(
        case.members, verification_percent=5, convict=True, rounds_per_epoch=3 * ROUNDS, witness_nodes=0,
        total_steps=9 * ROUNDS, global_batch_size_start=batch, global_batch_size_end=batch,
    )  # fmt: skip
    run.draws = seed * 10_000
    run.warm_up()
    draw = random.Random(seed)
    played = Played(run, case, draw, set(draw.sample(range(case.members), case.cheats)))
    for _ in range(ROUNDS):
        played.play_round()
    honest = sum(not played.is_in(member) for member in range(case.members) if member not in played.cheats)
    return Counter(played.tell(cheat) for cheat in played.cheats) + Counter({"honest out": honest})


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="epochs of each case")
    args = parser.parse_args()
    rows: list[list[object]] = []
    for case in CASES[:4] if args.quick else CASES:
        told = sum((play(case, seed) for seed in range(1 if args.quick else args.seeds)), Counter[str]())
        cheats = told.total() - told["honest out"]
        kept = [told[why] for why in ("not found", "no entry", "no jury yet", "honest out")]
        what = f"{'all' if case.share == 1 else 'half'}{', colluding' if case.is_colluding else ''}"
        rows.append([case.members, what, cheats, told["out"], f"{told['out'] / cheats:.1%}", *kept])
    columns = ("members", "faked", "cheats", "put out", "", "not found", "no entry", "no jury yet", "honest out")
    print_table(f"Put out within {ROUNDS} rounds", columns, rows, block="conviction")
    finish(args, {"rows": rows})


if __name__ == "__main__":
    main()
