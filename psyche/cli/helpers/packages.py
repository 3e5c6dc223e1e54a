"""The packages that not everybody needs: for training (the extra `train`) and for chains (the extra `solana`).

Servers and their owners do without both.
"""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psyche
from psyche.errors import ConfigError

TRAIN: Final = frozenset(
    {"ifaddr", "libp2p", "matplotlib", "multiaddr", "pyarrow", "safetensors", "tokenizers", "torch", "transformers"}
)
SOLANA: Final = frozenset({"httpx2", "hypercorn", "solana", "solders", "yaml"})
PACKAGE: Final = Path(psyche.__file__).parent
LOCK: Final = PACKAGE / "requirements" / "train.lock"  # is in the wheel alone
INSTALLER: Final = PACKAGE.parent / "scripts" / "install"  # is in a checkout alone


def get_install_command() -> str:
    """The command that installs what training and chains need.

    In a wheel's environment it installs the versions that the lock names, without their dependencies: libp2p pins a
    release of fastecdsa that has to be compiled, and the lock names one with wheels.
    """
    if not LOCK.is_file():
        return f"bash {shlex.quote(str(INSTALLER))}"
    python, lock = shlex.quote(sys.executable), shlex.quote(str(LOCK))
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{pip} --no-deps -r {lock}"


def explain_missing(error: ModuleNotFoundError) -> Exception:
    """Say how to install a package of an extra; any other missing module is a bug, and returned as it is."""
    name = (error.name or "").partition(".")[0]
    if name not in TRAIN | SOLANA:
        return error
    what = "training needs" if name in TRAIN else "a run on a chain needs, and what training needs"
    return ConfigError(
        f"this command needs {name}, which is not installed here; this installs all that {what}, without a "
        f"compiler: {get_install_command()}"
    )
