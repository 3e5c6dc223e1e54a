"""The named scenarios: each for any number of clients and rounds."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from psyche.core.committee.elections import compute_quorum
from psyche.core.state.limits import MAX_CLIENTS, MAX_WITNESSES, U8_MAX
from psyche.network.memory.line import LinkConditions
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import ClockJump, Degrade, EndpointFault, Hang, Kill, LostAnswer, Partition
from psyche.sim.identity import build_machine_identity
from psyche.sim.runtime import build_rng
from psyche.sim.scenarios.scenario import CHAIN, ChainConditions, MachineClass, Scenario, build_run_config
from psyche.sim.trainer import MachineModel
from scenarios.base import Size

EPOCH_ROUNDS: Final = 20
LINE: Final = LinkConditions(latency_s=0.02)
MACHINE: Final = MachineModel(sample_s=0.25)
ROUND_S: Final = 0.6  # of a quiet one, with half a second of training
STORM_S: Final = 10.0
LATE_S: Final = 13.5  # when clients come that find a run on its way
LATE_SHARE: Final = 300 / 256
PARTED_ROUNDS: Final = 5
JUMP_EVERY_S: Final = 13.0
HANG_S: Final = 9.5  # the rest of a round, and a bit of the next
FOR_EVER_S: Final = 1e6
SLOW_S, SLOW_JITTER_S, SLOW_BYTES_S = 0.1, 0.8, 125_000.0  # 500 +- 400 ms each way, 1 Mbit/s
DAILY_EPOCH_ROUNDS: Final = 5


def build_base(size: Size, *, classes: tuple[MachineClass, ...] = (), **config: int) -> Scenario:
    """A run in which nothing goes wrong: 20 ms each way, half a second of training a round."""
    usual = (MachineClass(count=size.clients, uplink=LINE, machine=MACHINE),)
    values = {
        "total_steps": size.rounds + 1, "rounds_per_epoch": min(EPOCH_ROUNDS, size.rounds), "witness_nodes": 4,
        "waiting_for_members_extra_time": 8,  # so that everybody is there when the epoch forms
        "init_min_clients": max(2, size.clients // 2), "min_clients": max(2, size.clients // 4),
        "global_batch_size_start": 2 * size.clients, "global_batch_size_end": 2 * size.clients,
    }  # fmt: skip
    return Scenario(seed=size.seed, classes=classes or usual, config=values | config)


def build_churn(size: Size) -> Scenario:
    """F1: in every epoch three of ten are killed, each in a round and at a point of it of its own; they come back."""
    rng = build_rng(size.seed, "F1")
    epochs, per_epoch = math.ceil(size.rounds / EPOCH_ROUNDS), min(EPOCH_ROUNDS, size.rounds)
    kills = [
        Kill(
            at_epoch=epoch,
            at_height=rng.randrange(1, per_epoch),
            after_s=rng.uniform(0, ROUND_S),
            who=(f"client-{who}",),
            for_s=3,
        )
        for epoch in range(epochs)
        for who in rng.sample(range(size.clients), round(0.3 * size.clients))
    ]
    return replace(build_base(size), faults=tuple(kills))


def build_quiet(size: Size) -> Scenario:
    """F2: the run whose crash points are found; who is killed in it never comes back."""
    return replace(build_base(replace(size, rounds=min(size.rounds, 5))), respawn_s=0.0)


def build_all_witnesses(size: Size) -> Scenario:
    """F3: all witnesses of a round are killed as it begins."""
    base = build_base(size, witness_nodes=4 if size.clients >= 12 else 3)
    return replace(base, faults=(Kill(at_height=min(4, size.rounds - 2), who=("witnesses",), for_s=30.0),))


def get_halves(size: Size, *, bridge: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two sides; with a bridge one client belongs to neither."""
    names = [f"client-{number}" for number in range(size.clients - bridge)]
    return tuple(names[: len(names) // 2]), tuple(names[len(names) // 2 :])


def build_split(size: Size, *, bridge: bool) -> Scenario:
    """F6, F7: the clients part; all of them still reach the server."""
    base = build_base(size, witness_nodes=0, rounds_per_epoch=max(3, min(EPOCH_ROUNDS, size.rounds // 2)))
    config = build_run_config(base)
    for_s = PARTED_ROUNDS * float(config.max_round_train_time + config.round_witness_time)
    return replace(base, faults=(Partition(at_height=2, groups=get_halves(size, bridge=bridge), for_s=for_s),))


def build_lossy(size: Size) -> Scenario:
    line = LinkConditions(latency_s=0.02, jitter_s=0.3, loss=0.2, duplicate=0.1)
    return build_base(size, classes=(MachineClass(count=size.clients, uplink=line, machine=MACHINE),))


def get_slow(size: Size) -> tuple[str, ...]:
    """F9: the quarter that is far away."""
    return tuple(f"client-{n}" for n in range(max(1, size.clients // 4)))


def build_slow_quarter(size: Size) -> Scenario:
    """F9: a quarter is slow, and from the middle on too slow to be waited for."""
    slow, epochs = get_slow(size), math.ceil(size.rounds / EPOCH_ROUNDS)
    worse = Degrade(
        at_height=0, who=slow, latency_s=SLOW_S, jitter_s=SLOW_JITTER_S, bandwidth_bytes_s=SLOW_BYTES_S,
        for_s=FOR_EVER_S,
    )  # fmt: skip
    height = min(EPOCH_ROUNDS, size.rounds) // 2
    gone = Degrade(at_epoch=epochs // 2, at_height=height, who=slow, latency_s=120.0, for_s=FOR_EVER_S)
    return replace(build_base(size), faults=(worse, gone), limit_s=100.0 * size.rounds + 1_000)


def build_without_slow(size: Size) -> Scenario:
    """F9, to compare: the same work without the slow ones."""
    fast = replace(size, clients=size.clients - len(get_slow(size)), rounds=min(size.rounds, EPOCH_ROUNDS))
    return build_base(fast, global_batch_size_start=2 * size.clients, global_batch_size_end=2 * size.clients)


def build_clocks(size: Size) -> Scenario:
    """F11: half of the clients are five minutes off; the server's clock jumps by ten seconds, again and again."""
    skews = [ClockJump(who=(f"client-{n}",), offset_s=300.0 if n % 4 else -300.0) for n in range(0, size.clients, 2)]
    jumps = [
        ClockJump(at_s=6.0 + JUMP_EVERY_S * n, who=("server",), offset_s=-10.0 if n % 2 else 10.0, for_s=8.0)
        for n in range(2 + size.rounds // 8)
    ]
    return replace(build_base(size), faults=(*skews, *jumps))


def build_late_answers(size: Size) -> Scenario:
    """F13: connections to the server break and stall all the time, and some as a request has gone on record.

    So the answer is lost of a join, of a word on the weights and of a witness record, of a third of the clients each.
    """
    cuts = tuple(
        Partition(at_s=4.0 + 3.1 * n, groups=(("server",), ("all",)), silent=n % 2 == 0, for_s=0.7)
        for n in range(12 + size.rounds // 4)
    )
    some = [f"client-{number}" for number in range(0, size.clients, 3)]
    early = tuple(
        LostAnswer(who=(name,), what=what, for_s=30.0) for name in some for what in ("join", "warmup_witness")
    )
    late = tuple(
        LostAnswer(at_height=1 + number % max(1, size.rounds - 2), who=(name,), for_s=30.0)
        for number, name in enumerate(some)
    )
    return replace(build_base(size, witness_nodes=0), faults=(*cuts, *early, *late))


def build_storm(size: Size) -> Scenario:
    """F17: everybody comes within ten seconds. What follows is short: it is about the joins."""
    cls = MachineClass(count=size.clients, uplink=LINE, join_spread_s=STORM_S, machine=MACHINE)
    brief = replace(size, rounds=1)
    return build_base(brief, classes=(cls,), init_min_clients=size.clients, warmup_time=120)


def build_large(size: Size) -> Scenario:
    """F18: as many members as an epoch may have; one in six more comes later and finds no room, or no epoch."""
    late = math.ceil(size.clients * LATE_SHARE) - size.clients
    classes = (
        MachineClass(count=size.clients, uplink=LINE, join_spread_s=5.0, machine=MACHINE),
        MachineClass(count=late, uplink=LINE, join_s=LATE_S, join_spread_s=0.5, machine=MACHINE),
    )
    return build_base(
        size, classes=classes, witness_nodes=MAX_WITNESSES if size.clients > MAX_WITNESSES else 4, warmup_time=120,
        waiting_for_members_extra_time=15, init_min_clients=min(size.clients, MAX_CLIENTS),
        rounds_per_epoch=max(2, min(EPOCH_ROUNDS, size.rounds // 2)),
    )  # fmt: skip


def build_daily(size: Size) -> Scenario:
    """F24: one in ten is killed in every round; over hours, rounds are as long as it takes."""
    round_s = 3_600 * size.hours / size.rounds if size.hours else 2.0
    batch_s = round_s / 1.5  # somebody is missing in every round: the others wait half as long again for it
    cls = MachineClass(count=size.clients, uplink=LINE, machine=MachineModel(sample_s=batch_s / 2))
    rng = build_rng(size.seed, "F24")
    kills = tuple(
        Kill(at_s=12.0 + round_s * n, who=tuple(f"client-{who}" for who in killed), for_s=2.0)
        for n in range(2 * size.rounds)
        for killed in (rng.sample(range(size.clients), max(1, round(0.1 * size.clients))),)
    )
    base = build_base(
        size, classes=(cls,), rounds_per_epoch=DAILY_EPOCH_ROUNDS,
        max_round_train_time=max(20, math.ceil(3 * batch_s)),
    )  # fmt: skip
    return replace(base, faults=kills)


def build_mixed(size: Size) -> Scenario:
    """F25: the gradients of two halves differ in their last bits."""
    half = size.clients // 2
    kinds = tuple(
        MachineClass(count=count, uplink=LINE, machine=replace(MACHINE, numeric_class=number))
        for number, count in ((0, size.clients - half), (1, half))
    )
    return build_base(size, classes=kinds)


def build_lying(*kinds: str, share: float = 0.2) -> Callable[[Size], Scenario]:
    """So many of the members lie, in these ways in turn; never more than the protocol bears."""

    def build(size: Size) -> Scenario:
        count = max(1, min(max(len(kinds), int(share * size.clients)), (size.clients - 1) // 3))
        liars = tuple(
            ByzantineMember(who=who, kind=kind) for who, kind in zip(range(count), itertools.cycle(kinds), strict=False)
        )
        return replace(build_base(size, witness_nodes=0), byzantine=liars)

    return build


def build_no_end(size: Size) -> Scenario:
    """B20: witnesses are silent at an epoch's end; all clients offer their checkpoints."""
    built = build_lying("no_end", share=0.34)(size)
    shorter = dict(built.config) | {"rounds_per_epoch": max(2, min(EPOCH_ROUNDS, size.rounds // 2))}
    return replace(built, config=shorter, shares_checkpoints=True)


def build_swapping(size: Size) -> Scenario:
    """B17: payloads and, for the client that comes when an epoch is on its way and has no model, weights."""
    built = build_lying("swap")(size)
    shorter = dict(built.config) | {"rounds_per_epoch": max(2, min(EPOCH_ROUNDS, size.rounds // 2))}
    cls = built.classes[0]
    bare = replace(cls, count=1, has_model=False, join_s=LATE_S)
    return replace(built, config=shorter, classes=(replace(cls, count=size.clients - 1), bare))


def build_other_files(size: Size) -> Scenario:
    """B25: two clients that come when an epoch is on its way have no model; whom they ask first for it lies."""
    base = build_base(size, witness_nodes=0, rounds_per_epoch=max(2, min(EPOCH_ROUNDS, size.rounds // 2)))
    cls = base.classes[0]
    bare = replace(cls, count=2, has_model=False, join_s=LATE_S)
    founders = range(size.clients - 2)
    first = min(founders, key=lambda number: build_machine_identity(size.seed, f"client-{number}").public)
    return replace(
        base, classes=(replace(cls, count=len(founders)), bare),
        byzantine=(ByzantineMember(who=first, kind="other_files"),),
    )  # fmt: skip


def build_blooms(size: Size) -> Scenario:
    """B10: in some rounds so many honest witnesses hang that no root has a quorum: then slots and blooms decide.

    First as few as that takes, and the blooms of all others let results in; then more, and those that lie rule
    them out, though a quorum says that it holds them.
    """
    built = build_lying("lie_bloom", "lie_root", share=0.34)(size)
    names = [name for number, name in enumerate(built.names) if number >= len(built.byzantine)]
    spare = size.clients - compute_quorum(size.clients) - len(built.byzantine)  # honest ones that a root can do without
    truthful = sum(liar.kind == "lie_root" for liar in built.byzantine)  # in their blooms
    hangs = tuple(
        Hang(at_epoch=epoch, at_height=height, who=tuple(names[-count:]), for_s=HANG_S)
        for epoch in range(math.ceil(size.rounds / EPOCH_ROUNDS))
        for height, count in ((2, spare + 1), (5, spare + truthful + 1))
    )
    # who hangs stays: fewer members would have fewer witnesses, and so many liars be more than the protocol bears
    patient = dict(built.config) | {"evict_after": U8_MAX, "late_limit": U8_MAX}
    return replace(built, config=patient, faults=hangs)


def build_bad_endpoints(size: Size) -> Scenario:
    """F12: of each client's three endpoints the first dies, the second falls behind, the third refuses and cuts.

    All at once, so that one bad way stays open. Later some clients' third endpoint shows forks.
    """
    everybody, first_s = ("all",), 12.0
    down = EndpointFault(at_height=1, who=everybody, endpoint=1, is_down=True, for_s=first_s)
    stale = EndpointFault(at_height=1, who=everybody, endpoint=2, stale_slots=20, for_s=4 * first_s)
    refusing = EndpointFault(at_height=1, who=everybody, endpoint=3, throttled=0.5, cut=0.2, for_s=4 * first_s)
    forked = EndpointFault(at_height=3, who=("client-0", "client-2"), endpoint=3, is_forked=True, lag_s=0.8, for_s=6.0)
    again = EndpointFault(at_height=4, who=everybody, endpoint=1, is_down=True, for_s=first_s)
    back = Kill(at_height=2, who=("client-1",), for_s=3.0)
    chain = ChainConditions(lag_most_s=2.0, endpoints=3, cut=0.05)
    base = build_base(size, witness_nodes=0, entropy_delay=4)
    return replace(base, backend=CHAIN, chain=chain, faults=(down, stale, refusing, forked, again, back))


def build_wrong_endpoint(size: Size) -> Scenario:
    """F12: all clients' third endpoints show another record than the chain's for a minute.

    At first they are slower than the others, so that each client sees the contradiction; then they are faster.
    """
    everybody, half_s, lag_s = ("all",), 30.0, 1.5
    wrong = EndpointFault(at_height=2, who=everybody, endpoint=3, is_wrong=True, for_s=2 * half_s)
    slow = EndpointFault(at_height=2, who=everybody, endpoint=3, lag_s=lag_s, for_s=half_s)
    others = tuple(
        EndpointFault(at_height=2, after_s=half_s, who=everybody, endpoint=number, lag_s=lag_s, for_s=half_s)
        for number in (1, 2)
    )
    base = build_base(size, witness_nodes=0, entropy_delay=4)
    chain = ChainConditions(lag_most_s=2.0, endpoints=3)
    return replace(base, backend=CHAIN, chain=chain, faults=(wrong, slow, *others))


def build_lags(size: Size) -> Scenario:
    """A chain that each client sees 0.4 to 3 s late, with skipped slots, lost and late transactions, cut pushes."""
    base = build_base(size, witness_nodes=0, entropy_delay=4)
    return replace(base, backend=CHAIN, chain=ChainConditions(skipped=0.1, lost=0.1, late=0.1, cut=0.05))


def build_late_transactions(size: Size) -> Scenario:
    """F13 on a chain: transactions are lost or late; clients die while some of theirs are on their way, and come back.

    So a transaction lands after its sender was replaced by a process that sends the same.
    """
    kills = tuple(
        Kill(at_s=2.0 + 3.1 * number, who=(f"client-{number % size.clients}",), for_s=1.5)
        for number in range(8 + size.rounds)
    )
    chain = ChainConditions(lag_most_s=2.0, lost=0.2, late=0.7, late_s=20.0)
    base = build_base(size, witness_nodes=0, entropy_delay=4, warmup_time=60)
    return replace(base, backend=CHAIN, chain=chain, faults=kills)
