"""The creation of a run."""

from collections.abc import Sequence

from psyche.core.encoding.fields import fits_text
from psyche.core.rules.apply import apply
from psyche.core.rules.owner import process_client_version, process_update
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.limits import HASH_BYTES, RUN_ID_BYTES
from psyche.core.state.messages import Context, Resume, Update, UpdateClientVersion
from psyche.core.state.state import ZERO32, Config, Coordinator, Metadata, Model, Progress


def create_run(
    config: Config, model: Model, run_id: str, run_uid: bytes, metadata: Metadata, client_version: str, now: int,
    *, progress: Progress | None = None, bootstrap: Sequence[str] = (), first_weights: bytes = ZERO32,
) -> Coordinator:  # fmt: skip
    """Create a run that waits for members from `now` (unix seconds) on. The arguments are copied.

    `run_uid` has 32 bytes and identifies the run, even among runs of the same name; every signature covers it.
    `progress` lets the run begin at a later step. `bootstrap` lists up to four addresses of nodes. `first_weights` is
    the full digest of the weights that the first epoch starts from; zero: a quorum of its members finds it (S11).

    Raises:
        ConfigRefused: the configuration, a text or `run_uid` breaks a rule; the message names key and rule.
    """
    _check_names(run_id, run_uid)
    state, context = Coordinator(run_id=run_id, run_uid=run_uid), Context(now, 0, ZERO32)
    first = None if first_weights == ZERO32 else first_weights
    settings = Update(config, model, progress, metadata, tuple(bootstrap), first)
    process_update(state, context, settings)
    process_client_version(state, context, UpdateClientVersion(client_version))
    apply(state, now, 0, ZERO32, Resume())
    return state


def _check_names(run_id: str, run_uid: bytes) -> None:
    if not run_id or not fits_text(run_id, RUN_ID_BYTES):
        raise ConfigRefused(f"run_id: must have 1 to {RUN_ID_BYTES} bytes of UTF-8, without zero bytes", "layout")
    if len(run_uid) != HASH_BYTES or run_uid == ZERO32:
        raise ConfigRefused(f"run_uid: must have {HASH_BYTES} bytes, not all zero")
