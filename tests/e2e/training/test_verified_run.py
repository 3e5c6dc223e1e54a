"""Real clients that verify each other: a member that cheats is put out by a jury, whatever it does (B1 to B4)."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from kits.cluster import Cluster, open_cluster
from kits.run_files import DISTRO, MakeRun

from psyche.core.state.state import AuditReason

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

MEMBERS, ROUNDS, CHEAT = 6, 30, 6
HONEST = [f"client-{number}" for number in range(1, MEMBERS)]
KINDS = ("lazy", "half", "other", "stale", "resent")


@dataclass
class Verified:
    cluster: Cluster
    evidence: list[Path]
    info: str  # what `psyche run info` prints to the owner once the cheat is out


async def run(folder: Path, config: Path, kind: str) -> Verified:
    async with open_cluster(folder, config) as cluster:
        cluster.start_server()
        for number in range(1, MEMBERS):
            cluster.start_client(number)
        cluster.start_cheat(CHEAT, kind)
        await cluster.until("the cheat to be put out", lambda: find_verdicts(cluster))
        at = max(event["height"] for event in cluster.find("client-1", "digest"))
        await cluster.until_round(epoch=0, height=at + 2)
        info = await cluster.run_command(
            "run", "info", "--server-addr", cluster.server_address, "--state-dir", cluster.data_dir("server")
        )
        found = Verified(cluster, sorted(folder.glob("client-*/evidence/*.evidence")), info)
        for name in (*HONEST, f"client-{CHEAT}", "server"):
            cluster.interrupt(name)
        await cluster.until_ended(*HONEST, f"client-{CHEAT}", "server")
        await cluster.assert_all_gone()
    return found


def find_verdicts(cluster: Cluster) -> list[dict[str, object]]:
    return [
        event for event in cluster.find("client-1", "challenge_ended") if str(event["outcome"]).startswith("put out")
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_that_cheats_is_put_out_and_the_others_go_on_alike(
    kind: str, tmp_path: Path, make_run: MakeRun
) -> None:
    optimizer = DISTRO + 'lookahead = "Own"\n'
    config = make_run(
        optimizer=optimizer, init_min_clients=MEMBERS, verification_percent=20, convict=True,
        global_batch_size_start=48, global_batch_size_end=48, rounds_per_epoch=ROUNDS, total_steps=ROUNDS + 1,
    )  # fmt: skip
    found = await run(tmp_path / "run", config, kind)
    cluster = found.cluster
    (verdict,) = find_verdicts(cluster)
    cheat = cluster.find(f"client-{CHEAT}", "member")[0]["index"]
    whole = (AuditReason.SIGNS, AuditReason.SELECTION, AuditReason.LINK)  # of a verifier that looked at a whole round
    assert verdict["reason"] in {reason.name.lower() for reason in (AuditReason.GRADIENT, *whole)}
    assert [event["target"] for event in cluster.find("client-1", "challenged")] == [verdict["target"]]
    doubted = {event["target"] for name in HONEST for event in cluster.find(name, "judged") if event.get("guilty")}
    assert doubted == {cheat}
    digests: dict[int, set[str]] = {}
    for name in HONEST:
        for event in cluster.find(name, "digest"):
            digests.setdefault(event["height"], set()).add(event["digest"])
    assert {len(known) for known in digests.values()} == {1}
    assert found.evidence
    check_what_is_shown(found, verdict)


def check_what_is_shown(found: Verified, verdict: dict[str, object]) -> None:
    cluster, info = found.cluster, " ".join(found.info.split())
    assert "20 % of the members verify, juries put out who fails" in info
    assert re.search(r"audits: \d+ made, \d+ fine, \d+ unclear, \d+ failed", info)
    assert re.search(rf"client-{CHEAT}: off by \S+ in the median", info)
    assert re.search(rf"client-{CHEAT}, accused by client-\d of its work in epoch 0.*: put out: .* guilty", info)
    key = str(cluster.find(f"client-{CHEAT}", "client_started")[0]["identity"])
    assert f"banned from the run: {key[:8]}" in info or f"banned from the run: client-{CHEAT}" in info
    (told,) = cluster.find("server", "challenge_ended")
    assert {**told, "t": 0, "node": ""} == {**verdict, "t": 0, "node": ""}
