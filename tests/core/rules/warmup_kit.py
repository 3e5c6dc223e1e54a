"""What the tests of Warmup share: runs in Warmup, and who goes."""

from typing import Any

from kits.runs import Run, build_run

from psyche.core.rules.apply import apply
from psyche.core.state.messages import Withdraw
from psyche.core.state.state import ClientState, RunState


def build_warmup(members: int = 3, **config: Any) -> Run:
    run = build_run(members, **config)
    run.form()
    assert run.state.run_state is RunState.WARMUP
    return run


def get_states(run: Run) -> list[ClientState]:
    return [client.state for client in run.state.clients]


def withdraw(run: Run, member: int) -> None:
    state = run.state
    apply(state, run.now, 0, state.clients[member].p2p, Withdraw(state.progress.epoch, member))
