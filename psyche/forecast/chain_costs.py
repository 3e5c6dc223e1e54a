"""What it costs to keep a forecast run on a chain: time of each round, transactions and fees."""

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from statistics import median
from typing import Any

from psyche.backends.solana.amounts import LAMPORTS_PER_SOL, MAX_PRIORITY_LAMPORTS, format_sol
from psyche.config.profile import ChainTable
from psyche.core.state.state import Config
from psyche.forecast.backends import ForecastBackend
from psyche.forecast.play import Forecast
from psyche.forecast.question import Question
from psyche.sim.chain.facts import ChainFacts, Paid
from psyche.sim.faults import CHAIN_KINDS
from psyche.telemetry.text import format_number, format_seconds, format_table


@dataclass(frozen=True, slots=True)
class Fees:
    transactions: float
    signatures: float
    lamports: float

    def add(self, other: "Fees", times: float) -> "Fees":
        return Fees(*(mine + times * theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class ChainCosts:
    round_s: float  # median times of a round, here and in the same run with a server; 0: not known
    server_round_s: float
    landed: int  # the number of transactions that landed, whether they took effect or were refused
    resent: int  # how often a transaction was sent again
    per_round: Fees  # what a member pays for a round
    per_epoch: Fees  # for an epoch of full length, with join, Warmup and the drain
    whole: Fees  # for all steps of the run

    @property
    def of_chain_s(self) -> float:
        return max(0.0, self.round_s - self.server_round_s)


def build_server_question(question: Question) -> Question:
    """The same run with a server, without the faults of the chain."""
    return replace(
        question, backend=ForecastBackend(), faults=tuple(one for one in question.faults if one.kind not in CHAIN_KINDS)
    )


def compute_costs(forecast: Forecast, with_server: Forecast | None = None) -> ChainCosts | None:
    """Compute what the chain costs; None with a server, or if no round was finished."""
    table, members = forecast.question.backend.costs, forecast.members
    rounds = [one.seconds for one in forecast.accounts.data_rounds]
    if table is None or not rounds or not members:
        return None
    facts: ChainFacts = forecast.outcome.facts["chain"]
    names = {node.name for node in members}
    per_round = _share(facts.in_rounds, names, sum(len(node.present) for node in members), table)
    joined = sum(len({epoch for epoch, _ in node.present}) for node in members)
    around = _share(facts.outside, names, joined, table)
    length, epochs = count_rounds(forecast)
    other_s = [one.seconds for one in with_server.accounts.data_rounds] if with_server is not None else []
    return ChainCosts(
        round_s=median(rounds), server_round_s=median(other_s) if other_s else 0.0, landed=facts.landed,
        resent=facts.resent, per_round=per_round, per_epoch=around.add(per_round, length),
        whole=Fees(0, 0, 0).add(around.add(per_round, length), epochs),
    )  # fmt: skip


def _share(paid: Mapping[str, Paid], names: set[str], parts: int, chain: ChainTable) -> Fees:
    transactions = sum(one.transactions for name, one in paid.items() if name in names) / max(1, parts)
    signatures = sum(one.signatures for name, one in paid.items() if name in names) / max(1, parts)
    lamports = signatures * chain.lamports_per_signature + transactions * chain.priority_lamports
    return Fees(transactions, signatures, lamports)


def count_rounds(forecast: Forecast) -> tuple[float, float]:
    """The rounds of an epoch of full length, those without data too; and the epochs of the whole run."""
    rounds = forecast.accounts.rounds
    epochs = len({one.epoch for one in rounds})
    drains = sum(one.is_drain for one in rounds) / epochs
    all_with_data = count_steps(forecast.question.config)
    with_data = forecast.question.config.rounds_per_epoch or len(forecast.accounts.data_rounds) / epochs
    with_data = min(with_data, all_with_data)
    return with_data + drains, math.ceil(all_with_data / with_data)


def count_steps(config: Config) -> int:
    """The steps that a run trains: its record begins at the first one."""
    return max(1, config.total_steps - 1)


def format_costs(costs: ChainCosts, question: Question) -> str:
    part = f"{format_seconds(costs.round_s)}, of which {format_seconds(costs.of_chain_s)} are the chain's: "
    part += f"with a server it is {format_seconds(costs.server_round_s)}"
    most = math.ceil(costs.whole.transactions) * MAX_PRIORITY_LAMPORTS
    head = ("a member pays for", "transactions", "signatures", "lamports", "SOL")
    rows = [
        _draw_row("a round", costs.per_round),
        _draw_row("an epoch, with join and Warmup", costs.per_epoch),
        _draw_row(f"the run, {format_number(count_steps(question.config), 'step')}", costs.whole),
    ]
    return "\n".join(
        [
            *([f"median round           {part}"] if costs.server_round_s else []),
            f"transactions           {costs.landed} landed; sent again {format_number(costs.resent, 'time')}",
            "",
            format_table(head, rows),
            (
                f"while the chain is busy, up to {format_sol(most)} more for the run: {MAX_PRIORITY_LAMPORTS:,} "
                "lamports a transaction, unless its members say another --max-priority-fee"
            ),
        ]
    )


def _draw_row(name: str, fees: Fees) -> list[str]:
    return [
        name, f"{fees.transactions:.1f}", f"{fees.signatures:.1f}", f"{fees.lamports:,.0f}",
        f"{fees.lamports / LAMPORTS_PER_SOL:.6f}",
    ]  # fmt: skip


def build_chain_json(forecast: Forecast, with_server: Forecast | None) -> dict[str, Any] | None:
    """The figures of the chain as plain data; None with a server."""
    table, costs = forecast.question.backend.costs, compute_costs(forecast, with_server)
    if table is None:
        return None
    question = forecast.question
    found: dict[str, Any] = {"assumed": table.model_dump(), "warnings": question.cautions}
    return found if costs is None else found | asdict(costs) | {"of_chain_s": costs.of_chain_s}
