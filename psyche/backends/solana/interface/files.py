"""The programs' builds and IDLs, as they lie in a checkout and in an installed package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from solders.pubkey import Pubkey

import psyche
from psyche.backends.solana.interface.addresses import SOURCE_IDS
from psyche.errors import ConfigError

NAMES: Final[Mapping[str, Pubkey]] = SOURCE_IDS._asdict()  # with the ids of the sources
_PACKAGE: Final = Path(psyche.__file__).parent
_FOLDERS: Final = (_PACKAGE / "programs", _PACKAGE.parent / "programs" / "built")  # of a wheel, of a checkout


def find_file(name: str, folder: Path | None = None) -> Path:
    """A file of the builds: `psyche_NAME.so` is a program, `psyche_NAME.json` its IDL."""
    for place in (folder,) if folder is not None else _FOLDERS:
        if (place / name).is_file():
            return place / name
    where = folder or "this installation"
    raise ConfigError(f"{where} has no {name}; `scripts/build-programs` in a checkout builds it")
