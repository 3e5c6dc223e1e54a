"""Where things are, and which programs there are."""

from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[2]
TOOLS = PROGRAMS / "tools"
BUILT = PROGRAMS / "built"
TARGET = PROGRAMS / "target"
NAMES = ("coordinator", "authorizer", "treasurer", "replay", "arithmetic")
WITH_IDL = ("coordinator", "authorizer", "treasurer")  # the others have no interface for users
FORMATS = (0, 3)  # SBPF versions


def get_crate(name: str) -> str:
    """The name of a program's crate: psyche-coordinator."""
    return f"psyche-{name}"


def get_file(name: str, sbpf: int) -> Path:
    """Where a built program is, in the folder of built programs."""
    file = Path(f"psyche_{name}.so")
    return file if sbpf == 0 else Path(f"v{sbpf}") / file


def get_idl(name: str) -> Path:
    """Where the description of a program's interface is, in the folder of built programs."""
    return Path(f"psyche_{name}.json")
