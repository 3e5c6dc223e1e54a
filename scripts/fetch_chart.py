"""Fetches the chart library of the page, checks it, and writes its two files and its licence into the package.

    python scripts/fetch_chart.py [--check]

`--check` only compares what lies there with what npm has.
"""

import hashlib
import io
import sys
import tarfile
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Final

VERSION: Final = "1.6.32"
SHA512: Final = "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
ADDRESS: Final = f"https://registry.npmjs.org/uplot/-/uplot-{VERSION}.tgz"
STATIC: Final = Path(__file__).parents[1] / "psyche" / "watch" / "static"
FILES: Final = ("package/dist/uPlot.iife.min.js", "package/dist/uPlot.min.css")


def fetch() -> dict[str, bytes]:
    """The files by name; the licence stands at the top of each."""
    with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
        packed = answer.read()
    if b64encode(hashlib.sha512(packed).digest()).decode() != SHA512:
        sys.exit(f"{ADDRESS}: its SHA-512 is not the one that is named here; nothing is written")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        read = {name: archive.extractfile(name).read() for name in (*FILES, "package/LICENSE")}
    licence = b"/*! uPlot %s\n%s*/\n" % (VERSION.encode(), read.pop("package/LICENSE"))
    return {name.rpartition("/")[2]: licence + body for name, body in read.items()}


def main() -> None:
    for name, body in fetch().items():
        path = STATIC / name
        if "--check" not in sys.argv[1:]:
            path.write_bytes(body)
        elif path.read_bytes() != body:
            sys.exit(f"{path}: is not what uPlot {VERSION} has")


if __name__ == "__main__":
    main()
