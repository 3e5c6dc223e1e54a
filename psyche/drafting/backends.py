"""Where a new run's record is to be, and what its files and the commands that come next have of that."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from psyche.backends.kinds import CHAIN, SERVER, BackendTraits

SEVERAL: Final = (
    "# several clients on one machine: each with another --data-dir, and with its share of the cores (--threads)"
)


@dataclass(frozen=True, slots=True)
class DraftedBackend:
    """A server or a chain; what one of them lacks is None or empty."""

    traits: BackendTraits
    data_server: str | None  # host:port where members fetch samples; None: each member reads the data itself
    about: str  # for run.toml
    flag: str  # of commands that play or try the run
    list_next: Callable[[str, str], tuple[str, ...]]  # from folder and run id to the commands that begin it


def draft_server(address: str) -> DraftedBackend:
    """A server at "host:port", as members reach it; its data server is one port above."""
    host, _, port = address.rpartition(":")
    at = f"--server-addr {address}"
    return DraftedBackend(
        SERVER, f"{host}:{int(port) + 1}", "", "",
        lambda folder, run_id: (
            "# for real: the server; for each member a client, which shows its KEY; then let it in",
            f"psyche server run --state {folder} --server-port {port}",
            f"psyche client train --run-id {run_id} {at} --local-root {folder} --data-dir client-1",
            f"psyche run allow KEY {at} --state-dir psyche-data/server-{run_id}",
            SEVERAL,
        ),
    )  # fmt: skip


def draft_chain(rpc: str) -> DraftedBackend:
    about = " Its record is on a chain, where `psyche auth` says who may join."
    return DraftedBackend(
        CHAIN, None, about, f" --backend {CHAIN.kind}",
        lambda folder, _run_id: (
            "# for real: with your wallet, which pays; it says what comes next",
            f"psyche run create --state {folder} --rpc {shlex.quote(rpc)}",
        ),
    )  # fmt: skip
