"""Random events that go deep: a run that mostly does what runs do, with moods that last, and strays of every kind.

A burst is what happens at a stroke: members join, show their weights, report, are accused, time passes. A mood says
who is silent, lazy or lying for a while, since two rounds in a row of the same trouble do what one does not.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from differential.backends import Backend
from differential.pair import Pair, Seen
from differential.strays import draw_stray
from differential.worlds import draw_pair
from psyche.core.committee.elections import get_verifiers, get_witnesses
from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.state import messages as msg
from psyche.core.state.limits import BLOOM_BIT_CAP, BLOOM_BITS, BLOOM_HASHES, MAX_CLIENTS, NOBODY
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, ChallengeState, Checkpoint, CheckpointKind, RunState, WitnessFlag
from psyche.core.state.timeline import get_attested_round, get_round, is_full_digest_height
from psyche.testing.builders import build_hash, build_keys

COMPLETE, FULL, NONE = WitnessFlag.COMPLETE, WitnessFlag.FULL_DIGEST, WitnessFlag.NO_DIGEST
ALL: Final = COMPLETE | FULL | NONE
MOST_IDLE_BURSTS: Final = 6
LAZY_SHARE: Final = 0.3
STYLES: Final = ("honest", "honest", "honest", "honest", "split", "no digest", "no root", "odd")


@dataclass
class Tally:
    """What random events have come across."""

    events: int = 0
    seen: Counter[Seen] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)


@dataclass
class Mood:
    """What members do for a while; members are bits."""

    silent: int = 0  # say nothing and are not heard
    lazy: int = 0  # are heard and deliver nothing
    mute: int = 0  # are heard, and do not report as witnesses
    style: str = "honest"
    forgetful: bool = False  # nobody shows the certified weights
    bursts: int = 1


@dataclass
class Player:
    """Plays random bursts in a pair."""

    pair: Pair
    people: int
    draw: Random
    mood: Mood = field(default_factory=Mood)
    lazy: int | None = None  # the slot of somebody who never delivers
    _idle: int = 0  # bursts in a row that led nowhere

    def play(self, events: int) -> None:
        """Play so many events, or until the run is finished or stuck.

        Raises:
            Difference: core and the Rust rules disagree.
        """
        while len(self.pair.events) < events and self._idle < MOST_IDLE_BURSTS:
            nonce, run_state = self.pair.state.nonce, self.pair.state.run_state
            self._play_burst()
            is_stuck = run_state is self.pair.state.run_state is RunState.WAITING_FOR_MEMBERS
            is_still = self.pair.state.nonce == nonce or run_state is RunState.FINISHED
            self._idle = self._idle + 1 if is_stuck or is_still else 0

    def _happens(self, chance: float) -> bool:
        return self.draw.random() < chance

    def _play_burst(self) -> None:
        self.mood.bursts -= 1
        if self.mood.bursts <= 0:
            self.mood = self._draw_mood()
        if self._happens(0.04):
            self.pair.slot = None if self._happens(0.5) else self.draw.choice((0, 7, 1 << 40, (1 << 64) - 1))
        if self._happens(0.12):
            self._stray()
        state = self.pair.state
        if state.run_state is RunState.WAITING_FOR_MEMBERS:
            self._wait_for_members()
        elif state.run_state is RunState.WARMUP:
            self._warm_up()
        elif state.in_round:
            self._play_round()
        elif state.run_state is RunState.COOLDOWN:
            self._cool_down()
        else:
            self._stand_still()

    def _draw_mood(self) -> Mood:
        draw = self.draw

        def some(chance: float) -> int:
            return sum(1 << m for m in range(len(self.pair.state.clients)) if draw.random() < chance)

        mood = Mood(style=draw.choice(STYLES), bursts=draw.randint(1, 12), forgetful=draw.random() < 0.12)
        trouble = draw.random()
        if trouble < 0.25:
            mood.silent = some(0.15) if trouble < 0.2 else some(0.6)
        if 0.15 < trouble < 0.4:
            mood.lazy = some(0.2)
        if 0.35 < trouble < 0.55:  # only rounds that close by time-out let a silent witness be accused (H4)
            mood.mute, mood.style, mood.bursts = some(0.25), draw.choice(("no root", "no root", mood.style)), 8
        return mood

    def _find_lazy(self) -> int:
        return sum(1 << m for m, client in enumerate(self.pair.state.clients) if client.slot == self.lazy)

    # --- phases

    def _wait_for_members(self) -> None:
        numbers = list(range(self.people + 1))
        self.draw.shuffle(numbers)
        for number in numbers[: self.draw.choice((len(numbers), len(numbers), self.draw.randint(0, len(numbers))))]:
            self._join(number)
        if self._happens(0.15):
            self.pair.attempt(msg.ReclaimSlot())
        state = self.pair.state
        if len(state.registry.slots) == MAX_CLIENTS:
            self._join(self.draw.randint(500, 505))  # who has no slot
        self._tick(self.draw.choice((0, 1, state.config.waiting_for_members_extra_time)))

    def _join(self, number: int) -> None:
        signer, p2p = build_keys(number)
        if self._happens(0.04):
            p2p = build_keys(self.draw.randint(0, self.people))[1]
        until = self.pair.now + self.draw.choice((0, 1, 9, 60)) if self._happens(0.1) else 0
        self.pair.attempt(msg.Join(p2p, until), signer)

    def _warm_up(self) -> None:
        state, draw = self.pair.state, self.draw
        members = list(range(len(state.clients)))
        draw.shuffle(members)
        camps = draw.choice((1, 1, 1, 2, 3, 6))
        for member in members[: draw.choice((len(members), len(members), draw.randint(0, len(members))))]:
            if self.mood.silent >> member & 1 or state.run_state is not RunState.WARMUP:
                continue
            certified = state.certified.digest != ZERO32
            camp = draw.randint(1, camps)
            digest = state.certified.digest if certified else build_hash("weights", camp)
            if self.mood.forgetful and certified:
                digest = build_hash("lost")
            self.pair.attempt(msg.WarmupWitness(state.progress.epoch, member, digest), self._get_key(member))
            if self._happens(0.08):
                self._leave_somehow()
            if self._happens(0.1):
                self._tick(draw.choice((0, 1, 4)))
        if self._happens(0.03):
            self.pair.attempt(msg.Pause())
        self._tick(draw.choice((0, 1, state.config.warmup_time // 2, state.config.warmup_time)))

    def _play_round(self) -> None:
        state, draw = self.pair.state, self.draw
        height = state.current.height
        if self.mood.mute or self._happens(0.2):
            self._accuse_all()
        if self._happens(0.6):
            self._audit_all()
        place = 0
        for place, member in enumerate(get_witnesses(state.current)):
            quiet = (self.mood.silent | self.mood.mute) >> member & 1
            if quiet or self._happens(0.04) or not state.in_round or state.current.height != height:
                continue
            self.pair.attempt(self._draw_report(member, place), self._get_key(member))
            if self._happens(0.03):
                self._tick(0)
        if self._happens(0.08):
            self._leave_somehow()
        if self._happens(0.06):
            self._join(draw.randint(0, self.people))
        if self._happens(0.02):
            self._eject_somebody()
        if self._happens(0.02):
            self.pair.attempt(msg.Pause())
        config = state.config
        self._tick(draw.choice((0, 1, 1, 1, 2, config.max_round_train_time)))
        if state.in_round and state.current.height == height and self._happens(0.8):
            self._tick(max(config.max_round_train_time, config.round_witness_time))

    def _audit_all(self) -> None:
        """Verifiers of the running round and of the one before report; jurors of open challenges vote."""
        state, draw = self.pair.state, self.draw
        if not state.in_round or not state.config.verification_percent:
            return
        epoch, height = state.progress.epoch, state.current.height
        for late in (0, 1):
            found = get_round(state, height - late) if height >= late else None
            for verifier in get_verifiers(found, state.config) if found is not None else ():
                target = draw.choice((*range(len(state.clients)), NOBODY))
                reason = 0 if target == NOBODY else draw.choice((1, 2, 5, 5, 9))
                piece = NOBODY if target == NOBODY else draw.randint(0, 9)
                report = msg.ReportAudit(epoch, height - late, verifier, target, piece, reason, build_hash("result"))
                if self._happens(0.3):
                    self.pair.attempt(report, self._get_key(verifier))
        for number, one in enumerate(state.challenges):
            guilty = int((one.target + one.height) % 2)
            for juror in range(len(state.clients)) if one.state is ChallengeState.OPEN else ():
                if self._happens(0.6):
                    vote = msg.JudgeChallenge(epoch, height, juror, number, guilty ^ self._happens(0.1))
                    self.pair.attempt(vote, self._get_key(juror))

    def _accuse_all(self) -> None:
        state = self.pair.state
        for member in range(len(state.clients)):
            if state.in_round and (self._happens(0.1) or self.mood.mute >> member & 1):
                accuser = build_keys(self.draw.randint(0, self.people))[self.draw.randint(0, 1)]
                self.pair.attempt(msg.HealthCheck(state.progress.epoch, state.current.height, member), accuser)

    def _cool_down(self) -> None:
        state, draw = self.pair.state, self.draw
        for _ in range(draw.choice((0, 0, 1, 3, 6))):
            if state.clients:
                self._name_checkpoint(draw.randrange(len(state.clients)))
        if self._happens(0.05):
            self.pair.attempt(msg.Pause())
        if self._happens(0.08):
            self._eject_somebody()
        self._tick(draw.choice((0, 1, state.config.cooldown_time)))

    def _name_checkpoint(self, member: int) -> None:
        mark, draw = self.pair.state.certified, self.draw
        kind = draw.choice((CheckpointKind.HUB, CheckpointKind.HUB, CheckpointKind.GCS, CheckpointKind.LOCAL))
        revision = None if kind is CheckpointKind.LOCAL else draw.choice((None, "", "main"))
        source = Checkpoint(kind, f"org/{draw.randint(0, 6)}", revision)
        self.pair.attempt(msg.NameCheckpoint(mark.epoch, mark.digest, source), self._get_key(member))

    def _stand_still(self) -> None:
        for _ in range(self.draw.randint(0, 9)):
            self._stray()
        self.pair.now += self.draw.choice((0, 1, 50))
        self.pair.attempt(msg.Resume())

    # --- what happens at any time

    def _stray(self) -> None:
        event = draw_stray(self.draw, self.pair, self.people)
        if event is not None:
            self.pair.attempt(*event)

    def _leave_somehow(self) -> None:
        state, draw = self.pair.state, self.draw
        if self._happens(0.4):
            self.pair.attempt(msg.LeaveRun(), build_keys(draw.randint(0, self.people))[0])
        elif state.clients:
            member = draw.randrange(len(state.clients))
            self.pair.attempt(msg.Withdraw(state.progress.epoch, member), self._get_key(member))

    def _eject_somebody(self) -> None:
        state = self.pair.state
        if state.clients:
            member = self.draw.randrange(len(state.clients))
            for _ in range(self.draw.choice((1, 1, 2))):
                self.pair.attempt(msg.ReportEquivocation(state.progress.epoch, state.current.height, member))

    def _tick(self, seconds: int) -> None:
        """Let time pass; tick until nothing changes, or a few times."""
        self.pair.now += seconds if not self._happens(0.01) else -40
        for _ in range(self.draw.choice((1, 2, 8, 8, 8))):
            entropy: Entropy = self.pair.build_entropy()
            if self._happens(0.04):
                entropy = self.draw.choice((None, EXPIRED))
            if not self.pair.attempt(msg.Tick(entropy)):
                return

    def _get_key(self, member: int) -> bytes:
        client = self.pair.state.clients[member]
        return client.signer if self._happens(0.15) else client.p2p

    # --- reports

    def _draw_report(self, member: int, place: int) -> WitnessMessage:
        """What a witness says in this mood; `place` is its place among the elected."""
        state, mood, draw = self.pair.state, self.mood, self.draw
        round_, attested = state.current, get_attested_round(state)
        due = 0 if attested is None else attested.members
        held = due & ~(mood.silent | mood.lazy | self._find_lazy())
        heard = round_.members & ~mood.silent
        digest, flags, root = build_hash("digest", state.progress.epoch, round_.height), COMPLETE, 0
        if not state.metadata.num_parameters or is_full_digest_height(state.config, state.epoch, round_.height):
            flags |= FULL
        if mood.style == "split":
            held &= 1 << member
            digest = build_hash("digest of", place % 2) if state.progress.epoch % 2 else digest
        elif mood.style == "no digest":
            flags = flags & ~FULL | NONE
        elif mood.style == "no root":
            root = place % 3
        elif mood.style == "odd":
            held &= draw.getrandbits(256) | draw.getrandbits(256)
            heard &= draw.getrandbits(256) | draw.getrandbits(256)
            flags ^= draw.choice((WitnessFlag(0), COMPLETE, FULL, NONE))
        if draw.random() < 0.05:
            flags &= ~COMPLETE
        message = WitnessMessage(
            epoch=state.progress.epoch, height=round_.height, member=member, flags=flags & ALL, at_s=place, held=held,
            heard=heard, missing=0, broadcast_bloom=self._draw_bloom(held),
            results_root=build_hash("root", held, root) if held else ZERO32, state_digest=digest,
        )  # fmt: skip
        return replace(message, **self._draw_slip(message)) if draw.random() < 0.08 else message

    def _draw_bloom(self, held: int) -> bytes:
        limit = min(BLOOM_HASHES * held.bit_count(), BLOOM_BIT_CAP)
        count = self.draw.choice((0, 0, 0, limit)) + (self.draw.random() < 0.02)
        return (((1 << count) - 1) << self.draw.randint(0, BLOOM_BITS - count)).to_bytes(BLOOM_BITS // 8, "little")

    def _draw_slip(self, message: WitnessMessage) -> dict[str, Any]:
        """A field that breaks a rule, or nearly does."""
        draw = self.draw
        slips: tuple[dict[str, Any], ...] = (
            {"held": message.held | 1 << draw.randrange(256)},
            {"held": 0},
            {"held": 0, "results_root": ZERO32, "broadcast_bloom": bytes(BLOOM_BITS // 8)},
            {"heard": draw.getrandbits(256)},
            {"heard": 0},
            {"missing": draw.getrandbits(256)},
            {"missing": (1 << len(self.pair.state.clients)) - 1},
            {"results_root": build_hash("other root", draw.randint(0, 1))},
            {"results_root": ZERO32},
            {"state_digest": build_hash("other digest", draw.randint(0, 1))},
            {"state_digest": ZERO32},
            {"state_digest": ZERO32, "flags": message.flags & COMPLETE | NONE},
            {"flags": WitnessFlag(draw.randrange(8))},
            {"epoch": (message.epoch + draw.choice((1, 65_535))) % 65_536},
            {"height": (message.height + draw.choice((1, -1))) % (1 << 32)},
            {"member": draw.choice((0, 1, 2, 255, 300, 65_535))},
            {"at_s": (1 << 32) - 1, "metadata": draw.randbytes(draw.choice((1, 256)))},
            {"broadcast_bloom": draw.randbytes(BLOOM_BITS // 8)},
        )
        return draw.choice(slips)


def play_events(seed: int, events: int, backend: Backend) -> Tally:
    """Play at least so many random events, in one world after another.

    Raises:
        Difference: core and the Rust rules disagree.
    """
    draw, tally = Random(seed), Tally()
    while tally.events < events:
        pair, people = draw_pair(draw, backend)
        lazy = draw.randint(0, people) if draw.random() < LAZY_SHARE else None
        Player(pair, people, draw, lazy=lazy).play(draw.choice((40, 150, 500)))
        tally.events += len(pair.events)
        tally.seen += pair.seen
        tally.facts += pair.facts
    return tally
