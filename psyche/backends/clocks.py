"""Whether this machine's clock is right, by that of the run's backend: said before anything depends on it."""

from typing import Final

from psyche.telemetry.text import format_seconds

WRONG_S: Final = 60.0  # less may be slow lines, whole seconds, or a chain whose clock lags


def describe_wrong_clock(own_unix: float, backend_unix: float, backend: str) -> str:
    """Say by how much a clock is wrong, and how it is set; empty if neither is."""
    ahead_s = own_unix - backend_unix
    if abs(ahead_s) < WRONG_S:
        return ""
    side = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"this machine's clock is {format_seconds(abs(ahead_s))} {side} {backend}'s: "
        "set the one that is wrong (sudo timedatectl set-ntp true). Training goes by the backend's clock, but peers "
        "that are an hour apart do not pass on each other's addresses, and times in logs are wrong"
    )
