"""What transformers makes of a config.json: asked of a trainer process, so that whoever asks loads no torch."""

from importlib.util import find_spec
from pathlib import Path

import trio

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model_config import check_model_settings, read_model_fields
from psyche.modeling.snapshot import CONFIG_NAME
from psyche.modeling.trainer.process import TrainerProcess, WatchdogLimits
from psyche.wire.trainer import CheckReply, CheckRequest

START_S = 600.0  # nobody else waits for it, and on a busy machine torch takes minutes
_known: dict[tuple[str, bytes, int], CheckReply] = {}  # by what the file says: torch takes seconds


def describe_model(path: Path, max_seq_len: int = 0) -> CheckReply | None:
    """Ask what the model of a config file or folder has in memory; None: transformers is not installed.

    Blocks for the seconds that torch takes, once for each config; not for use within trio.

    Raises:
        ConfigError: a run cannot train the model (AR1 to AR3, AR7).
    """
    path = path / CONFIG_NAME if path.is_dir() else path
    settings = read_model_fields(path)
    check_model_settings(path, settings)
    if find_spec("transformers") is None or find_spec("torch") is None:
        return None
    key = (path.suffix, path.read_bytes(), max_seq_len)
    if key not in _known:
        try:
            _known[key] = trio.run(
                _ask, CheckRequest(device="cpu", config=str(path.absolute()), max_seq_len=max_seq_len)
            )
        except TrainerError as error:
            raise ConfigError(str(error)) from error
    return _known[key]


async def _ask(request: CheckRequest) -> CheckReply:
    trainer = TrainerProcess(limits=WatchdogLimits(start_s=START_S))
    try:
        return await trainer.check(request)
    finally:
        await trainer.stop()
