"""Takes the pictures of docs/watch.md anew, by the tests that look at them; needs chromium-headless-shell."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEST = "tests/watch/test_pictures.py"


def main() -> int:
    environment = os.environ | {"PSYCHE_PICTURES": str(ROOT / "docs" / "img")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", TEST], cwd=ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
