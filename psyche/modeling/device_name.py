"""The names of devices that a user may give; no torch here, so that a wrong one is refused at once."""

import re
from typing import Final

from psyche.errors import ConfigError

_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def check_device_name(name: str) -> None:
    """Check that `name` can be a device; whether this machine has it, the trainer finds out."""
    if not _DEVICE.fullmatch(name):
        raise ConfigError(f"--device {name}: there is no such device; use auto, cpu, cuda or cuda:N")
