"""The worlds that are searched: who is there, which settings hold, and which inputs exist."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

from model_checker.forms import Lens
from psyche.core.state.enums import RunState
from psyche.core.state.genesis import create_run
from psyche.core.state.state import Coordinator, Metadata
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_keys, build_model

WARMUP_S: Final = 40
EPOCH_S: Final = 1_000_000  # further away than all deadlines of an epoch together


class Report(NamedTuple):
    """What a witness says, in symbols.

    `held` and `heard`: "all", "none", "but faulty" or "but one" (each honest member once). `root`: A, B,
    or "=" for A where all are held and B elsewhere. `digest`: X, Y or - (flag 4).
    """

    held: str = "all"
    heard: str = "all"
    root: str = "="
    digest: str = "X"


def build_reports(held: str, heard: str, roots: str, digests: str) -> tuple[Report, ...]:
    """All combinations; several words are separated by commas."""
    return tuple(Report(*parts) for parts in product(held.split(","), heard.split(","), roots, digests))


@dataclass(frozen=True)
class World:
    """One closed world. Every input named here may come at any time, in any order, any number of times.

    Silence needs no input of its own: no member ever has to send anything, and every deadline may pass
    at any point.
    """

    name: str
    what: str
    members: int
    config: dict[str, Any]
    honest: tuple[Report, ...] = (Report(),)
    faulty: tuple[Report, ...] = ()  # empty: nobody is faulty
    ready_honest: str = "X"
    ready_faulty: str = "X"
    inputs: frozenset[str] = frozenset({"withdraw"})  # see `inputs.Menu`
    earning_rate: int = 0
    max_epoch: int = 0  # a later epoch is reached, but not entered, unless the run has finished there
    certified_epochs: int = 0  # so many honest epochs lie behind the start

    def __post_init__(self) -> None:
        # a member of an epoch that is over is found by its slot in a form
        assert not {"leave", "checkpoint"} <= self.inputs, "slots are given up only where no checkpoints are named"

    def build_start(self) -> Coordinator:
        """The run, made and waiting, nobody joined."""
        state = create_run(
            build_config(**self.config), build_model(), "small", build_hash("run"), Metadata(name="small"), "small",
            START_UNIX,
        )  # fmt: skip
        state.registry.future_earning_rate = self.earning_rate
        return state

    def get_keys(self, participant: int) -> tuple[bytes, bytes]:
        """Signer and p2p key."""
        return build_keys(participant)

    @property
    def faulty_participant(self) -> int | None:
        """The last one, if there is one; by symmetry it could be any."""
        return self.members - 1 if self.faulty else None

    @property
    def lens(self) -> Lens:
        """What a form of this world looks at."""
        number = self.faulty_participant
        faulty = {} if number is None else {self.get_keys(number)[0]: 1}
        return Lens(faulty, "health" in self.inputs, "checkpoint" in self.inputs)

    def get_deadlines(self, state: Coordinator) -> tuple[int, ...]:
        """The elapsed times of the phase at which something becomes possible (T1, T8), ascending.

        In Warmup these are half of it and 1.5 times that: the pace of a quorum that was ready by then.
        """
        config = state.config
        half = config.warmup_time // 2
        deadlines: dict[RunState, tuple[int, ...]] = {
            RunState.WAITING_FOR_MEMBERS: (config.waiting_for_members_extra_time,),
            RunState.WARMUP: (half, half * config.straggler_percent // 100, config.warmup_time),
            RunState.ROUND_TRAIN: (config.max_round_train_time,),
            RunState.ROUND_WITNESS: (config.round_witness_time,),
            RunState.COOLDOWN: (config.cooldown_time,),
        }
        return deadlines.get(state.run_state, ())


def _build_settings(members: int, **more: Any) -> dict[str, Any]:
    least = {"min_clients": 2, "init_min_clients": max(2, members - 1)}
    return {"warmup_time": WARMUP_S, "late_limit": 2, "total_steps": 3, **least, **more}


def _build_witness(members: int, **more: Any) -> World:
    return World(
        "witness",
        "any member silent at any time; two sets, two digests",
        members,
        _build_settings(members, **more),
        honest=build_reports("all,but faulty", "all", "=", "XY"),
        faulty=build_reports("all,but faulty", "all", "=", "XY"),
        inputs=frozenset({"withdraw", "health"}),
    )


def _build_liar(members: int, **more: Any) -> World:
    return World(
        "liar",
        "one member lies about roots, held, heard and digests; honest ones may miss what it sends",
        members,
        _build_settings(members, **more),
        honest=build_reports("all,but faulty", "all,but faulty", "=", "X"),
        faulty=(
            *build_reports("all,none", "all,none", "A", "XY"),
            *build_reports("but one", "but one", "B", "X-"),
            Report("all", "all", "B", "Y"),
        ),
        ready_faulty="XY",
        inputs=frozenset({"health"}),
    )


def _build_members(members: int, **more: Any) -> World:
    return World(
        "members",
        "joins, departures and accusations at any time",
        members,
        _build_settings(members, **more),
        inputs=frozenset({"withdraw", "health", "rejoin"}),
    )


def _build_earnings(members: int, **more: Any) -> World:
    return World(
        "earnings",
        "slots that are given up and taken again, ejections, and what credits pay",
        members,
        _build_settings(members, **more),
        faulty=build_reports("all", "all", "=", "X"),
        inputs=frozenset({"leave", "eject"}),
        earning_rate=100,
    )


def _build_pause(members: int, **more: Any) -> World:
    return World(
        "pause",
        "pause and resume at any time over two epochs; clocks that stand still; digests that split",
        members,
        _build_settings(members, **more) | {"total_steps": 5},
        honest=build_reports("all", "all", "=", "XY"),
        inputs=frozenset({"pause", "recover", "gaps"}),
        max_epoch=1,
    )


def _build_drain(members: int, **more: Any) -> World:
    return World(
        "drain",
        "epochs that end early: by the clock, too few members, void rounds, digests that split",
        members,
        _build_settings(members, **more) | {"rounds_per_epoch": 3, "epoch_time": EPOCH_S, "total_steps": 4},
        honest=build_reports("all,none", "all", "=", "X-"),
        inputs=frozenset({"withdraw", "epoch time"}),
    )


def _build_rollback(members: int, **more: Any) -> World:
    return World(
        "rollback",
        "Warmups in which nobody can show the certified weights; checkpoints named at any time",
        members,
        _build_settings(members, **more) | {"total_steps": 9},
        inputs=frozenset({"withdraw", "checkpoint"}),
        certified_epochs=1,
        max_epoch=2,
    )


def _build_old_checkpoint(members: int, **more: Any) -> World:
    return World(
        "old checkpoint",
        "ten failed Warmups in a row: the checkpoint is two epochs older than the certified weights",
        members,
        _build_settings(members, **more) | {"total_steps": 9},
        inputs=frozenset({"withdraw"}),
        certified_epochs=3,
        max_epoch=3,
    )


_BUILDERS: Final[tuple[Callable[..., World], ...]] = (
    _build_witness, _build_liar, _build_members, _build_earnings, _build_pause, _build_drain, _build_rollback,
    _build_old_checkpoint,
)  # fmt: skip


def build_worlds(members: int, *, overlap: bool) -> dict[str, World]:
    """All worlds of so many members, by name."""
    worlds = (build(members, overlap=overlap) for build in _BUILDERS)
    return {world.name: world for world in worlds}
