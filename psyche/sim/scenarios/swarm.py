"""Scenarios drawn from seeds: each has its size, its settings, a few kinds of faults with their rates, and its liars.

A run with every kind of fault all the time explores little: most such runs fail at once. So each seed
switches most kinds off, and the remaining ones happen often.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from psyche.network.memory.line import LinkConditions
from psyche.sim import faults
from psyche.sim.byzantine import programs
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import ChainHalt, EndpointFault, Fault, OwnerPause
from psyche.sim.runtime import build_rng
from psyche.sim.scenarios.scenario import CHAIN, ChainConditions, MachineClass, Scenario
from psyche.sim.trainer import MachineModel

SIZES: Final = {3: 70, 4: 60, 5: 30, 6: 16, 7: 7, 8: 4, 9: 3, 10: 2, 11: 1, 12: 2, 13: 1, 14: 1, 15: 1, 16: 2}
"""How many of 200 seeds have each number of clients: most bugs show with few clients, where a run costs far less."""
KIND_SHARE: Final = 0.3  # share of the kinds of faults that a seed uses
MAX_FAULTS: Final = 12
TROUBLE_S: Final = 150.0  # all faults begin within this time; then the run must come to its end
BYZANTINE_SHARE: Final = 0.4  # share of the seeds with four clients or more that have liars
ALL_WITNESS_SHARE: Final = 0.6  # share of the seeds that elect every member
ALONE_SHARE: Final = 0.08  # share of the seeds with a single fault, which must be healed
DATA_SHARE: Final = 0.1  # share of the seeds with trouble with the data
ANYONE: Final = "random:1"
Draw = Callable[[random.Random, float], Fault]


def draw_scenario(seed: int) -> Scenario:
    rng = build_rng(seed, "swarm")
    clients = rng.choices(list(SIZES), list(SIZES.values()))[0]
    found = _draw_byzantine(rng, clients)
    config = _draw_config(rng, clients, banned=len(found))
    classes, several = _draw_classes(rng, clients), (*_draw_faults(rng, DRAWS), *_draw_data(seed))
    sync_s = rng.choice((0.0, 0.002, 0.02))
    other = build_rng(seed, "swarm of few")
    if found and 3 * len(found) + 1 < clients and other.random() > ALL_WITNESS_SHARE:
        config["witness_nodes"] = other.randint(3 * len(found) + 1, clients)  # fewer: liars may capture a committee
    alone = _draw_alone(other, config["rounds_per_epoch"]) if other.random() < ALONE_SHARE else None
    return Scenario(
        seed=seed, classes=classes, config=config, faults=several if alone is None else (alone,), byzantine=found,
        sync_s=sync_s,
    ).with_origin(f"python scripts/soak.py --seed {seed}")  # fmt: skip


def draw_chain_scenario(seed: int) -> Scenario:
    rng = build_rng(seed, "swarm on a chain")
    clients = rng.choices(list(SIZES), list(SIZES.values()))[0]
    found = _draw_byzantine(rng, clients)
    config = _draw_config(rng, clients, banned=len(found))
    config |= {"round_witness_time": rng.choice((6, 10)), "warmup_time": rng.choice((30, 60)), "witness_nodes": 0}
    return Scenario(
        seed=seed, backend=CHAIN, classes=_draw_classes(rng, clients), config=config, chain=_draw_chain(rng),
        faults=_draw_faults(rng, CHAIN_DRAWS), byzantine=found,
    ).with_origin(f"python scripts/soak.py --backend solana --seed {seed}")  # fmt: skip


def _draw_chain(rng: random.Random) -> ChainConditions:
    some = (0.0, 0.0, 0.1)
    return ChainConditions(
        slot_s=rng.choice((0.1, 0.4)), skipped=rng.choice((0.0, 0.05, 0.2)), lag_most_s=rng.choice((0.6, 1.5, 3.0)),
        endpoints=rng.choice((1, 2, 3)), lost=rng.choice(some), late=rng.choice(some), cut=rng.choice(some),
    )  # fmt: skip


def _draw_config(rng: random.Random, clients: int, *, banned: int) -> dict[str, int]:
    least = max(2, clients // 2)
    return {
        "total_steps": rng.randint(8, 24),
        "rounds_per_epoch": rng.randint(2, 10),
        "overlap": rng.random() < 0.7,
        "witness_nodes": 0 if banned or rng.random() < ALL_WITNESS_SHARE else rng.randint(3, clients),
        "min_clients": least,
        "init_min_clients": rng.randint(least, max(least, clients - max(1, banned))),  # liars may be banned
        "max_round_train_time": rng.choice((10, 20)),
        "round_witness_time": rng.choice((4, 8)),
        "warmup_time": rng.choice((20, 40)),
        "global_batch_size_start": clients * rng.randint(1, 3),
        "global_batch_size_end": clients * 3,
        "global_batch_size_warmup_tokens": rng.choice((0, 1_000)),
        "straggler_percent": rng.choice((150, 150, 150, 0)),
    }


def _draw_classes(rng: random.Random, clients: int) -> tuple[MachineClass, ...]:
    line = LinkConditions(
        latency_s=rng.choice((0.0, 0.01, 0.1)), jitter_s=rng.choice((0.0, 0.02, 0.2)),
        loss=rng.choice((0.0, 0.0, 0.02)), duplicate=rng.choice((0.0, 0.0, 0.1)),
        bandwidth_bytes_s=rng.choice((float("inf"), 1e6)),
    )  # fmt: skip
    slow = rng.randint(0, clients // 4)
    quick = MachineModel(sample_s=rng.choice((0.1, 0.5)), spread=rng.choice((0.0, 0.3)))
    tardy = MachineModel(sample_s=rng.choice((1.0, 4.0)), spread=0.3)
    spread_s = rng.choice((0.5, 20.0))
    classes = [MachineClass(count=clients - slow, machine=quick, uplink=line, join_spread_s=spread_s)]
    if slow:
        classes.append(MachineClass(count=slow, machine=tardy, uplink=line, join_spread_s=spread_s, has_model=False))
    return tuple(classes)


def _draw_byzantine(rng: random.Random, clients: int) -> tuple[ByzantineMember, ...]:
    """At most (n - 1) / 3 liars, which the protocol tolerates."""
    if rng.random() > BYZANTINE_SHARE:
        return ()
    kinds, most = sorted(programs.KINDS), (clients - 1) // 3
    who = rng.sample(range(clients), rng.randint(min(1, most), most))
    together = rng.choice(kinds) if rng.random() < 0.5 else None
    return tuple(
        ByzantineMember(who=one, kind=together or rng.choice(kinds), share=rng.choice((0.3, 1.0))) for one in who
    )


def _draw_faults(rng: random.Random, draws: Sequence[str]) -> tuple[Fault, ...]:
    kinds = [DRAWN[name] for name in draws if rng.random() < KIND_SHARE]
    if not kinds:
        return ()
    count = rng.randint(1, MAX_FAULTS)
    times = sorted(rng.uniform(0, TROUBLE_S) for _ in range(count))
    return tuple(rng.choice(kinds)(rng, round(at_s, 3)) for at_s in times)


def _draw_data(seed: int) -> tuple[Fault, ...]:
    """Trouble with the training data, drawn apart from the rest: the seeds without it stay the scenarios they were."""
    rng = build_rng(seed, "data")
    if rng.random() > DATA_SHARE:
        return ()
    at_s = round(rng.uniform(0, TROUBLE_S), 3)
    delay_s, is_away = rng.choice(((0.5, False), (3.0, False), (0.0, True)))
    return (faults.DataTrouble(at_s=at_s, who=_pick(rng), delay_s=delay_s, is_away=is_away, for_s=_length(rng)),)


def _draw_alone(rng: random.Random, rounds: int) -> Fault:
    """One wrong weight and no other fault: only then is its client certain to heal (I5)."""
    height = rng.randint(1, max(1, rounds - 1))
    return faults.BitFlip(at_epoch=rng.randint(0, 1), at_height=height, who=(ANYONE,), place=rng.randint(0, 255))


def _pick(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(((ANYONE,), (ANYONE,), ("random:2",), ("random:3",), ("witnesses",), ("all",)))


def _length(rng: random.Random) -> float:
    return round(rng.choice((0.2, 2.0, 8.0, 25.0)) * rng.uniform(0.5, 1.5), 3)


DRAWN: Final[dict[str, Draw]] = {
    "kill": lambda rng, at_s: faults.Kill(at_s=at_s, who=_pick(rng), for_s=_length(rng), erase=rng.random() < 0.1),
    "hang": lambda rng, at_s: faults.Hang(at_s=at_s, who=_pick(rng), for_s=_length(rng)),
    "leave": lambda rng, at_s: faults.CleanExit(at_s=at_s, who=(ANYONE,), for_s=_length(rng)),
    "server_kill": lambda rng, at_s: faults.Kill(at_s=at_s, who=("server",), for_s=_length(rng)),
    "server_hang": lambda rng, at_s: faults.Hang(at_s=at_s, who=("server",), for_s=_length(rng)),
    "torn": lambda rng, at_s: faults.TornWrite(at_s=at_s, after_bytes=rng.randint(0, 3_000), for_s=_length(rng)),
    "partition": lambda rng, at_s: faults.Partition(
        at_s=at_s, groups=_draw_groups(rng), silent=rng.random() < 0.4, for_s=_length(rng)
    ),
    "degrade": lambda rng, at_s: faults.Degrade(
        at_s=at_s, who=_pick(rng), for_s=_length(rng), latency_s=rng.choice((0.0, 0.5)),
        jitter_s=rng.choice((0.0, 0.8)), bandwidth_bytes_s=rng.choice((0.0, 20_000.0)),
        loss=rng.choice((0.0, 0.2, 0.6)), duplicate=rng.choice((0.0, 0.3)), up=rng.random() < 0.8,
        down=rng.random() < 0.8,
    ),
    "clock": lambda rng, at_s: faults.ClockJump(
        at_s=at_s, who=rng.choice((("server",), (ANYONE,), ("all",))),
        offset_s=rng.choice((-300.0, -10.0, 10.0, 300.0)), for_s=_length(rng),
    ),
    "disk_full": lambda rng, at_s: faults.DiskFull(
        at_s=at_s, who=(rng.choice(("server", ANYONE)),), for_s=_length(rng)
    ),
    "slow_disk": lambda rng, at_s: faults.SlowDisk(
        at_s=at_s, who=(rng.choice(("server", ANYONE)),), sync_s=rng.choice((0.2, 1.5)), for_s=_length(rng)
    ),
    "crash": lambda rng, at_s: faults.TrainerCrash(at_s=at_s, who=(f"random:{rng.randint(1, 2)}",)),
    "trainer_hang": lambda rng, at_s: faults.TrainerHang(at_s=at_s, who=(ANYONE,), for_s=_length(rng)),
    "flip": lambda rng, at_s: faults.BitFlip(at_s=at_s, who=(ANYONE,), place=rng.randint(0, 255)),
    "lost_answer": lambda rng, at_s: faults.LostAnswer(
        at_s=at_s, what=rng.choice(sorted(faults.ANSWERED)), who=_pick(rng), for_s=_length(rng)
    ),
    "endpoint": lambda rng, at_s: EndpointFault(
        at_s=at_s, **rng.choice(TROUBLES), who=_pick(rng), endpoint=rng.choice((0, 1, 1)), for_s=_length(rng)
    ),
    "halt": lambda rng, at_s: ChainHalt(at_s=at_s, for_s=_length(rng)),
    "pause": lambda rng, at_s: OwnerPause(at_s=at_s, for_s=_length(rng)),
}  # fmt: skip  # arguments are drawn in the order in which they stand here: another order is another scenario
TROUBLES: Final[tuple[dict[str, Any], ...]] = (
    {"is_down": True}, {"stale_slots": 20}, {"throttled": 0.7}, {"lost": 0.5, "late": 0.5},
)  # fmt: skip
DRAWS: Final = (
    "kill", "hang", "leave", "server_kill", "server_hang", "torn", "partition", "degrade", "clock", "disk_full",
    "slow_disk", "crash", "trainer_hang", "flip", "lost_answer",
)  # fmt: skip
CHAIN_DRAWS: Final = (
    "kill", "hang", "leave", "degrade", "crash", "trainer_hang", "flip", "endpoint", "endpoint", "halt", "pause",
)  # fmt: skip


def _draw_groups(rng: random.Random) -> tuple[tuple[str, ...], ...]:
    some = ("random:1", "random:2", "random:3")
    return rng.choice(((("server",), (rng.choice(some),)), ((rng.choice(some),), ("all",)), (("server",), ("all",))))
