"""The backends that a forecast can play. Nothing else of a forecast asks which one it is; a chain alone has `costs`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from psyche.analysis.accounts import SERVER as SERVER_NODE
from psyche.analysis.accounts import WORLD
from psyche.backends.kinds import CHAIN, SERVER, BackendKind, BackendTraits
from psyche.config.profile import ChainTable, ProfileFile
from psyche.sim.scenarios.scenario import ChainConditions


@dataclass(frozen=True, slots=True)
class ForecastBackend:
    """What keeps the record of a forecast."""

    traits: BackendTraits = SERVER  # of its kind
    costs: ChainTable | None = None  # the chain of a profile; None: a server, where all see a change at once
    reference: str = SERVER_NODE  # the node of the log whose changes of state are the record's
    complete: str = "nobody missing"  # what a round that lasts too long waits for where nobody is missing

    @property
    def confirmation_s(self) -> float:
        return max(self.traits.confirmation_s, self.costs.lag_max_s) if self.costs else 0.0

    @property
    def conditions(self) -> ChainConditions:
        if self.costs is None:
            return ChainConditions()  # without effect
        chain = self.costs
        return ChainConditions(
            slot_s=chain.slot_ms / 1_000, skipped=chain.skipped_percent / 100, clock_lag_s=chain.clock_lag_s,
            lag_least_s=chain.lag_min_s, lag_most_s=chain.lag_max_s, answer_s=chain.answer_ms / 1_000,
            endpoints=chain.endpoints, lost=chain.lost_percent / 100, late=chain.late_percent / 100,
        )  # fmt: skip

    def describe(self) -> list[str]:
        if self.costs is None:
            return []
        costs = self.costs
        late = f", {costs.late_percent:g} % are late" if costs.late_percent else ""
        text = (
            f"on a chain: slots of {costs.slot_ms:g} ms, {costs.skipped_percent:g} % without a block; clients see a "
            f"block after {costs.lag_min_s:g} to {costs.lag_max_s:g} s; {costs.lost_percent:g} % of transactions are "
            f"lost{late}"
        )
        return [text]


def play_on_chain(costs: ChainTable) -> ForecastBackend:
    return ForecastBackend(CHAIN, costs, WORLD, "all had trained, reports were on their way")


BACKENDS: Final[Mapping[BackendKind, Callable[[ProfileFile], ForecastBackend]]] = {
    SERVER.kind: lambda _profile: ForecastBackend(),
    CHAIN.kind: lambda profile: play_on_chain(profile.chain),
}
