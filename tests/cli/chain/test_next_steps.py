"""What commands on a chain say to do next is run as it is printed."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from kits.chain.box import SOL, ChainBox
from kits.models import write_model_folder
from solders.keypair import Keypair
from test_run_on_chain import create, put_file, read_state
from typer.testing import CliRunner

from psyche.backends.solana.wallet import read_wallet
from psyche.cli.app import app
from psyche.core.state.state import RunState
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import FolderFiles


def find_commands(text: str) -> list[str]:
    """The commands that a text names in full: those in quotes, and those on lines of their own."""
    return re.findall(r"`(psyche [^`]+)`", text) + re.findall(r"(?m)^ *(psyche .+)$", text)


def run_one(text: str, command: str, *more: str) -> str:
    """Run the command of this kind that a text names, with the further options, and return what it prints."""
    (printed,) = dict.fromkeys(line for line in find_commands(text) if line.startswith(f"psyche {command} "))
    done = CliRunner().invoke(app, [*shlex.split(printed, comments=True)[1:], *more])
    assert done.exit_code == 0, f"{printed}\n{done.output}"
    return done.output


def test_a_new_run_is_opened_started_paused_and_closed_by_what_is_printed(box: ChainBox, tmp_path: Path) -> None:
    box.fund("steps")
    file = put_file(tmp_path)
    model = write_model_folder(tmp_path / "model", vocab_size=256, max_position_embeddings=512)
    created = box.call("run", "create", "--state", file, "-r", "steps", wallet="steps")
    state = read_state(box, "steps")
    assert state.certified.digest == compute_first_digest(
        FolderFiles(model), is_exact=state.model.optimizer.quantize_1bit
    )
    opened = run_one(created, "auth create")
    assert run_one(created, "run resume").count("waiting for members")
    (train,) = (line for line in find_commands(created) if line.startswith("psyche client train "))
    client = typer.main.get_command(app).commands["client"].commands["train"]
    assert client.make_context("train", shlex.split(train)[3:]).params["local_root"] == tmp_path
    going = box.refuse("run", "close", "-r", "steps", wallet="steps")
    run_one(going, "run pause")
    assert "paused" in run_one(going, "run info")
    assert read_state(box, "steps").run_state is RunState.PAUSED
    assert "may join no longer" in run_one(opened, "auth delete")
    assert "came back" in run_one(created, "run close")
    assert "no run" in run_one(box.refuse("run", "info", "-r", "steps"), "run list")


def test_a_wallet_that_is_short_of_sol_is_filled_by_what_is_printed(box: ChainBox) -> None:
    box.fund("short", SOL)
    words = ("run", "create", "--state", str(put_file(box.folder)), "-r", "short")
    run_one(box.refuse(*words, wallet="short"), "dev airdrop")
    box.call(*words, wallet="short")


@pytest.mark.whole
def test_another_join_authority_opens_the_run_with_its_own_wallet(box: ChainBox) -> None:
    gate = box.fund("gate")
    box.fund("gated")
    words = ("run", "create", "--state", put_file(box.folder), "-r", "gated", "--join-authority", str(gate.pubkey()))
    created = box.call(*words, wallet="gated")
    assert f"With the wallet {gate.pubkey()}" in created
    refused = box.refuse("run", "can-join", "-r", "gated", "--address", str(Keypair().pubkey()))
    gates = ("-w", str(box.get_path("gate")))
    run_one(created, "auth create", *gates)
    assert "may join" in run_one(refused, "auth create", *gates)


@pytest.mark.whole
def test_a_halted_run_is_resumed_and_a_missing_wallet_made_by_what_is_printed(box: ChainBox) -> None:
    create(box, "halted")
    run_one(box.refuse("run", "tick", "-r", "halted", "--count", "1", wallet="halted"), "run resume")
    assert read_state(box, "halted").run_state is RunState.WAITING_FOR_MEMBERS
    missing = box.refuse("run", "pause", "-r", "halted", wallet="missing")
    address = run_one(missing, "client show-wallet").strip()
    assert address == str(read_wallet(box.get_path("missing")).pubkey())
    assert "may join" in box.call("auth", "create", "--authorizer", address, wallet="halted")


@pytest.mark.whole
def test_a_run_that_is_not_paused_is_paused_changed_and_resumed_by_what_the_refusals_print(box: ChainBox) -> None:
    create(box, "refused")
    box.call("run", "resume", "-r", "refused", wallet="refused")
    file = put_file(box.folder, "longer.toml", total_steps=4_000)
    update = ("run", "update-config", "-r", "refused", "--state", str(file))
    said = box.refuse(*update, wallet="refused")
    run_one(said, "run pause")
    assert "paused" in run_one(said, "run info")
    box.call(*update, "--yes", wallet="refused")
    assert "waiting for members" in run_one(box.refuse("run", "pause", "-r", "refused", wallet="refused"), "run resume")


@pytest.mark.whole
def test_a_client_that_may_not_join_prints_what_lets_it_in(box: ChainBox) -> None:
    owner, main, machine = create(box, "gates"), box.fund("main"), box.fund("machine")
    owned = ("-w", str(box.get_path("gates")))
    words = ("client", "train", "--run-id", "gates")
    run_one(box.refuse(*words, wallet="machine"), "auth create", *owned)
    assert "yes: " in box.call("run", "can-join", "-r", "gates", "--address", str(machine.pubkey()))
    delegated = box.refuse(*words, "--authorizer", str(main.pubkey()), wallet="machine")
    run_one(delegated, "auth create", *owned)
    run_one(delegated, "auth delegate", "-w", str(box.get_path("main")))
    read = ("auth", "read", "--join-authority", str(owner.pubkey()), "--authorizer", str(main.pubkey()))
    assert f"delegate {machine.pubkey()}" in box.call(*read)


@pytest.mark.whole
def test_an_owner_that_takes_part_is_let_in_by_its_own_wallet(box: ChainBox) -> None:
    owner = create(box, "both")
    run_one(box.refuse("client", "train", "--run-id", "both", wallet="both"), "auth create")
    assert "yes: " in box.call("run", "can-join", "-r", "both", "--address", str(owner.pubkey()))


def test_what_the_environment_says_is_not_repeated(box: ChainBox) -> None:
    box.fund("quiet")
    words = ["run", "create", "--state", str(put_file(box.folder)), "-r", "quiet"]
    settings = {"RPC": box.chain.http, "WALLET_PRIVATE_KEY_PATH": str(box.get_path("quiet"))}
    assert "  psyche run resume --run-id quiet\n" in CliRunner().invoke(app, words, env=settings).stdout
