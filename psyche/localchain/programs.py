"""The programs of this project, as they are built and shipped."""

from collections.abc import Mapping
from pathlib import Path

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.idl import NAMES, find_file


def load_programs(folder: Path | None = None) -> Mapping[Pubkey, bytes]:
    """The code of the three programs by address, from a folder of builds or from what is shipped.

    Raises:
        ConfigError: one is missing.
    """
    return {address: find_file(f"psyche_{name}.so", folder).read_bytes() for name, address in NAMES.items()}
