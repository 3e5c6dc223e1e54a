"""The kinds of backend, and what each offers a run and asks of it before there is one: a row for each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from psyche.core.state.enums import DataLocationKind
from psyche.core.state.state import Config, Model
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.config.load import LoadedRun

CONFIRMATION_S: Final = 2  # of a transaction on Solana, usually; 0.4 to 3 s
ENTROPY_DELAY_SLOTS: Final = 4  # E1: nobody knows the hash of a slot that is that far ahead
LATE_CONFIRMATIONS: Final = 3  # a report that takes this long would count as late


class BackendKind(StrEnum):
    """What keeps a run: a server, or a chain with Solana's programs."""

    tcp = "tcp"
    solana = "solana"


class Fit(NamedTuple):
    config: Config  # as it goes on record
    problems: list[str]  # settings that cannot run there
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """What programs ask of a kind of backend."""

    kind: BackendKind
    serves_data: bool = True  # a data server beside it serves samples to members
    lists_addresses: bool = True  # in a book; else peers tell each other (N1 to N5), and some must be known
    keeps_access: bool = True  # run.toml says who may join; else the owner's wallet does
    confirmation_s: int = 0  # from a message until all see it on record, usually
    entropy_delay_slots: int = 0  # of a configuration that names none
    least_witness_s: int = 0  # `round_witness_time` of a new run, at least

    def fit(self, config: Config, model: Model, bootstrap: Sequence[str], warnings: Iterable[str] = ()) -> Fit:
        """Fit a run's settings; of `warnings`, which suppose a server, those stay that hold here too."""
        from psyche.config.rules import ENTROPY_ON_SERVER  # commands that read no run.toml need no pydantic

        problems: list[str] = []
        if not self.serves_data and model.data_location.kind is DataLocationKind.SERVER:
            problems.append(
                "model.LLM.data_location 'Server': a chain serves no data; what runs there: 'Http', 'Local', 'Dummy'"
            )
        kept = [one for one in warnings if not self.entropy_delay_slots or one != ENTROPY_ON_SERVER]
        least_s = LATE_CONFIRMATIONS * self.confirmation_s
        if config.round_witness_time < least_s:
            kept.append(
                f"config.round_witness_time {config.round_witness_time} s: on a chain a report takes up to "
                f"{self.confirmation_s} s to be seen; use at least {least_s} s, or members that are not late count as "
                "late"
            )
        if not self.lists_addresses and not bootstrap and config.init_min_clients > 1:
            kept.append(
                "bootstrap: no address is on record, so clients do not find each other: name one that is always there, "
                "or start each client with --bootstrap"
            )
        delay = config.entropy_delay or self.entropy_delay_slots
        return Fit(replace(config, entropy_delay=delay), problems, kept)

    def fit_file(self, file: "LoadedRun") -> "LoadedRun":
        """Fit a file of settings; its warnings are then those that hold here.

        Raises:
            ConfigError: it has settings that cannot run there.
        """
        from psyche.config.rules import find_unsupported

        fit = self.fit(file.config, file.model, file.bootstrap, file.warnings)
        if problems := [*find_unsupported(file.model, file.config), *fit.problems]:
            raise ConfigError("\n".join(f"{file.path}: {problem}" for problem in problems))
        return replace(file, config=fit.config, warnings=tuple(fit.warnings))


SERVER: Final = BackendTraits(kind=BackendKind.tcp)
CHAIN: Final = BackendTraits(
    kind=BackendKind.solana, serves_data=False, lists_addresses=False, keeps_access=False,
    confirmation_s=CONFIRMATION_S, entropy_delay_slots=ENTROPY_DELAY_SLOTS, least_witness_s=10,
)  # fmt: skip
TRAITS: Final[Mapping[str, BackendTraits]] = {one.kind: one for one in (SERVER, CHAIN)}
USUAL_KIND: Final = SERVER.kind
