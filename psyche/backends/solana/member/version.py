"""Whether this program has the version that the owner wants; a server goes by the version of the protocol instead."""

from psyche import __version__
from psyche.core.state.state import Coordinator, RunState
from psyche.errors import VersionMismatch


def check_version(state: Coordinator) -> None:
    """Check that this program has the version that the run's owner wants; an empty one, or `latest`, is any."""
    if state.client_version not in ("", "latest", __version__) and state.run_state is not RunState.FINISHED:
        raise VersionMismatch(
            f"run {state.run_id!r} wants clients of version {state.client_version}, and this is {__version__}: install "
            "that version (in a checkout: `git pull`, then `bash scripts/install`) and start this client again"
        )
