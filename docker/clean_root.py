"""A root folder with what an image `python:3.11-slim` has, made of this machine's own files.

It holds the packages that every Debian has, and Python in /usr/local with pip and nothing else: no compiler, no
headers, none of the packages that this machine happens to have. Needs a Debian or Ubuntu.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

BESIDE_ESSENTIAL: Final = ("adduser", "ca-certificates", "libstdc++6", "netbase", "passwd", "tzdata")
LEFT_OUT: Final = ("/usr/share/doc", "/usr/share/info", "/usr/share/locale", "/usr/share/man", "/usr/share/zoneinfo")
MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr on every newer Debian
OF_HOST: Final = ("/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
EMPTY: Final = ("dev", "etc", "home", "proc", "root", "sys", "usr/local/bin", "var/cache", "var/tmp")
OF_NO_USE: Final = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "config-*")
PIP_SCRIPT: Final = "#!/usr/local/bin/python3\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
LIBRARY: Final = re.compile(r"(/\S+) \(0x")


class NoCleanRoot(Exception):
    """No clean root can be made here; the message says why."""


def make_root(root: Path) -> None:
    """Fill the empty folder `root`.

    Raises:
        NoCleanRoot: this machine is no Debian.
    """
    if shutil.which("dpkg-query") is None:
        raise NoCleanRoot("this machine has no dpkg: only on Debian and Ubuntu a clean root can be made")
    for folder in EMPTY:
        (root / folder).mkdir(parents=True)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    for name in MERGED:
        if Path("/", name).is_symlink():
            (root / "usr" / name).mkdir(exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    copy_files(root, list_files(find_packages()))
    write_accounts(root)
    copy_python(root)
    (root / "dev" / "shm").mkdir()
    for device in ("null", "zero", "random", "urandom"):
        (root / "dev" / device).touch()


def find_packages() -> set[str]:
    """The essential packages, a few that are in every image, and all that they depend on."""
    fields = "${Package}\\t${Essential}\\t${Pre-Depends}, ${Depends}\\t${Provides}\\n"
    told = subprocess.run(["dpkg-query", "-W", "-f", fields], capture_output=True, text=True, check=True).stdout
    needs: dict[str, list[str]] = {}
    providers: dict[str, str] = {}
    wanted = list(BESIDE_ESSENTIAL)
    for line in told.splitlines():
        name, essential, depends, provides = line.split("\t")
        needs[name] = [re.split(r"[ :(|]", one.strip())[0] for one in depends.split(",") if one.strip()]
        providers |= {re.split(r"[ (]", one.strip())[0]: name for one in provides.split(",") if one.strip()}
        wanted += [name] if essential == "yes" else []
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        name = name if name in needs else providers.get(name, "")
        if name and name not in found:
            found.add(name)
            wanted += needs[name]
    return found


def list_files(packages: Iterable[str]) -> list[str]:
    told = subprocess.run(["dpkg-query", "-L", *sorted(packages)], capture_output=True, text=True, check=True).stdout
    return [line for line in told.splitlines() if line.startswith("/") and not line.startswith(LEFT_OUT)]


def copy_files(root: Path, paths: Iterable[str]) -> None:
    """Copy files and links to the same places below `root`."""
    for text in [*paths, *OF_HOST]:
        source, target = Path(text), root / text.lstrip("/")
        if os.path.lexists(target) or not os.path.lexists(source):
            continue
        if source.is_dir() and not source.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=text in OF_HOST)


def write_accounts(root: Path) -> None:
    """The accounts that a fresh system has."""
    for name in ("passwd", "group"):
        shutil.copy(root / "usr" / "share" / "base-passwd" / f"{name}.master", root / "etc" / name)
    (root / "etc" / "shadow").touch(mode=0o640)
    (root / "etc" / "gshadow").touch(mode=0o640)


def copy_python(root: Path) -> None:
    """The interpreter that runs this, its standard library, the libraries that these load, and pip."""
    local, version = root / "usr" / "local", f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(sys.base_prefix, "bin", version)
    standard = Path(sysconfig.get_path("stdlib"))
    shutil.copy(program, local / "bin" / version)
    for alias in ("python3", "python"):
        (local / "bin" / alias).symlink_to(version)
    shutil.copytree(standard, local / "lib" / version, ignore=shutil.ignore_patterns(*OF_NO_USE), symlinks=True)
    for shared in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
        shutil.copy(shared, local / "lib" / shared.name)
    extensions = list((standard / "lib-dynload").glob("*.so"))
    loaded = subprocess.run(["ldd", program, *extensions], capture_output=True, text=True, check=False).stdout
    copy_files(root, [str(Path(one).resolve()) for one in LIBRARY.findall(loaded)])
    copy_files(root, LIBRARY.findall(loaded))
    packages = local / "lib" / version / "site-packages"
    (bundled,) = (standard / "ensurepip" / "_bundled").glob("pip-*.whl")
    zipfile.ZipFile(bundled).extractall(packages)
    (local / "bin" / "pip").write_text(PIP_SCRIPT)
    (local / "bin" / "pip").chmod(0o755)
