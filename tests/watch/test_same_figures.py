"""A run of real processes that is watched in all ways at once: every one of them tells the same figures."""

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from kits.run_files import write_model, write_run
from kits.testnet import CalledTestnet, call_testnet
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner
from watch.page_kit import read_data, run_command
from watch.terminal_kit import open_terminal
from watch.test_trackers import Found, read_csv, read_tensorboard, read_trackio, read_wandb

from psyche.cli.app import app
from psyche.telemetry.text import format_loss
from psyche.testnet.free_port import choose_port

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

COLUMNS = {"train/loss": "loss", "train/total_tokens": "tokens", "train/tokens_per_sec": "tokens_per_s"}


def read_figures(curve: dict[str, list[Any]]) -> Found:
    """What a curve of the page has of what a tracker gets."""
    return {
        (key, step): value
        for key, name in COLUMNS.items()
        for step, value in zip(curve["step"], curve[name], strict=True)
        if value  # a chain tells no tokens
    }


def of_rounds(found: Found) -> Found:
    """Without what is known of members at the moment of writing, which differs from tracker to tracker."""
    return {place: value for place, value in found.items() if not re.search(r"bytes|p2p.*tokens_per_sec", place[0])}


def pick(found: Found, *keys: str) -> Found:
    return {place: value for place, value in found.items() if place[0] in keys}


def get(address: str, path: str) -> Any:
    return httpx2.get(f"{address}{path}", timeout=60).json()


def call(*words: object) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("backend", ["tcp", "solana"])
def test_every_way_to_watch_a_run_tells_the_same_figures(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, board, logs_csv, own_csv = choose_port(), tmp_path / "board", tmp_path / "run.csv", tmp_path / "backend.csv"
    homes = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    for name, value in homes.items():
        monkeypatch.setenv(name, value)
    config = write_run(tmp_path / "config", write_model(tmp_path / "model"), init_min_clients=2)
    file = config / "run.toml"
    file.write_text(re.sub("^Server = .*", 'Local = "data"', file.read_text(), flags=re.MULTILINE))
    words = ["--num-clients", "2", "--backend", backend, "--server-port", str(port), "--open-joins", "--web", "0"]
    words += ["--csv", str(logs_csv), "--tensorboard", str(board), "--trackio", "psyche", "--wandb-group", "demo"]
    with call_testnet(tmp_path / "testnet", config, *words, has_own_host=False) as testnet:
        owner = ["--server-addr", f"127.0.0.1:{port}", "--state-dir", testnet.folder / "server"]
        if backend == "solana":
            owner = ["--rpc", f"http://127.0.0.1:{port}", "--run-id", "e2e"]
        testnet.wait_for("a round", lambda: any(one["kind"] == "applied" for one in read_some(testnet)))
        with run_command(*owner, "--csv", own_csv) as address:
            info = json.loads(call("run", "info", "--json", *owner))
            assert testnet.wait() == 0, testnet.describe()
            curve = get(address, "api/runs/0/rounds")["curve"]
    own = of_rounds(read_csv(own_csv))
    assert read_figures(curve).items() <= own.items(), "the page and the table of one watcher"
    told = of_rounds(read_csv(logs_csv))
    assert of_rounds(read_wandb(tmp_path / "wandb")) == told
    assert of_rounds(read_trackio(tmp_path / "trackio")) == told
    assert of_rounds(read_tensorboard(board / "e2e")) == pytest.approx(told)  # which are floats of 32 bits
    tokens = pick(told, "train/total_tokens")
    assert tokens["train/total_tokens", info["step"]] == info["tokens"]
    common = {place for place in own if place in told}
    assert len({step for _, step in common}) >= 10
    if backend == "tcp":
        assert {place: own[place] for place in common} == {place: told[place] for place in common}
    else:  # the loss is what one witness claims, or the mean of two; in 32 bits
        for (_, step), loss in pick(own, "train/loss").items():
            one, other = (told[f"p2p/nodes.client-{number}.loss", step] for number in (1, 2))
            assert min(abs(loss - claimed) for claimed in (one, other, (one + other) / 2)) < 1e-6
    see_the_end(testnet, told)


def read_some(testnet: CalledTestnet) -> list[dict[str, Any]]:
    return testnet.read("client-1") if (testnet.folder / "events" / "client-1").exists() else []


def see_the_end(testnet: CalledTestnet, told: Found) -> None:
    """Afterwards console, screen, page, metrics and saved page show the figures of the last round, and the weights."""
    (digest,) = {one["digest"] for name in ("client-1", "client-2") for one in testnet.read(name) if is_end(one)}
    last = max(step for _, step in told)
    loss, tokens = told["train/loss", last], told["train/total_tokens", last]
    console = call("watch", testnet.folder, "--once")
    with open_terminal("watch", str(testnet.folder), "--tui", columns=160, rows=50) as terminal:
        terminal.wait_for(f"step {last}", f"loss {format_loss(loss)}")
        terminal.type("2")
        terminal.wait_for(f"weights {digest}")
    assert f"step {last}" in console
    assert f"loss {format_loss(loss)}" in console
    with run_command(testnet.folder) as address:
        run, rounds = get(address, "api/runs/0"), get(address, "api/runs/0/rounds")
        metrics = httpx2.get(f"{address}metrics", timeout=60).text
    assert (run["step"], run["loss"], run["tokens"]) == (last, loss, tokens)
    assert {one["digest"] for one in run["people"]} == {digest}
    assert read_figures(rounds["curve"]).items() <= told.items()
    saved = read_data((testnet.folder / "run.html").read_text())["runs"]
    assert isinstance(saved, list)
    assert saved[0]["history"]["curve"] == rounds["curve"]
    samples = [one for family in text_string_to_metric_families(metrics) for one in family.samples]
    shown = {one.name: one.value for one in samples if set(one.labels) == {"run"}}
    assert (shown["psyche_training_loss"], shown["psyche_total_tokens"]) == (loss, tokens)
    assert shown["psyche_round_step"] == last
    (summary,) = re.findall(r"[0-9a-f]{8,}", testnet.describe())[:1] or [digest]
    assert digest.startswith(summary[:8])


def is_end(line: dict[str, Any]) -> bool:
    return line["kind"] == "finished"
