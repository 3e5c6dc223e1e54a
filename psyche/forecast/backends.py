"""The backends that a forecast can play. Nothing else of a forecast asks which one it is; a chain alone has `costs`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from psyche.analysis.accounts import SERVER, WORLD
from psyche.config.profile import ChainTable, ProfileFile
from psyche.config.rules import (
    CONFIRMATION_S,
    delay_entropy,
    find_address_warnings,
    find_chain_problems,
    find_chain_warnings,
)
from psyche.core.state.state import Config, Model
from psyche.sim.chain.conditions import ChainConditions
from psyche.sim.scenarios.scenario import CHAIN, TCP


@dataclass(frozen=True, slots=True)
class ServerBackend:
    """A server: it costs nothing, and all see a change of the record at once.

    `reference` is the node of the log whose changes of state are the record's, `complete` what a round that lasts too
    long waits for where nobody is missing.
    """

    name: ClassVar[str] = "tcp"
    scenario_backend: ClassVar[str] = TCP
    reference: ClassVar[str] = SERVER
    complete: ClassVar[str] = "nobody missing"
    confirmation_s: ClassVar[float] = 0.0
    costs: None = None
    conditions: ChainConditions = field(default_factory=ChainConditions)  # without effect

    def fit(self, config: Config) -> Config:
        """The configuration as it goes on record."""
        return config

    def find_problems(self, model: Model) -> list[str]:
        del model
        return []

    def find_cautions(self, config: Config, bootstrap: tuple[str, ...]) -> list[str]:
        """What `run create` warns of."""
        del config, bootstrap
        return []

    def describe(self) -> list[str]:
        return []


@dataclass(frozen=True, slots=True)
class ChainBackend:
    """A chain under the conditions of a profile; as `ServerBackend`."""

    name: ClassVar[str] = "solana"
    scenario_backend: ClassVar[str] = CHAIN
    reference: ClassVar[str] = WORLD
    complete: ClassVar[str] = "all had trained, reports were on their way"
    costs: ChainTable

    @property
    def confirmation_s(self) -> float:
        return max(CONFIRMATION_S, self.costs.lag_max_s)

    @property
    def conditions(self) -> ChainConditions:
        chain = self.costs
        return ChainConditions(
            slot_s=chain.slot_ms / 1_000, skipped=chain.skipped_percent / 100, clock_lag_s=chain.clock_lag_s,
            lag_least_s=chain.lag_min_s, lag_most_s=chain.lag_max_s, answer_s=chain.answer_ms / 1_000,
            endpoints=chain.endpoints, lost=chain.lost_percent / 100, late=chain.late_percent / 100,
        )  # fmt: skip

    def fit(self, config: Config) -> Config:
        return delay_entropy(config)

    def find_problems(self, model: Model) -> list[str]:
        return find_chain_problems(model)

    def find_cautions(self, config: Config, bootstrap: tuple[str, ...]) -> list[str]:
        return [*find_chain_warnings(config, ()), *find_address_warnings(config, bootstrap)]

    def describe(self) -> list[str]:
        chain = self.costs
        text = (
            f"on a chain: slots of {chain.slot_ms:g} ms, {chain.skipped_percent:g} % without a block; clients see a "
            f"block after {chain.lag_min_s:g} to {chain.lag_max_s:g} s; {chain.lost_percent:g} % of transactions are "
            f"lost{f', {chain.late_percent:g} % are late' if chain.late_percent else ''}"
        )
        return [text]


ForecastBackend = ServerBackend | ChainBackend
BACKENDS: Final[dict[str, Callable[[ProfileFile], ForecastBackend]]] = {
    ServerBackend.name: lambda _profile: ServerBackend(),
    ChainBackend.name: lambda profile: ChainBackend(profile.chain),
}
