"""How a run comes to be."""

import copy
from collections.abc import Sequence

from psyche.core.encoding.account import decode_model, encode_model
from psyche.core.encoding.fields import fits_text
from psyche.core.rules.apply import apply
from psyche.core.state.config_checks import (
    find_bootstrap_problems,
    find_metadata_problems,
    find_progress_problems,
    find_version_problems,
    refuse_problems,
)
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.limits import HASH_BYTES, RUN_ID_BYTES
from psyche.core.state.messages import Resume
from psyche.core.state.state import ZERO32, Config, Coordinator, Metadata, Model, Progress


def create_run(
    config: Config, model: Model, run_id: str, run_uid: bytes, metadata: Metadata, client_version: str, now: int,
    *, progress: Progress | None = None, bootstrap: Sequence[str] = (),
) -> Coordinator:  # fmt: skip
    """A new run, waiting for members since `now` (unix seconds). The arguments are copied.

    `run_uid` is 32 bytes that no other run has, not even one of the same name; every signature
    names it. `progress` lets a run begin at a later step, `bootstrap` names up to four addresses of nodes.

    Raises:
        ConfigRefused: the configuration or a text breaks a rule; the message names key and rule.
    """
    progress = progress or Progress()
    _check_names(run_id, run_uid)
    refuse_problems(
        [
            *find_metadata_problems(metadata),
            *find_version_problems(client_version),
            *find_progress_problems(progress, config),
            *find_bootstrap_problems(bootstrap),
        ]
    )
    state = Coordinator(
        metadata=copy.copy(metadata),
        client_version=client_version,
        run_id=run_id,
        run_uid=run_uid,
        model=model,
        config=copy.copy(config),
        progress=copy.copy(progress),
        bootstrap=[*bootstrap],
    )
    apply(state, now, 0, ZERO32, Resume())  # checks the configuration
    state.model = decode_model(encode_model(model))  # as it stands on record: some settings are float32 there
    return state


def _check_names(run_id: str, run_uid: bytes) -> None:
    if not run_id or not fits_text(run_id, RUN_ID_BYTES):
        raise ConfigRefused(f"run_id: 1 to {RUN_ID_BYTES} bytes of UTF-8, without zero bytes (layout)")
    if len(run_uid) != HASH_BYTES or run_uid == ZERO32:
        raise ConfigRefused(f"run_uid: {HASH_BYTES} bytes, not all zero")
