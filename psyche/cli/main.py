"""The entry point of `psyche`: answers `--version` at once, and imports the commands only if one is needed."""

import sys
from pathlib import Path

from psyche import __version__


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write(f"psyche {__version__}\n")
        return
    kept = Path(sys.prefix, "bytecode")  # where the scripts keep it if Python may write none beside the sources
    if sys.dont_write_bytecode and sys.pycache_prefix is None and kept.is_dir():
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(kept)
    try:
        from psyche.cli.app import app

        app(prog_name="psyche")
    except KeyboardInterrupt:  # while the commands were loaded
        sys.exit(130)
