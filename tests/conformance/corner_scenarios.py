"""Scenarios of single rules at their edges: refusals of every kind, keys and slots, clocks and slots of a chain."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from conformance_stage import Stage, scenario
from kits import runs
from kits.runs import Run, build_run

from psyche.core.committee.elections import get_witnesses
from psyche.core.committee.seeds import EXPIRED
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import (
    Collect,
    HealthCheck,
    Join,
    LeaveRun,
    Message,
    NameCheckpoint,
    Pause,
    Recover,
    ReportEquivocation,
    Resume,
    SetRates,
    Tick,
    Update,
    UpdateClientVersion,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    Coordinator,
    Metadata,
    Progress,
    RunState,
    Slot,
    SlotState,
    WitnessFlag,
    WitnessRecord,
)
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_keys, build_model

HUB = Checkpoint(CheckpointKind.HUB, "org/model", "main")
STRANGER = build_hash("stranger")


class ChainRun(Run):
    """A run whose slots are not its seconds: two and a half slots a second, from another start."""

    @property
    def slot(self) -> int:
        return 300_000_000 + (self.now - START_UNIX) * 5 // 2

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        return runs.apply(self.state, self.now, self.slot, sender, message)


def build_chain_run(**config: object) -> ChainRun:
    return ChainRun(build_run(0, **config).state)


def fill_slots(run: Run, count: int) -> None:
    """Slots that have joined before the trace begins."""
    for number in range(count):
        signer, p2p = build_keys(number)
        active = run.state.registry.next_active
        run.state.registry.slots.append(Slot(signer=signer, p2p=p2p, state=SlotState.JOINED, active=active))


# --- refusals


@scenario("P9, P4: a new record without settings: what it refuses, and what the owner sends until it waits for members")
def new_run(stage: Stage) -> None:
    run = Run(Coordinator(run_id="new", run_uid=build_hash("run"), progress=Progress()))
    stage.begin(run)
    stage.refused(lambda: run.apply(Resume()))
    stage.refused(lambda: run.apply(Update(config=build_config())))
    stage.refused(lambda: run.apply(Update(model=build_model())))
    stage.refused(lambda: run.apply(Pause()))
    run.apply(Update(metadata=Metadata("new", "a run that is not ready yet", 7, 8)))
    stage.refused(lambda: run.apply(Update(build_config(), build_model(), Progress(3, 0, 0))))
    run.apply(Update(build_config(), build_model(), Progress(3, 5, 600)))
    run.apply(Update(progress=Progress(4, 6, 700)))
    run.apply(UpdateClientVersion("v1"))
    run.apply(Resume())
    run.join(0, 1)
    run.warm_up().finish_epoch()


@scenario("T2, T7: every kind of message at every wrong time, and from somebody who may not send it")
def wrong_times(stage: Stage) -> None:
    report = build_run(1).warm_up().build_witness(0)
    run = build_run(0, rounds_per_epoch=1, total_steps=3)
    run.state.run_state = RunState.UNINITIALIZED
    stage.begin(run)
    _try_all(run, report)
    run.apply(Resume())
    _try_all(run, report)
    run.join(0, 1, 2)
    run.form()
    _try_all(run, report)
    run.show(0, 1)
    run.withdraw(1)
    stage.refused(lambda: run.show(1))
    run.show(2)
    run.settle()
    _try_all(run, report)
    run.witness_all()
    run.tick()
    _try_all(run, report)
    while run.state.in_round:
        run.run_round()
    _try_all(run, report)
    run.apply(Pause())
    run.wait(5)
    _try_all(run, report)
    run.apply(Resume())
    run.join(0, 2)
    run.warm_up().finish_epoch()
    assert run.state.run_state is RunState.FINISHED
    _try_all(run, report)


def _try_all(run: Run, report: WitnessMessage) -> None:
    """Messages that break a rule in this state, and a few that happen to change nothing."""
    state = run.state
    epoch, height, mark = state.progress.epoch, state.current.height, state.certified
    signer, p2p = build_keys(0)
    sent: list[tuple[Message, bytes]] = [
        (Withdraw(epoch + 1, 0), p2p),
        (Withdraw(epoch, 9), STRANGER),
        (WarmupWitness(epoch + 1, 0, build_hash("weights")), p2p),
        (WarmupWitness(epoch, 9, build_hash("weights")), p2p),
        (WarmupWitness(epoch, 0, ZERO32), p2p),
        (HealthCheck(epoch, height + 1, 0), p2p),
        (HealthCheck(epoch, height, 0), STRANGER),
        (HealthCheck(epoch, height, 9), p2p),
        (HealthCheck(epoch, height, 0), p2p),
        (NameCheckpoint(mark.epoch + 1, mark.digest, HUB), p2p),
        (NameCheckpoint(mark.epoch, mark.digest, HUB), STRANGER),
        (NameCheckpoint(mark.epoch, build_hash("other"), HUB), p2p),
        (ReportEquivocation(epoch + 1, height, 0), ZERO32),
        (ReportEquivocation(epoch, height + 1, 0), ZERO32),
        (ReportEquivocation(epoch, height, 9), ZERO32),
        (LeaveRun(), STRANGER),
        (Join(ZERO32), signer),
        (Join(p2p), ZERO32),
        (Collect(((signer, 1),)), ZERO32),
        (Collect(((signer, None),)), ZERO32),
        (Collect(((STRANGER, None), (signer, None))), ZERO32),
        (Update(config=build_config(cooldown_time=0)), ZERO32),
        (Update(bootstrap=("no multiaddr",)), ZERO32),
        (Recover(0, 0), ZERO32),
        (SetRates(), ZERO32),
    ]
    if state.run_state is not RunState.UNINITIALIZED:
        sent.append((UpdateClientVersion("test"), ZERO32))
        sent.append((Update(metadata=Metadata("test")), ZERO32))
    if not state.halted:
        sent.append((Resume(), ZERO32))
    else:
        sent += [(Pause(), ZERO32), (Tick(build_hash("entropy")), ZERO32)]
    for message, sender in sent:
        with suppress(CoordinatorError):
            run.apply(message, sender)
    if state.in_round or state.run_state is RunState.WARMUP:
        return
    with suppress(CoordinatorError):
        run.apply(replace(report, epoch=epoch, height=height), p2p)


@scenario("W4, L9: a round whose records came from members that were not elected takes no other")
def witnesses_full(stage: Stage) -> None:
    run = build_run(4, witness_nodes=2).warm_up()
    run.run_round()
    elected = get_witnesses(run.state.current)
    for member in sorted({0, 1, 2, 3} - set(elected)):
        record = WitnessRecord(member=member, flags=WitnessFlag.NO_DIGEST, heard=0b1111)
        run.state.current.witnesses.append(record)
    stage.begin(run)
    stage.refused(lambda: run.send(run.build_witness(elected[0])))
    run.wait(20)
    run.wait(4)


@scenario("W4: each field of a report at its limit and beyond it; the first broken rule counts")
def witness_limits(stage: Stage) -> None:
    run = stage.build(5, witness_nodes=4, rounds_per_epoch=4).warm_up()
    run.run_round()
    run.run_round(silent={4}, held=0b01111)
    elected = get_witnesses(run.state.current)
    first, second, third, fourth = elected
    good = run.build_witness(first)
    held = good.held.bit_count()

    def bloom(bits: int) -> bytes:
        return ((1 << bits) - 1).to_bytes(320, "little")

    def send(member: int, **fields: object) -> None:
        run.apply(replace(run.build_witness(member), **fields), build_keys(member)[0])

    stage.refused(lambda: send(first, broadcast_bloom=bloom(7 * held + 1)))
    stage.refused(lambda: send(first, held=0))
    stage.refused(lambda: send(first, results_root=ZERO32))
    stage.refused(lambda: send(first, state_digest=ZERO32, flags=WitnessFlag.FULL_DIGEST))
    stage.refused(lambda: send(first, missing=1 << 5))
    stage.refused(lambda: send(first, heard=1 << 5))
    stage.refused(lambda: send(first, held=1 << 5, heard=1 << 5))
    stage.refused(lambda: send(first, held=1 << 5, broadcast_bloom=bloom(2_560)))
    send(first, broadcast_bloom=bloom(7 * held), missing=(1 << 5) - 1, at_s=(1 << 32) - 1, metadata=bytes(256))
    send(second, held=0, results_root=ZERO32, broadcast_bloom=bytes(320))
    send(third, state_digest=ZERO32, flags=WitnessFlag.NO_DIGEST)
    run.tick()
    stage.refused(lambda: send(first))
    send(fourth, flags=WitnessFlag.NO_DIGEST)
    run.settle()
    run.wait(20)
    run.wait(4)
    run.finish_epoch()


@scenario("H4: every reason for which a silent witness cannot be accused, and two that are counted")
def alibis(stage: Stage) -> None:
    run = stage.build(6, witness_nodes=4, rounds_per_epoch=9).warm_up()

    def accuse(member: int, sender: int = 0) -> None:
        state = run.state
        run.apply(HealthCheck(state.progress.epoch, state.current.height, member), build_keys(sender)[0])

    stage.refused(lambda: accuse(1))
    for silent in (1, 1, 2, 1, 1):
        elected = get_witnesses(run.state.current)
        quiet = elected[:silent]
        run.run_round(quiet, heard=0b111111 if silent == 1 else 0b111111 & ~(1 << quiet[0]))
        for member in range(6):
            with suppress(CoordinatorError):
                accuse(member)
        with suppress(CoordinatorError):
            accuse(quiet[0], sender=1)
    run.finish_epoch()


# --- keys, slots and the registry


@scenario("M1, M2, M4: a registry that fills up: keys that are taken, slots that are free, left or idle")
def registry_full(stage: Stage) -> None:
    run = build_run(0, rounds_per_epoch=1)
    fill_slots(run, 254)
    for number, strikes, until in ((9, 1, 3), (11, 2, 2), (13, 1, 4)):
        slot = run.state.registry.slots[number]
        slot.strikes, slot.until = strikes, until
    stage.begin(run)
    run.join(254, 255)
    stage.refused(lambda: run.join(256))
    stage.refused(lambda: run.apply(Join(build_keys(3)[1]), build_keys(256)[0]))
    stage.refused(lambda: run.apply(Join(build_keys(3)[1]), build_keys(4)[0]))
    stage.refused(lambda: run.apply(Join(ZERO32), build_keys(3)[0]))
    run.apply(Join(build_hash("new key")), build_keys(3)[0])
    run.leave(7)
    run.leave(5)
    run.join(257)
    run.apply(Join(build_keys(3)[1]), build_keys(258)[0])
    stage.refused(lambda: run.join(259))
    for number in (9, 11, 13):
        run.leave(number)
    stage.refused(lambda: run.leave(9))
    stage.refused(lambda: run.collect((9, None)))
    run.join(259, 9)
    run.join(260)
    stage.refused(lambda: run.join(11))
    stage.refused(lambda: run.withdraw(11))
    run.collect((260, None), (9, None))
    stage.refused(lambda: run.collect((260, None), (260, None)))


@scenario("M2: sessions that expire before formation, in Warmup and in rounds; renewed, and with another key")
def sessions(stage: Stage) -> None:
    run = stage.begin(build_run(0, rounds_per_epoch=2, straggler_percent=0))
    ends = (0, 1, 40, 8, 30, 33)
    for number, seconds in enumerate(ends):
        signer, p2p = build_keys(number)
        run.apply(Join(p2p, START_UNIX + seconds if seconds else 0), signer)
    run.apply(Join(build_keys(5)[1], U64_MAX >> 1), build_keys(5)[0])
    run.form()
    run.show(0, 1, 2, 3)
    run.wait(6)
    stage.refused(lambda: run.withdraw(3, member=2))
    run.apply(Withdraw(0, 2), build_keys(3)[0])
    run.wait(9)
    run.show(4)
    run.settle()
    run.run_round()
    run.now = START_UNIX + 29
    run.send(run.build_witness(1))
    run.now += 1
    stage.refused(lambda: run.send(run.build_witness(3)))
    run.now = START_UNIX + 40
    for member in get_witnesses(run.state.current):
        with suppress(CoordinatorError):
            run.send(run.build_witness(member))
    run.apply(Join(build_hash("other key"), 0), build_keys(2)[0])
    for member in get_witnesses(run.state.current):
        with suppress(CoordinatorError):
            run.send(run.build_witness(member))
        with suppress(CoordinatorError):
            run.apply(run.build_witness(member), run.state.clients[member].signer)
    run.settle()
    run.apply(Join(build_keys(4)[1], run.now + 100), build_keys(4)[0])
    run.finish_epoch()
    run.apply(Join(build_keys(0)[1], run.now + 1), build_keys(0)[0])
    run.apply(Join(build_keys(2)[1], run.now + 2), build_keys(2)[0])
    run.wait(1)
    run.wait(1)
    run.rejoin()
    run.warm_up()


@scenario("E1, E2: slots that are not seconds, from 0 on: armed with a delay, expired, armed again, clamped")
def slots_of_a_chain(stage: Stage) -> None:
    run = build_chain_run(rounds_per_epoch=2, entropy_delay=4)
    stage.begin(run)
    run.join(0, 1, 2)
    run.form()
    run.show(0, 1, 2)

    def tick(slot: int, entropy: object) -> None:
        runs.apply(run.state, run.now, slot, ZERO32, Tick(entropy))  # type: ignore[arg-type]

    tick(0, None)
    tick(7, None)
    tick(7, EXPIRED)
    tick(7, EXPIRED)
    tick(8, EXPIRED)
    tick(8, build_hash("a hash"))
    run.witness_all()
    tick(0, build_hash("early"))
    tick(1, None)
    tick(1, EXPIRED)
    tick(U64_MAX, EXPIRED)
    tick(U64_MAX, EXPIRED)
    tick(U64_MAX, build_hash("late"))
    run.finish_epoch()
    run.rejoin()
    run.warm_up().finish_epoch()


@scenario("E1: without a delay the slot 0 is armed as 1; T1: clocks that stand, go back and stop at their end")
def clocks(stage: Stage) -> None:
    run = build_run(0, rounds_per_epoch=1, warmup_time=0, epoch_time=0)
    stage.begin(run)
    run.join(0, 1)

    def tick(now: int, slot: int = 0) -> None:
        runs.apply(run.state, now, slot, ZERO32, Tick(build_hash("entropy", now, slot)))

    tick(START_UNIX - 1_000)
    tick(START_UNIX + 1)
    tick(START_UNIX + 2)
    run.now = START_UNIX + 2
    tick(START_UNIX + 2)
    run.show(0, 1)
    tick(START_UNIX)
    tick(START_UNIX)
    run.wait(0)
    tick(U64_MAX)
    run.now = U64_MAX
    run.settle()
    run.apply(Recover(10, 10))
    run.now = 5
    run.apply(Recover(U64_MAX >> 1, 0))
    tick(0)
    run.witness_all()
    run.settle()


@scenario("S8: four digests compete, votes are taken back and places used again; quorums of one to five")
def candidates(stage: Stage) -> None:
    run = stage.build(8, min_clients=2)
    run.form()
    for member, digest in enumerate("abcd"):
        run.show(member, digest=build_hash(digest))
    stage.refused(lambda: run.show(4, digest=build_hash("e")))
    stage.refused(lambda: run.show(0, digest=build_hash("a")))
    run.withdraw(1)
    run.show(4, digest=build_hash("e"))
    run.show(5, digest=build_hash("c"))
    run.withdraw(3)
    run.withdraw(0)
    run.show(6, digest=build_hash("c"))
    run.tick()
    run.withdraw(4)
    run.show(7, digest=build_hash("b"))
    run.tick()
    run.wait(15)
    run.wait(15)
    run.run_round()
    run.finish_epoch()


@scenario("S8, T8: two digests with half of the members each, then five to two: who shows the other one leaves")
def camps(stage: Stage) -> None:
    run = stage.build(8, min_clients=2, warmup_time=30)
    for majority in (4, 5):
        run.form()
        for member in range(8):
            run.show(member, digest=build_hash("a" if member < majority else "b"))
            if majority == 5 and member == 6:
                break
        run.wait(29)
        run.wait(1)
        run.join(*range(8))
    run.run_round()
    run.finish_epoch()


@scenario("R7, M6: ejections in every phase: of members that take part, have left, withdrew, were dropped, are leaving")
def ejections(stage: Stage) -> None:
    run = stage.build(8, rounds_per_epoch=4, evict_after=1)
    run.apply(SetRates(999, 50))
    run.form()
    stage.refused(lambda: run.eject(0, height=0))
    run.warm_up()
    run.eject(7, height=0)
    run.run_round()
    run.withdraw(6)
    run.leave(5)
    run.eject(6, height=0)
    run.eject(5, height=0)
    stage.refused(lambda: run.leave(5))
    stage.refused(lambda: run.withdraw(7))
    run.run_round(silent={4})
    run.run_round()
    run.eject(4, height=2)
    stage.refused(lambda: run.show(4))
    while run.state.in_round:
        run.run_round()
    run.eject(3, height=run.state.current.height)
    stage.refused(lambda: run.eject(3, height=0))
    run.collect((7, None))
    run.wait(5)
    stage.refused(lambda: run.join(3))
    run.join(0, 1, 2)
    run.warm_up()
    assert get_healthy(run.state) == 0b111


@scenario("K2, T1: gaps of the backend in every phase, and after the last one; the least time to come back")
def gaps(stage: Stage) -> None:
    run = stage.build(2, rounds_per_epoch=1, warmup_time=100, max_round_train_time=50, cooldown_time=9)
    tries: list[Callable[[], object]] = [
        lambda: run.apply(Recover(0, 0)),
        lambda: run.apply(Recover(0, 15)),
        lambda: run.apply(Recover(7, 0)),
        lambda: run.apply(Recover(7, 200)),
    ]
    for phase in range(5):
        for attempt in tries:
            run.now += 3
            attempt()
        run.now = run.state.state_start_unix
        if phase == 0:
            run.form()
            run.show(0)
        elif phase == 1:
            run.show(1)
            run.settle()
        elif phase == 2:
            run.wait(50)
        elif phase == 3:
            while run.state.in_round:
                run.run_round()
    run.wait(9)
    run.apply(Pause())
    run.apply(Recover(5, 5))
