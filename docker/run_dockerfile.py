"""Runs the steps of a Dockerfile in a clean root folder, where there is no container engine.

    python docker/run_dockerfile.py docker/server.Dockerfile

Then runs `psyche --version` in it. What an image would lack, this root lacks: a compiler, this machine's Python
packages, the checkout. Steps run in a mount namespace, as the user that the Dockerfile names. Cache mounts are uv's own
cache on this machine; the image's packages are links into it, so that no gigabytes are copied.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clean_root import NoCleanRoot, make_root

SOURCE: Final = Path(__file__).resolve().parents[1]
BASE: Final = "python:3.11-slim"
PASSED_ON: Final = re.compile(r"(PIP|UV)_.*INDEX.*|PIP_FIND_LINKS|.*_proxy|.*_PROXY|UV_SYSTEM_CERTS", re.IGNORECASE)
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
PATH: Final = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
# Quicker than in an image, with the same packages: links instead of copies, bytecode only of what is imported.
QUICKER: Final = {"UV_LINK_MODE": "symlink", "UV_COMPILE_BYTECODE": "0"}
SCRATCH: Final = "/dev/shm"  # in memory: thousands of small files are removed again at once
SCRATCH_BYTES: Final = 2 << 30
ENTER: Final = """
root=$1; user=$2; folder=$3; shift 3
while [ "$1" != -- ]; do
  if [ -d "${1%%:*}" ]; then mkdir -p "$root${1#*:}"; fi
  mount --rbind "${1%%:*}" "$root${1#*:}"; shift
done; shift
exec chroot --userspec="$user" "$root" /usr/bin/env -i "$@"
"""
IN_ROOT: Final = 'cd "$0" && exec "$@"'


@dataclass
class Image:
    """What the steps of a Dockerfile have made, and how its process is started."""

    root: Path
    user: str = "root"
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)  # mounts that stay

    def enter(
        self, command: Sequence[str], *, mounts: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The command line that runs `command` in the image; a mount is `folder:place in the image`."""
        devices = [f"/dev/{name}:/dev/{name}" for name in ("null", "zero", "random", "urandom", "shm")]
        variables = self.env | {"HOME": "/root" if self.user == "root" else f"/home/{self.user}"} | dict(env or {})
        unshare = ["unshare", "--mount", "--propagation", "private", *([] if is_root() else ["--map-root-user"])]
        user = self.user if is_root() else "0"
        return [
            *unshare, "/bin/sh", "-ec", ENTER, "enter", str(self.root), user, self.workdir,
            "/proc:/proc", *devices, *self.caches, *mounts, "--",
            *(f"{name}={value}" for name, value in variables.items()), "/bin/sh", "-c", IN_ROOT, self.workdir, *command,
        ]  # fmt: skip


def is_root() -> bool:
    return os.geteuid() == 0


def open_scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that programs may run from: in memory where there is room."""
    found = os.statvfs(SCRATCH) if Path(SCRATCH).is_dir() else None
    is_fit = found and not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= SCRATCH_BYTES
    return tempfile.TemporaryDirectory(dir=SCRATCH if is_fit and os.access(SCRATCH, os.W_OK) else None)


def find_hindrance() -> str:
    """Why no Dockerfile can be checked here; empty if one can."""
    probe = ["unshare", "--mount", *([] if is_root() else ["--map-root-user"]), "mount", "--bind", "/tmp", "/tmp"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no `unshare`, which comes with util-linux"
    return f"this machine allows no mount namespaces: {done.stderr.strip()}" if done.returncode else ""


def read_steps(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, without comments, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def build(dockerfile: Path, folder: Path) -> Image:
    """Run the steps in the new folder `folder`/root.

    Raises:
        NoCleanRoot: no clean root can be made on this machine.
        SystemExit: a step failed, or is of a kind that this script does not know.
    """
    image = Image(folder / "root")
    image.root.mkdir()
    make_root(image.root)
    context = copy_context(folder / "context")
    for word, rest in read_steps(dockerfile.read_text()):
        match word:
            case "FROM" if rest == BASE:
                pass
            case "ENV":
                image.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "RUN":
                run_step(image, rest, context)
            case "USER":
                image.user = rest
            case "WORKDIR":
                image.workdir = rest
            case "ENTRYPOINT":
                image.entrypoint = read_exec(rest)
            case "CMD":
                image.cmd = read_exec(rest)
            case "HEALTHCHECK":
                image.health = read_exec(rest.partition(" CMD ")[2])
            case "VOLUME" | "EXPOSE":
                pass
            case _:
                sys.exit(f"{dockerfile}: {word} {rest}: this script does not know how to do that")
    return image


def read_exec(text: str) -> list[str]:
    """The exec form of a command: a list of strings."""
    return [str(word) for word in json.loads(text)]


def copy_context(context: Path) -> Path:
    """Copy what .dockerignore lets through: the paths after `!`."""
    kept = [line[1:] for line in (SOURCE / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    context.mkdir()
    for name in kept:
        if (SOURCE / name).is_dir():
            shutil.copytree(SOURCE / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(SOURCE / name, context / name)
    return context


def run_step(image: Image, rest: str, context: Path) -> None:
    """Run a command with its mounts; a cache that it mounts stays, for packages link into it."""
    words = rest.split()
    mounts: list[str] = []
    while words[0].startswith("--mount="):
        options = dict(option.split("=", 1) for option in words.pop(0).removeprefix("--mount=").split(","))
        if options["type"] == "cache":
            cache = f"{find_cache()}:{options['target']}"
            image.caches += [] if cache in image.caches else [cache]
        else:
            mounts.append(f"{context / options.get('source', '')}:{options['target']}")
    passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    env = passed | {"SSL_CERT_FILE": CERTIFICATES, "PIP_CERT": CERTIFICATES} | QUICKER
    command = image.enter(["/bin/sh", "-c", " ".join(words)], mounts=mounts, env=env)
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"this step ended with exit code {done.returncode}: RUN {rest}")


def find_cache() -> str:
    """The folder of uv's cache on this machine.

    Raises:
        SystemExit: there is no uv.
    """
    uv = shutil.which("uv", path=f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        sys.exit(
            "not run: there is no `uv`; use the Python of a checkout: .venv/bin/python docker/run_dockerfile.py FILE"
        )
    told = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    Path(told).mkdir(parents=True, exist_ok=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    given = parser.parse_args()
    if hindrance := find_hindrance():
        sys.exit(f"not run: {hindrance}")
    with open_scratch() as scratch:
        try:
            image = build(given.dockerfile, Path(scratch))
        except NoCleanRoot as error:
            sys.exit(f"not run: {error}")
        command = image.enter([*image.entrypoint, "--version"])
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
