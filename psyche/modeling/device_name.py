"""The names of devices that a user may give; no torch here, so that a wrong one is refused at once."""

import re
from typing import Final

from psyche.errors import ConfigError

MAX_RANKS: Final = 1024
_DEVICE: Final = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
_DEVICES: Final = re.compile(r"auto|cpu|mps|cuda(:\d{1,3}(,\d{1,3})*)?")
_RENDEZVOUS: Final = re.compile(r"([^:]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")


def check_device_name(name: str) -> None:
    """Check that `name` can be a device; whether this machine has it, the trainer finds out."""
    if not _DEVICE.fullmatch(name):
        raise ConfigError(f"--device {name}: there is no such device; use auto, cpu, mps, cuda or cuda:N")


def check_devices(name: str, ranks: int, rendezvous: str = "") -> None:
    """Check that `name` can be the devices of a trainer with so many ranks; those of other machines come later."""
    if rendezvous:
        parse_rendezvous(rendezvous)
    if not _DEVICES.fullmatch(name):
        raise ConfigError(f"--device {name}: there is no such device; use auto, cpu, mps, cuda, cuda:N or cuda:0,2")
    numbers = name.partition(":")[2].split(",")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"--device {name}: names a device twice")
    if len(numbers) > ranks:
        raise ConfigError(
            f"--device {name}: names {len(numbers)} devices for {ranks} ranks; add --data-parallelism {len(numbers)}"
        )


def describe_verifying(ranks: int) -> str:
    """Why so many ranks cannot take part in a run that verifies; empty: they can."""
    if ranks == 1:
        return ""
    return (
        f"{ranks} devices: in a run that verifies, a trainer sketches whole gradients and keeps copies of whole "
        "weights, on one device; start the client with one, or join a run with verification_percent 0"
    )


def parse_rendezvous(text: str) -> tuple[str, int]:
    """The host and port of HOST:PORT."""
    found = _RENDEZVOUS.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise ConfigError(f"--rendezvous {text}: must be HOST:PORT, such as 10.0.0.1:29500")
    return found[1].strip("[]"), int(found[2])
