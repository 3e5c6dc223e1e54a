"""Describes why a simulated run makes no progress."""

from psyche.forecast.play import Forecast
from psyche.forecast.question import Question
from psyche.telemetry.text import format_number, format_seconds


def describe_obstacle(forecast: Forecast) -> str:
    """Describe why a run makes no progress: what was observed, in which phase it ended, and what it lacked."""
    state = forecast.outcome.state
    where = f"{state.run_state.name.lower().replace('_', ' ')}, epoch {state.progress.epoch}"
    seen = f"{forecast.obstacle}; " if forecast.obstacle else ""
    return f"{seen}it ended in state {where}, step {state.progress.step}; {_describe_lack(forecast)}"


def _describe_lack(forecast: Forecast) -> str:
    config = forecast.question.config
    alive = sum(not node.ended_away for node in forecast.accounts.nodes.values())
    if alive < config.init_min_clients:
        needed = format_number(config.init_min_clients, "client")
        return f"an epoch needs {needed}, {alive} {'was' if alive == 1 else 'were'} there"
    rounds = forecast.accounts.data_rounds
    trained = sum(len(one.trained) for one in rounds)
    wanted = sum(one.place in node.present for node in forecast.accounts.nodes.values() for one in rounds)
    limit = f"max_round_train_time is {config.max_round_train_time} s"
    if not wanted:
        return f"no round began; warmup_time is {config.warmup_time} s"
    if 2 * trained < wanted:
        slowest = format_seconds(estimate_slowest_s(forecast.question))
        return f"{trained} of {wanted} results came in time: {limit}, the slowest class trains for {slowest}"
    slowest = format_seconds(estimate_sending_s(forecast.question))
    return (
        f"results came in time, too few members had all payloads: {limit}, "
        f"the slowest line needs {slowest} to send a payload to all others"
    )


def estimate_slowest_s(question: Question) -> float:
    """Seconds that the slowest class needs to train its share of a round, with its own spread."""
    samples = -(-question.config.global_batch_size_end // question.clients)
    return max(
        (samples * question.workload.sequence_tokens / one.tokens_per_s + one.step_s) * (1 + one.spread_percent / 100)
        for one, count in zip(question.classes, question.counts, strict=True)
        if count
    )


def estimate_sending_s(question: Question) -> float:
    """Seconds that the slowest line needs to send a payload to all others."""
    slowest = min(one.up_mbit_s for one, count in zip(question.classes, question.counts, strict=True) if count)
    return question.workload.payload_bytes * (question.clients - 1) * 8e-6 / slowest
