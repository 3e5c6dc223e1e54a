"""/metrics as Prometheus' own parser reads it, and the dashboard that is drawn from the same table."""

import json
import re
from math import nan
from pathlib import Path

import pytest
from kits.log import make
from prometheus_client.parser import text_string_to_metric_families
from watch.page_kit import Logs, open_page

from psyche.analysis.run_view import RunView
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from psyche.watch.metrics import INSTRUMENTS, write_metrics

EVIL = '"}\\\n\u202e\x1b[31m psyche_evil 1' + "a" * 10_000
DASHBOARD = Path(__file__).resolve().parents[2] / "telemetry" / "grafana-dashboard.json"
Sample = tuple[str, tuple[tuple[str, str], ...]]


def read(text: str) -> dict[Sample, float]:
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    found = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}
    assert len(found) == len(samples), "each series once"
    return found


async def test_metrics_are_those_of_the_run_and_of_each_member(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs")
    for height in range(4):
        logs.play(height, late="ben" if height == 2 else "")
    logs.emit("ada", make(types.Network, bytes_sent=7, bytes_received=9, peers=1, gossip_received=5, gossip_refused=2))
    logs.emit("ben", make(types.Error, message="out of memory"))
    logs.emit("ada", make(types.PayloadReceived, bytes=9))
    logs.emit("ada", make(types.WitnessSent))
    logs.emit("ada", make(types.ModelFetch, bytes=1, total=4))
    async with open_page(logs.folder, write_metrics) as (client, watcher):
        answer = await client.get("/metrics")
        view = watcher.views[0]
    assert answer.headers["content-type"] == "text/plain; version=0.0.4"
    found = read(answer.text)
    run, ada = (("run", "run"),), (("key", "ada"), ("member", "ada"), ("run", "run"))
    assert found["psyche_training_loss", run] == view.loss
    assert found["psyche_total_tokens", run] == view.tokens == 512
    assert found["psyche_training_efficiency", run] == 0.5
    assert found["psyche_round_step", run] == 4
    assert found["psyche_troubles", (("cause", "error"), *run)] == 1
    assert found["psyche_troubles", (("cause", "disk"), *run)] == 0
    own = {name: value for (name, labels), value in found.items() if labels == ada}
    assert own["psyche_training_loss"] == pytest.approx(4.7)
    assert (own["psyche_upload_bytes_total"], own["psyche_download_bytes_total"]) == (7, 9)
    assert (own["psyche_broadcasts_seen_total"], own["psyche_apply_message_failure_total"]) == (5, 2)
    assert (own["psyche_downloads_finished_total"], own["psyche_witnesses_sent_total"]) == (1, 1)
    assert (own["psyche_gossip_neighbors"], own["psyche_p2p_model_params_downloaded"]) == (1, 25)
    assert own["psyche_last_train_time_seconds"] == 1


def test_what_strangers_say_is_harmless_in_metrics() -> None:
    view = RunView("run")
    for node in (EVIL, f"{EVIL[:-1]}b"):  # which look alike when they are cut
        view.take(Entry(1.0, node, make(types.ClientStarted, run_id=EVIL)))
        view.take(Entry(1.0, node, make(types.Trained, loss=nan, seconds=1e308, tokens=2**63)))
    for step, loss in enumerate((1e308, nan, 800.0)):
        view.take(Entry(1.0, "server", make(types.RoundOver, step=step, loss=loss, tokens_per_s=loss, tokens=10**400)))
    found = read(write_metrics([view, RunView("run"), view]))
    assert not any("evil" in name for name, _ in found)
    runs = {dict(labels)["run"] for _, labels in found}
    assert len(runs) == 3
    assert all(one.isprintable() and len(one) < 60 for one in runs)
    assert [value for (name, _), value in found.items() if name == "psyche_training_loss"] == [800.0, 800.0]
    assert [value for (name, _), value in found.items() if name == "psyche_total_tokens"] == [0.0], "of the empty run"


def test_the_dashboard_draws_every_metric_and_no_other() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = {found for panel in panels for one in panel["targets"] for found in re.findall(r"psyche_\w+", one["expr"])}
    assert drawn == {one.series for one in INSTRUMENTS}
    assert len({one.series for one in INSTRUMENTS}) == len(INSTRUMENTS)
