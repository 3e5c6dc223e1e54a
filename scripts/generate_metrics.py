"""Generates the table of docs/metrics.md and the Grafana dashboard from `psyche.watch.metrics`.

python scripts/generate_metrics.py           write them
python scripts/generate_metrics.py --check   only report whether one is stale
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import page_blocks

from psyche.watch.metrics import INSTRUMENTS, Instrument

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "metrics.md"
DASHBOARD: Final = ROOT / "telemetry" / "grafana-dashboard.json"
UNITS: Final = {"seconds": "s", "bytes": "bytes", "downloaded": "percent"}  # Grafana's, by the last word of a name
COLUMNS: Final = 3
WIDTH, HEIGHT = 24 // COLUMNS, 8  # of a panel; a dashboard has 24 columns
RATES: Final = {"bytes": "Bps"}
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def generate_table() -> list[str]:
    rows = [
        (f"`{one.series}`", "counter" if one.is_counter else "gauge", "<br>".join(one.labels), one.meaning)
        for one in INSTRUMENTS
    ]
    return page_blocks.format_table(("metric", "kind", "labels", "meaning"), rows)


BLOCKS: Final = {"metrics": generate_table}


def make_targets(one: Instrument) -> list[dict[str, Any]]:
    """What a panel draws: the run as one line, and each member."""
    kinds = [("", "{{run}}" + (f" {{{{{one.by}}}}}" if one.by else ""))] if one.run else []
    kinds += [("+", "{{member}}")] if one.member or one.node else []
    targets = [
        (
            f'{one.series}{{run=~"$run", member=~".{count}"}}' if count else f'{one.series}{{run=~"$run", member=""}}',
            legend,
        )
        for count, legend in kinds
    ]
    return [
        {
            "refId": "AB"[place], "datasource": SOURCE, "legendFormat": legend,
            "expr": f"rate({series}[$__rate_interval])" if one.is_counter else series,
        }
        for place, (series, legend) in enumerate(targets)
    ]  # fmt: skip


def make_panel(place: int, one: Instrument) -> dict[str, Any]:
    last = one.name.rpartition("_")[2]
    unit = RATES.get(last, "cps") if one.is_counter else UNITS.get(last, "short")
    return {
        "id": place + 1, "type": "timeseries", "title": one.name.replace("_", " "), "description": f"{one.meaning}.",
        "datasource": SOURCE, "targets": make_targets(one),
        "gridPos": {"x": place % COLUMNS * WIDTH, "y": place // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
    }  # fmt: skip


def make_variable(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def make_dashboard() -> dict[str, Any]:
    runs = {"query": f"label_values({INSTRUMENTS[0].series}, run)", "refId": "run"}
    return {
        "uid": "psyche", "title": "Psyche", "schemaVersion": 39, "editable": True, "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [
            make_variable("source", type="datasource", query="prometheus"),
            make_variable("run", type="query", datasource=SOURCE, query=runs, multi=True, includeAll=True, refresh=2),
        ]},
        "panels": [make_panel(place, one) for place, one in enumerate(INSTRUMENTS)],
    }  # fmt: skip


def generate_dashboard() -> str:
    return json.dumps(make_dashboard(), indent=1) + "\n"


def is_dashboard_new() -> bool:
    return DASHBOARD.is_file() and DASHBOARD.read_text(encoding="utf-8") == generate_dashboard()


if __name__ == "__main__":
    if not sys.argv[1:]:
        DASHBOARD.write_text(generate_dashboard(), encoding="utf-8")
    stale = page_blocks.run("generate_metrics.py", __doc__, sys.argv[1:], [PAGE], BLOCKS)
    sys.exit(stale or int(not is_dashboard_new()))
