"""The programs of this project, as they are built and shipped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from solders.pubkey import Pubkey

import psyche
from psyche.chain.addresses import AUTHORIZER, COORDINATOR, TREASURER
from psyche.errors import ConfigError

NAMES: Final = {"coordinator": COORDINATOR, "authorizer": AUTHORIZER, "treasurer": TREASURER}
_PACKAGE: Final = Path(psyche.__file__).parent
_FOLDERS: Final = (_PACKAGE / "programs", _PACKAGE.parent / "programs" / "built")  # of a wheel, of a checkout


def load_programs(folder: Path | None = None) -> Mapping[Pubkey, bytes]:
    """The code of the three programs by address, from a folder of builds or from what is shipped.

    Raises:
        ConfigError: one is missing.
    """
    return {address: find_file(f"psyche_{name}.so", folder).read_bytes() for name, address in NAMES.items()}


def find_file(name: str, folder: Path | None = None) -> Path:
    """A file of the builds: `psyche_NAME.so` is a program, `psyche_NAME.json` its IDL.

    Raises:
        ConfigError: it is missing.
    """
    for place in (folder,) if folder is not None else _FOLDERS:
        if (place / name).is_file():
            return place / name
    where = folder or "this installation"
    raise ConfigError(f"{where} has no {name}; `scripts/build-programs` in a checkout builds it")
