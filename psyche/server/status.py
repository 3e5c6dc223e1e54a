"""The status of a run, for people."""

from msgspec.structs import replace

from psyche.backends.summary import summarize_run
from psyche.core.state.state import Coordinator
from psyche.server.access import AllowList
from psyche.server.reports import ReportSummary
from psyche.wire.backend import Earnings, RunStatus


def get_earnings(state: Coordinator) -> Earnings:
    """Return each signer's earnings that nobody has collected yet (M11)."""
    return Earnings(tuple((slot.signer, slot.earned) for slot in state.registry.slots if slot.earned))


def make_status(
    state: Coordinator, now: int, program: str, connections: int, access: AllowList | None = None,
    said: ReportSummary | None = None,
) -> RunStatus:  # fmt: skip
    """Build the status that `psyche run info` shows."""
    said = said or ReportSummary()
    return replace(
        summarize_run(state, now, program),
        connections=connections,
        is_open=access is not None and access.is_open,
        allowed=0 if access is None else len(access.keys),
        loss=said.loss,
        tokens_per_s=said.tokens_per_s,
        reporting=said.reporting,
        failing=said.failing,
    )
