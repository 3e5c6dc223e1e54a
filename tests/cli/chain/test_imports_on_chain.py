"""What a command on a chain imports: each module that it does not need makes every command slower."""

import json
import os
import subprocess
import sys
from typing import Final

import pytest
from kits.chain.box import ChainBox
from kits.tier import few
from test_run_on_chain import create

CHILD: Final = (
    "import atexit, json, sys\n"
    "atexit.register(lambda: print('loaded', json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
    "from psyche.cli.main import main\n"
    "main()\n"
)
OF_EVERY_COMMAND: Final = frozenset({"annotated_doc", "base58", "msgspec", "shellingham", "typer", "typing_extensions"})
OPTIONS: Final = frozenset({"annotated_types", "pydantic", "pydantic_core", "typing_inspection"})  # typer reads them so
HTTP: Final = frozenset(
    {"anyio", "h11", "h2", "hpack", "httpcore2", "httpx2", "hyperframe", "idna", "sniffio", "truststore"}
)
TRIO: Final = frozenset({"attr", "attrs", "outcome", "sortedcontainers", "trio"})
# httpx2 decodes brotli and zstandard where they are installed.
ON_CHAIN: Final = OF_EVERY_COMMAND | OPTIONS | HTTP | TRIO | {"blake3", "brotli", "solders", "zstandard"}
# Packages of psyche that run something: a command on a chain asks and sends.
RUNNING: Final = ("client.engine", "config", "data", "forecast", "modeling.trainer", "network", "server", "sim")
LIGHT: Final = {"psyche.network", "psyche.network.limits"}  # numbers, which are defaults of options


def find_loaded(*words: str, rpc: str = "") -> set[str]:
    """Run a command in a process of its own; return the modules that are loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"RPC": rpc},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.rpartition("loaded ")[2]))


def find_packages(loaded: set[str]) -> set[str]:
    """The packages of others among these modules."""
    tops = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"__main__", "psyche"}
    return {name for name in tops if not name.startswith("_")}


def test_the_help_loads_what_every_command_needs_and_nothing_else() -> None:
    assert find_packages(find_loaded("--help")) <= OF_EVERY_COMMAND


COMMANDS: Final = ("run info -r imports", "run list", "rewards show -r imports", "run resume -r imports")


@pytest.mark.parametrize("words", few(COMMANDS, 2))
def test_a_command_on_a_chain_loads_no_package_that_it_does_not_use(box: ChainBox, words: str) -> None:
    if not box.get_path("imports").exists():
        create(box, "imports")
    signed = ("-w", str(box.get_path("imports"))) if "resume" in words else ()
    loaded = find_loaded(*words.split(), *signed, rpc=box.chain.http)
    assert find_packages(loaded) <= ON_CHAIN
    running = tuple(f"psyche.{one}" for one in RUNNING)
    assert not [name for name in loaded - LIGHT if name.startswith(running)]
