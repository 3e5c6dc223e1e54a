"""Real clients that verify each other: a member that cheats is put out by a jury, whatever it does (B1 to B4)."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import trio
from kits.cluster import Cluster, open_cluster
from kits.run_files import DISTRO, LOCAL_STEPS, MakeRun

from psyche.core.state.state import AuditReason

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

MEMBERS, CHEAT = 6, 6
HONEST = [f"client-{number}" for number in range(1, MEMBERS)]
WHOLE = {AuditReason.SIGNS, AuditReason.SELECTION, AuditReason.LINK}  # of a verifier that looks at a whole round
KINDS: Final = {kind: {AuditReason.GRADIENT, *WHOLE} for kind in ("lazy", "half", "other", "stale", "resent")} | {
    "poison": {AuditReason.SIGNS, AuditReason.LINK}, "flipped": {AuditReason.SELECTION}, "greedy": {AuditReason.LINK},
}  # fmt: skip  # the reasons by which each is found; the last three have honest tables
LOCAL: Final = (
    LOCAL_STEPS.replace('"AdamW"', '"AdamWAnew"')
    .replace("inner_steps = 4", "inner_steps = 8")
    .replace("merge_step = 1", "merge_step = 6")
)
CODES: Final = {False: 0, True: 3, None: 4}


CONVICTED, DISGRACED = "put out", "not guilty, and the accuser is put out for false accusations"
ACQUITTED: Final = "not guilty: the accuser is put out if it makes more false accusations"


@dataclass
class Verified:
    cluster: Cluster
    evidence: list[Path]
    info: str  # what `psyche run info` prints to the owner once the cheat is out


async def run(folder: Path, config: Path, kind: str, outcome: str = CONVICTED) -> Verified:
    async with open_cluster(folder, config) as cluster:
        cluster.start_server()
        for number in range(1, MEMBERS):
            cluster.start_client(number)
        cluster.start_cheat(CHEAT, kind)
        await cluster.until("the cheat to be put out", lambda: find_verdicts(cluster, outcome))
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


def find_verdicts(cluster: Cluster, outcome: str = CONVICTED) -> list[dict[str, object]]:
    return [e for e in cluster.find("client-1", "challenge_ended") if str(e["outcome"]).startswith(outcome)]


async def verify(cluster: Cluster, file: Path) -> tuple[int, str]:
    """`psyche verify`, with the snapshot and the replay store of a member."""
    place = cluster.data_dir("client-1")
    weights = min((place / "resume").iterdir())
    command = cluster.psyche("verify", file, "--weights", weights, "--replay", place / "replay")
    done = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode()


def find_jurors_verdict(cluster: Cluster, file: Path, verdict: dict[str, object]) -> bool | str | None:
    """What whoever kept the file has voted, or its accusation came to; a doubt has come to nothing."""
    name, words = file.parent.parent.name, file.stem.split("-")
    height, target, reason = int(words[3]), int(words[5]), words[6]
    for event in reversed(cluster.find(name, "judged")):
        if (event["height"], event["target"], event["reason"]) == (height, target, reason):
            return event["guilty"]
    is_accuser = verdict["accuser"] == cluster.find(name, "client_started")[0]["identity"][:16]
    return True if is_accuser and (verdict["height"], verdict["reason"]) == (height, reason) else "doubt"


async def check_evidence(found: Verified, verdict: dict[str, object]) -> None:
    """Who has only the files comes to the verdict of whoever wrote them."""
    judged: list[bool | str | None] = []
    for file in found.evidence:
        code, said = await verify(found.cluster, file)
        judged.append(find_jurors_verdict(found.cluster, file, verdict))
        print(file.parent.parent.name, file.name, judged[-1], code, said)
        if judged[-1] != "doubt":
            assert code == CODES[judged[-1]], said
    assert judged.count(True) >= 3, "the accuser and two jurors"


CASES: Final = [(DISTRO + 'lookahead = "Own"\n', kind) for kind in KINDS] + [(LOCAL, "half"), (LOCAL, "other")]


@pytest.mark.parametrize(("optimizer", "kind"), CASES, ids=[*KINDS, "half of local steps", "other of local steps"])
async def test_a_member_that_cheats_is_put_out_and_the_others_go_on_alike(
    optimizer: str, kind: str, tmp_path: Path, make_run: MakeRun
) -> None:
    is_linked = KINDS[kind] < WHOLE
    percent, rounds = (40, 180) if is_linked else (20, 30)  # a fifth of the verifiers look at whole rounds
    config = make_run(
        optimizer=optimizer, init_min_clients=MEMBERS, verification_percent=percent, convict=True,
        global_batch_size_start=48, global_batch_size_end=48, rounds_per_epoch=rounds, total_steps=rounds + 1,
    )  # fmt: skip
    found = await run(tmp_path / "run", config, kind)
    cluster = found.cluster
    (verdict,) = find_verdicts(cluster)
    cheat = cluster.find(f"client-{CHEAT}", "member")[0]["index"]
    assert verdict["reason"] in {reason.name.lower() for reason in KINDS[kind]}
    # a jury that is too slow decides nothing, and the next one does
    assert {event["target"] for event in cluster.find("client-1", "challenged")} == {verdict["target"]}
    doubted = {event["target"] for name in HONEST for event in cluster.find(name, "judged") if event.get("guilty")}
    assert doubted == {cheat}
    assert_equal_digests(cluster)
    check_what_is_shown(found, verdict, percent)
    await check_evidence(found, verdict)


def assert_equal_digests(cluster: Cluster) -> None:
    digests: dict[int, set[str]] = {}
    for name in HONEST:
        for event in cluster.find(name, "digest"):
            digests.setdefault(event["height"], set()).add(event["digest"])
    assert {len(known) for known in digests.values()} == {1}


def check_what_is_shown(found: Verified, verdict: dict[str, object], percent: int) -> None:
    cluster, info = found.cluster, " ".join(found.info.split())
    assert f"{percent} % of the members verify, juries put out who fails" in info
    assert re.search(r"audits: \d+ made, \d+ fine, \d+ unclear, \d+ failed", info)
    assert re.search(rf"client-{CHEAT}: off by \S+ in the median", info)
    assert re.search(rf"client-{CHEAT}, accused by client-\d of its work in epoch 0.*: put out: .* guilty", info)
    key = str(cluster.find(f"client-{CHEAT}", "client_started")[0]["identity"])
    assert f"banned from the run: {key[:8]}" in info or f"banned from the run: client-{CHEAT}" in info
    told = cluster.find("server", "challenge_ended")[-1]
    assert {**told, "t": 0, "node": ""} == {**verdict, "t": 0, "node": ""}


async def test_who_accuses_honest_members_is_put_out_by_the_second_acquittal_and_they_stay(
    tmp_path: Path, make_run: MakeRun
) -> None:
    """B18; the files of accuser and jurors say innocent, whoever reads them (V13)."""
    config = make_run(
        optimizer=DISTRO + 'lookahead = "Own"\n', init_min_clients=MEMBERS, verification_percent=40, convict=True,
        global_batch_size_start=48, global_batch_size_end=48, rounds_per_epoch=60, total_steps=61,
    )  # fmt: skip
    found = await run(tmp_path / "run", config, "accuser", DISGRACED)
    cluster = found.cluster
    accuser = str(cluster.find(f"client-{CHEAT}", "client_started")[0]["identity"])
    ended = cluster.find("client-1", "challenge_ended")
    assert {event["accuser"] for event in ended} == {accuser[:16]}
    acquitted = [event for event in ended if str(event["outcome"]).startswith("not guilty")]
    assert [event["outcome"] for event in acquitted] == [ACQUITTED, DISGRACED]
    assert not find_verdicts(cluster)
    assert_equal_digests(cluster)  # of all whom it has accused, to the end
    keepers = {file.parent.parent.name for file in found.evidence}
    assert f"client-{CHEAT}" in keepers
    assert len(keepers) >= 3, "a quorum of jurors, and the accuser"
    for file in found.evidence:
        code, said = await verify(cluster, file)
        assert code == CODES[False], said
        assert said.strip().endswith(": innocent")
    info = " ".join(found.info.split())
    assert f"banned from the run: client-{CHEAT}" in info
    for outcome in (ACQUITTED, DISGRACED):
        assert re.search(f"accused by client-{CHEAT} of its work .*: {outcome}; 0 guilty, [34] innocent", info)
