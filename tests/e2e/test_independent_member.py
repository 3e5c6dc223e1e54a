"""A member that was built from the pages alone trains beside two real clients, and all end with the same weights.

The run is made once; each test asks one thing of it.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from kits.cluster import DEADLINE_S, Cluster, open_cluster
from kits.run_files import MakeRun

from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Coordinator
from psyche.modeling.snapshot import list_snapshots
from psyche.testing.builders import build_identity
from psyche.wire.key_file import read_key_file

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

MEMBER = Path(__file__).resolve().parents[1] / "independent_peers" / "independent_member.py"
INDEPENDENT = build_identity("independent")
ROUNDS, STEPS = 4, 8  # with data, of an epoch and of the run


@dataclass
class Meeting:
    cluster: Cluster
    seen: dict[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    digest: str = ""
    kept: dict[str, bytes] = field(default_factory=dict)  # the last weights of a client, fp32

    @property
    def state(self) -> Coordinator:
        """The record in the last Cooldown."""
        return decode_state((self.folder / "record.bin").read_bytes())

    @property
    def member(self) -> int:
        return next(m for m, client in enumerate(self.state.clients) if client.p2p == INDEPENDENT.public)


async def read_all(process: trio.Process) -> dict[str, Any]:
    assert process.stdout is not None
    found = b""
    while not found.endswith(b"\n"):
        part = await process.stdout.receive_some()
        assert part, "the independent member's process ended"
        found += part
    return json.loads(found)


async def meet(folder: Path, config: Path, clients: int) -> Meeting:
    async with open_cluster(folder, config) as cluster:
        meeting = Meeting(cluster, folder=folder / "independent")
        meeting.folder.mkdir()
        await cluster.start(clients)
        key = read_key_file(cluster.data_dir("server") / "server.key").public
        told = {
            "port": cluster.port, "server": key.hex(), "seed": INDEPENDENT.seed.hex(), "run_id": "e2e",
            "folder": str(meeting.folder),
        }  # fmt: skip
        command = [sys.executable, str(MEMBER)]
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdin is not None
            await process.stdin.send_all(json.dumps(told).encode() + b"\n")
            with trio.move_on_after(DEADLINE_S) as scope:
                meeting.seen = await read_all(process)
            assert not scope.cancelled_caught, cluster.describe()
            codes = await cluster.until_ended(*cluster.clients)
            assert not any(codes), cluster.describe()
        finally:
            process.kill()
            await process.wait()
        meeting.digest = cluster.assert_equal_weights()
        snapshot = list_snapshots(cluster.data_dir("client-1") / "resume")[0]
        meeting.kept = {blob.name: blob.path.read_bytes() for blob in snapshot.blobs}
    return meeting


@pytest.fixture(scope="module", params=[2, 1], ids=["overlap, two clients", "no overlap, one client"])
def meeting(request: pytest.FixtureRequest, make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Meeting:
    clients: int = request.param
    config = make_run(
        overlap=clients == 2, rounds_per_epoch=ROUNDS, total_steps=STEPS + 1, straggler_percent=0,
        max_round_train_time=120, init_min_clients=clients + 1,
    )  # fmt: skip
    return trio.run(meet, tmp_path_factory.mktemp("meeting"), config, clients)


def test_nothing_failed_and_nothing_of_psyche_was_there(meeting: Meeting) -> None:
    assert meeting.seen["failures"] == []
    assert set(meeting.seen["refusals"]) <= {"no place in the run yet"}  # dialed before the others knew its join
    # T7: a quorum of two of three may close a round before it reports; the epoch's last leads to Cooldown.
    is_quorum_met_without = len(meeting.cluster.clients) > 1
    late = [[["submit", 6], code] for code in ("WrongRound", "InvalidRunState") if is_quorum_met_without]
    assert [one for one in meeting.seen["refused"] if one not in late] == []
    assert meeting.seen["psyche"] == []


def test_members_apply_the_independent_members_payload_in_every_round(meeting: Meeting) -> None:
    for name in meeting.cluster.clients:
        decided = [event for event in meeting.cluster.find(name, "decided") if not event["void"]]
        assert len(decided) == STEPS
        assert all(meeting.member in event["members"] for event in decided)
    assert len(meeting.seen["applied"]) == STEPS
    everybody = list(range(len(meeting.cluster.clients) + 1))
    assert all(members == everybody for members in meeting.seen["applied"].values())


def test_the_independent_earns_a_credit_for_every_round(meeting: Meeting) -> None:
    assert meeting.seen["credits"] == {"0": ROUNDS, "1": ROUNDS}
    client = meeting.state.clients[meeting.member]
    assert client.credits == ROUNDS
    assert meeting.state.registry.slots[client.slot].proven


def test_its_digests_are_the_agreed_ones(meeting: Meeting) -> None:
    assert len(meeting.seen["agreed"]) >= STEPS
    assert meeting.seen["digest"] == meeting.digest


def test_its_weights_are_bit_identical_to_a_clients(meeting: Meeting) -> None:
    with np.load(meeting.folder / "weights.npz") as own:
        assert len(own.files) > 5
        assert {name: own[name].tobytes() for name in own.files} == {name: meeting.kept[name] for name in own.files}


def test_its_reports_are_on_record(meeting: Meeting) -> None:
    """With one client both have to say the same, in every round: a quorum of two is two."""
    reporting = {record.member for round_ in meeting.state.rounds for record in round_.witnesses}
    if len(meeting.cluster.clients) == 1:
        assert meeting.member in reporting
        assert meeting.seen["reports"] >= STEPS + 2  # and in each epoch's drain round
