"""Small runs with honest members, driven step by step: for tests of everything around the state machine.

    run = build_run(members=3, rounds_per_epoch=2)   # joined, waiting
    run.warm_up()                                     # round 0 has begun
    run.run_round()                                   # all witnesses report, the round closes
    run.finish_epoch()                                # to the end of Cooldown

Everything is deterministic: keys, entropy, commitments and digests are hashes of names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.elections import get_verifiers, get_witnesses
from psyche.core.committee.results import compute_results_root
from psyche.core.committee.seeds import Entropy
from psyche.core.encoding.account import encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.limits import NOBODY
from psyche.core.state.messages import (
    Collect,
    HealthCheck,
    Join,
    JudgeChallenge,
    LeaveRun,
    Message,
    NameCheckpoint,
    Pause,
    Recover,
    ReportAudit,
    ReportEquivocation,
    Resume,
    Tick,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.roster import find_slot
from psyche.core.state.state import (
    ZERO32,
    AuditReason,
    Challenge,
    ChallengeState,
    Checkpoint,
    Client,
    ClientState,
    Coordinator,
    Model,
    Round,
    RunState,
    WitnessFlag,
)
from psyche.core.state.timeline import get_attested_round, is_full_digest_height
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_keys, build_state
from psyche.wire.crypto import Identity

MAX_TICKS: Final = 64


@contextmanager
def expect_refusal(state: Coordinator, error: type[CoordinatorError], rule: str = "") -> Iterator[None]:
    """Expect that the block is refused with this error, naming `rule`, and changes no byte of the state (T2)."""
    before, caught = encode_state(state), None
    try:
        yield
    except CoordinatorError as refusal:
        caught = refusal
    assert type(caught) is error, f"{caught!r} instead of {error.__name__}"
    assert rule in str(caught), f"{caught} does not name {rule}"
    assert encode_state(state) == before, f"{error.__name__} changed the state"


def get_equal_keys(identities: Sequence[Identity], number: int) -> tuple[bytes, bytes]:
    """Signer and p2p key of a participant whose two keys are one."""
    key = identities[number].public
    return key, key


@dataclass
class StateMachine(ABC):
    """A state with its clock: the base of everything that fakes a run.

    Entropy is the same in every test run; `draws` counts the values drawn.
    """

    state: Coordinator
    draws: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def unix(self) -> int:
        """Unix seconds; also used as the slot."""

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        """Apply a message now; return whether it changed anything.

        Raises:
            CoordinatorError: names the broken rule; nothing changed.
        """
        return apply(self.state, self.unix, self.unix, sender, message)

    def build_entropy(self) -> bytes:
        """The next 32 bytes of entropy."""
        self.draws += 1
        return build_hash("entropy", self.draws)

    def tick(self, entropy: Entropy | str = "drawn") -> bool:
        """Tick once now; return whether it changed anything."""
        drawn = self.build_entropy() if isinstance(entropy, str) else entropy
        return self.apply(Tick(drawn))

    def settle(self) -> int:
        """Tick until nothing changes (T3); return how many ticks had an effect."""
        for count in range(MAX_TICKS):
            if self.state.halted or not self.tick():
                return count
        raise AssertionError("the state machine does not come to rest")


@dataclass
class Run(StateMachine):
    """A run under test: its state, the clock, and what the members hold and report.

    `now` is unix seconds and the slot. Replace `compute_commitments` or `compute_digest` to make members lie.
    """

    now: int = START_UNIX
    keys: Callable[[int], tuple[bytes, bytes]] = build_keys  # signer and p2p key of a participant
    silent: set[int] = field(default_factory=set)  # members that send nothing at all

    @property
    def unix(self) -> int:
        return self.now

    def wait(self, seconds: int) -> int:
        self.now += seconds
        return self.settle()

    def recover(self, gap_s: int) -> None:
        """Let the backend be away for so long and come back (K2)."""
        self.now += gap_s
        self.apply(Recover(gap_s))

    # --- membership and Warmup

    def join(self, *numbers: int) -> list[int]:
        """Let participants join, by number; return their slots."""
        return [self._join(*self.keys(number)) for number in numbers]

    def _join(self, signer: bytes, p2p: bytes) -> int:
        self.apply(Join(p2p), signer)
        number = find_slot(self.state, signer)
        assert number is not None, "who has joined has a slot"
        return number

    def withdraw(self, number: int, *, epoch: int | None = None, member: int | None = None) -> None:
        """Withdraw a participant; its member index is its number (its slot's, in a first epoch) unless given."""
        named = self.state.progress.epoch if epoch is None else epoch
        self.apply(Withdraw(named, number if member is None else member), self.keys(number)[1])

    def leave(self, number: int) -> None:
        self.apply(LeaveRun(), self.keys(number)[0])

    def eject(self, member: int, *, epoch: int | None = None, height: int | None = None) -> None:
        """Report that a member signed two results."""
        named = self.state.current.height if height is None else height
        self.apply(ReportEquivocation(self.state.progress.epoch if epoch is None else epoch, named, member))

    def accuse(self, member: int, *, sender: int = 0, height: int | None = None, epoch: int | None = None) -> None:
        """Accuse a member of silence as a witness; the sender is a participant's number."""
        epoch = self.state.progress.epoch if epoch is None else epoch
        self.apply(HealthCheck(epoch, self.state.current.height if height is None else height, member),
                   self.keys(sender)[1])  # fmt: skip

    def report(self, verifier: int, target: int = NOBODY, reason: AuditReason = AuditReason.NONE, **more: Any) -> None:
        """Let a verifier of the running round, or of one before it, report what it found."""
        values: dict[str, Any] = {"height": self.state.current.height, "piece": NOBODY if target == NOBODY else 3}
        values |= {"epoch": self.state.progress.epoch, "commitment": build_hash("result", target)}
        message = ReportAudit(member=verifier, target=target, reason=reason, **(values | more))
        self.apply(message, self.state.clients[verifier].p2p)

    def judge(self, juror: int, guilty: bool = True, challenge: int = 0, **more: Any) -> None:
        """Let a member vote on an open challenge."""
        values = {"epoch": self.state.progress.epoch, "height": self.state.current.height} | more
        message = JudgeChallenge(member=juror, challenge=challenge, guilty=int(guilty), **values)
        self.apply(message, self.state.clients[juror].p2p)

    def name_source(self, source: Checkpoint, number: int = 0, digest: bytes | None = None) -> None:
        """Put a place of the certified weights on record, as a participant."""
        mark = self.state.certified
        self.apply(NameCheckpoint(mark.epoch, digest or mark.digest, source), self.keys(number)[1])

    def collect(self, *claims: tuple[int, int | None]) -> None:
        """Pay out earnings of participants: so much, or all that there is."""
        self.apply(Collect(tuple((self.keys(number)[0], amount) for number, amount in claims)))

    def form(self) -> None:
        """Let the waiting time pass: Warmup begins if enough participants have joined."""
        self.wait(self.state.config.waiting_for_members_extra_time)

    def show(self, *members: int, digest: bytes | None = None) -> None:
        """Let members show their weights: the certified ones, or the initial ones."""
        shown = digest or self.get_start_digest()
        for member in members:
            key = self.state.clients[member].p2p
            self.apply(WarmupWitness(self.state.progress.epoch, member, shown), key)

    def get_start_digest(self) -> bytes:
        """The digest that honest members show in Warmup."""
        return self.state.certified.digest if self.state.certified.digest != ZERO32 else build_hash("weights")

    def resume(self) -> None:
        """Let the owner resume a paused run: everybody joins again, up to round 0 (P9)."""
        self.apply(Resume())
        self.rejoin()
        self.warm_up()

    def warm_up(self) -> "Run":
        """Go from joined members to round 0."""
        if self.state.run_state is RunState.WAITING_FOR_MEMBERS:
            self.form()
        self.show(*(m for m in self.get_members() if m not in self.silent))
        self.settle()
        if self.state.run_state is RunState.WARMUP:
            self.wait(self.state.config.warmup_time)
        return self

    def get_client_states(self) -> list[ClientState]:
        return [client.state for client in self.state.clients]

    def get_members(self) -> list[int]:
        return [m for m, client in enumerate(self.state.clients) if client.state is ClientState.HEALTHY]

    # --- rounds

    def compute_commitments(self, round_: Round) -> dict[int, bytes]:
        """The commitment of each member with a batch in a round."""
        owed = compute_assignments(round_, self.state.config)
        epoch = self.state.progress.epoch
        return {member: build_hash("result", epoch, round_.height, member) for member in owed}

    def compute_digest(self) -> bytes:
        """D(h), the same for all members."""
        return build_hash("digest", self.state.progress.epoch, self.state.current.height)

    def build_witness(self, member: int, *, silent: Collection[int] = (), **overrides: Any) -> WitnessMessage:
        """The honest report of a witness that holds everything except from silent members; fields can be overridden.

        `commitments` may be given: those of the members in the attested round.
        """
        state, round_ = self.state, self.state.current
        quiet = compute_bits({*silent, *self.silent})
        attested = get_attested_round(state)
        held = overrides.pop("held", 0 if attested is None else attested.members & ~quiet)
        known = overrides.pop("commitments", None)
        if known is None:
            known = {} if attested is None else self.compute_commitments(attested)
        height = 0 if attested is None else attested.height
        full = WitnessFlag.FULL_DIGEST
        if state.metadata.num_parameters and not is_full_digest_height(state.config, state.epoch, round_.height):
            full = WitnessFlag(0)
        message = WitnessMessage(
            epoch=state.progress.epoch,
            height=round_.height,
            member=member,
            flags=WitnessFlag.COMPLETE | full,
            at_s=1,
            held=held,
            heard=round_.members & ~quiet,
            missing=0,
            broadcast_bloom=compute_bloom(round_.seed, member, [known[m] for m in get_members(held) if m in known]),
            results_root=compute_results_root(state.progress.epoch, height, held, known),
            state_digest=self.compute_digest(),
        )
        return replace(message, **overrides)

    def send(self, message: WitnessMessage) -> None:
        """Put a witness message on record, signed by the member's p2p key."""
        self.apply(message, self.state.clients[message.member].p2p)

    def get_speaking_witnesses(self, silent: Collection[int] = ()) -> list[int]:
        """The elected witnesses of the running round that can report and are not silent."""
        able = {m for m in self.get_members() if m not in self.silent and m not in silent}
        done = {record.member for record in self.state.current.witnesses}
        return [m for m in get_witnesses(self.state.current) if m in able and m not in done]

    def witness_all(self, silent: Collection[int] = (), **overrides: Any) -> None:
        """Let all witnesses report, except the silent ones."""
        speaking = self.get_speaking_witnesses(silent)
        for message in [self.build_witness(member, silent=silent, **overrides) for member in speaking]:
            self.send(message)

    def run_round(self, silent: Collection[int] = (), **overrides: Any) -> Round:
        """Run one whole round: a second passes, the witnesses report, and it closes, if need be by time-out.

        Returns the closed round; the next phase has begun.
        """
        round_ = self.state.current
        self.wait(1)
        self.witness_all(silent, **overrides)
        self.settle()
        for _ in range(2):
            if self.state.current is round_ and self.state.in_round:
                self.wait(max(self.state.config.max_round_train_time, self.state.config.round_witness_time))
        return round_

    def run_rounds(self) -> Iterator[Round]:
        while self.state.in_round:
            yield self.run_round()

    def finish_epoch(self) -> "Run":
        """Run the remaining rounds, and Cooldown."""
        for _ in self.run_rounds():
            pass
        self.wait(self.state.config.cooldown_time)
        return self

    def rejoin(self) -> None:
        """Let all members of the last epoch that may join do so."""
        for client in self.state.clients:
            self._rejoin(client)

    def _rejoin(self, client: Client) -> None:
        if client.state is not ClientState.EJECTED:
            self.apply(Join(client.p2p), client.signer)


def build_run(members: int = 3, *, model: Model | None = None, **config: Any) -> Run:
    """A run in WaitingForMembers with this many joined participants; keywords override the configuration."""
    run = Run(build_state(build_config(**config), model))
    run.join(*range(members))
    return run


def build_paused_run() -> Run:
    """Three members, one epoch of two steps certified, paused."""
    run = build_run(3).warm_up()
    run.apply(Pause())
    run.finish_epoch()
    assert run.state.run_state is RunState.PAUSED
    return run


def build_warmup(members: int = 3, **config: Any) -> Run:
    run = build_run(members, **config)
    run.form()
    assert run.state.run_state is RunState.WARMUP
    return run


def build_training(members: int = 4, rounds: int = 0, **config: Any) -> Run:
    """A run in RoundTrain of a long epoch, after that many honest rounds."""
    run = build_run(members, **{"rounds_per_epoch": 30, **config}).warm_up()
    for _ in range(rounds):
        run.run_round()
    return run


def build_cooldown(members: int = 3, *, model: Model | None = None, **config: Any) -> Run:
    """A run in Cooldown after an epoch of one round, which was certified."""
    run = build_run(members, model=model, **{"rounds_per_epoch": 1, **config}).warm_up()
    list(run.run_rounds())
    assert run.state.run_state is RunState.COOLDOWN
    return run


# --- accusations and juries


def find_verifiers(run: Run) -> list[int]:
    return [m for m in get_verifiers(run.state.current, run.state.config) if m in run.get_members()]


def go_to_verifiers(run: Run, least: int = 1) -> list[int]:
    """Play rounds until one has so many verifiers, and two rounds before it."""
    while len(find_verifiers(run)) < least or run.state.current.height < 2:
        run.run_round()
    return find_verifiers(run)


def accuse(run: Run, reason: AuditReason = AuditReason.GRADIENT, target: int | None = None) -> tuple[int, int]:
    """Let a verifier accuse a member; return both."""
    verifier = next(m for m in go_to_verifiers(run) if m != target)
    named = next(m for m in run.get_members() if m not in find_verifiers(run)) if target is None else target
    run.report(verifier, named, reason)
    return verifier, named


def get_open(run: Run) -> list[Challenge]:
    return [one for one in run.state.challenges if one.state is ChallengeState.OPEN]


def convene(run: Run, number: int = 0) -> list[int]:
    """Play up to the round of a challenge's jury; return the jury."""
    challenge = run.state.challenges[number]
    while run.state.current.height < challenge.deadline_height - 1:
        run.run_round()
    return find_jury(run, number)


def find_jury(run: Run, number: int = 0) -> list[int]:
    challenge = run.state.challenges[number]
    parties = (challenge.target, challenge.verifier)
    return [m for m in get_witnesses(run.state.current) if run.state.clients[m].slot not in parties]


def vote(run: Run, jury: list[int], *, guilty: bool, number: int = 0) -> int:
    """Let jurors vote as long as the challenge is open; return how many did."""
    for count, juror in enumerate(jury):
        if run.state.challenges[number].state is not ChallengeState.OPEN:
            return count
        run.judge(juror, guilty, number)
    return len(jury)


def is_refused(run: Run, juror: int, number: int = 0) -> bool:
    try:
        run.judge(juror, challenge=number)
    except CoordinatorError:
        return True
    return False
