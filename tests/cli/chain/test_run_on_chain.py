"""A run on a chain by its owner's commands, asserted on the accounts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kits.chain.box import SOL, ChainBox, open_chain_box
from kits.models import write_model_folder
from solders.keypair import Keypair
from typer.testing import CliRunner

from psyche.backends.solana.interface.accounts import InstanceData
from psyche.backends.solana.interface.addresses import get_instance_address
from psyche.backends.solana.member.following import check_version
from psyche.cli.app import app
from psyche.config.load import load_run
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    Client,
    Coordinator,
    Mark,
    Progress,
    RunState,
    Slot,
    SlotState,
)
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import FolderFiles
from psyche.wire.backend import Members, RunStatus

WATCHED = (RunState.UNINITIALIZED, RunState.PAUSED, RunState.FINISHED)
DEMO = Path(__file__).parents[3] / "config" / "demo" / "run.toml"


def put_file(folder: Path, name: str = "run.toml", **changes: object) -> Path:
    """The demo's settings with data that each client has, and other changes to [config]."""
    text = DEMO.read_text()
    text = text.replace('Server = "127.0.0.1:20001"', 'Local = "data"')
    for key, value in changes.items():
        text, count = re.subn(rf"(?m)^{key} = \d+", f"{key} = {value}", text)
        assert count == 1, key
    path = folder / name
    path.write_text(text)
    return path


def read_instance(box: ChainBox, run_id: str) -> InstanceData:
    return InstanceData.read(box.get_data(get_instance_address(run_id)))


def read_state(box: ChainBox, run_id: str) -> Coordinator:
    return decode_state(box.get_data(read_instance(box, run_id).coordinator_account))


def create(box: ChainBox, run_id: str, *more: str) -> Keypair:
    owner = box.fund(run_id)
    box.call("run", "create", "--state", put_file(box.folder), "-r", run_id, *more, wallet=run_id)
    return owner


def test_a_run_lives_from_create_to_close_and_every_lamport_of_its_deposits_comes_back(box: ChainBox) -> None:
    owner = box.fund("life")
    before = box.get_lamports(owner.pubkey())
    printed = box.call(
        "run", "create", "--state", put_file(box.folder), "--run-id", "life", "-c", "1.2.3", wallet="life"
    )
    assert "deposit of 1.15277784 SOL" in printed
    assert "transaction 2 of 2" in printed
    instance, state = read_instance(box, "life"), read_state(box, "life")
    assert instance.main_authority == instance.join_authority == owner.pubkey()
    assert (state.run_state, state.client_version) == (RunState.UNINITIALIZED, "1.2.3")
    assert (state.config.entropy_delay, state.config.total_steps > 0) == (4, True)
    assert box.call("run", "resume", "-r", "life", wallet="life").count("run 'life': waiting for members")
    assert box.call("run", "pause", "-r", "life", wallet="life").count("run 'life': paused")
    assert read_state(box, "life").run_state is RunState.PAUSED
    printed = box.call("run", "close", "-r", "life", wallet="life")
    assert "1.15277" in printed.splitlines()[-1]
    assert box.get_data(get_instance_address("life")) == b""
    fees = 5_000 * (2 + 1 + 1 + 1 + 1)  # two transactions to create, of which one has two signatures
    assert before - box.get_lamports(owner.pubkey()) == fees


def test_a_creation_that_stopped_half_way_goes_on_and_a_complete_one_says_so(box: ChainBox) -> None:
    owner, file = box.fund("half"), put_file(box.folder)
    other = put_file(box.folder, "other.toml", total_steps=300)
    box.call("run", "create", "--state", file, "-r", "half", wallet="half")
    account = read_instance(box, "half").coordinator_account
    box.write_state(account, Coordinator(run_id="half", run_uid=read_state(box, "half").run_uid))  # no settings yet
    resumed = box.refuse("run", "resume", "-r", "half", wallet="half")
    assert "has no settings yet: `psyche run create --state FOLDER --run-id half --rpc" in resumed
    assert "[config]" not in resumed, "no rules that a person could not mend"
    printed = box.call("run", "create", "--state", other, "-r", "half", wallet="half")
    assert "completes run 'half'" in printed
    assert "deposit" not in printed
    assert read_state(box, "half").config.total_steps == 300
    edited = box.call("run", "create", "--state", file, "-r", "half", wallet="half")
    shown = "changes run 'half', which is not started: key now then config.total_steps 300 ->"
    assert shown in " ".join(edited.split())
    box.call("run", "create", "--state", other, "-r", "half", wallet="half")
    before = box.get_lamports(owner.pubkey())
    assert "is there" in box.call("run", "create", "--state", other, "-r", "half", wallet="half")
    assert box.get_lamports(owner.pubkey()) == before
    box.call("run", "resume", "-r", "half", wallet="half")
    exists = box.refuse("run", "create", "--state", file, "-r", "half", wallet="half")
    assert f"exists already; `psyche run update-config --state {file} --run-id half --rpc" in exists


def test_settings_texts_version_and_rates_change_on_the_chain(box: ChainBox) -> None:
    create(box, "settings")
    file = put_file(box.folder, "new.toml", total_steps=999)
    shown = box.call("run", "update-config", "--state", file, "-r", "settings", "--dry-run", wallet="settings")
    assert "config.total_steps" in shown
    assert read_state(box, "settings").config.total_steps != 999
    change = ("run", "update-config", "--config-path", file, "-r", "settings", "--name", "N", "--description", "D",
              "--num-parameters", "7", "--vocab-size", "8", "--client-version", "9.9")  # fmt: skip
    for words in (change, ("run", "update-config", "-r", "settings", *change[-2:])):
        refused = box.refuse(*words, wallet="settings")
        assert "this is no terminal, so nobody can be asked; say --yes to change the run" in refused
    assert (read_state(box, "settings").config.total_steps, read_state(box, "settings").client_version) != (999, "9.9")
    box.call(*change, "--yes", wallet="settings")
    state = read_state(box, "settings")
    assert (state.config.total_steps, state.config.entropy_delay, state.client_version) == (999, 4, "9.9")
    assert (state.metadata.name, state.metadata.description) == ("N", "D")
    assert (state.metadata.num_parameters, state.metadata.vocab_size) == (7, 8)
    box.call("run", "extend", "--total-steps", "1200", "-r", "settings", "--yes", wallet="settings")
    box.call(
        "run", "set-future-epoch-rates", "--earning-rate-total-shared", "1000", "-r", "settings", wallet="settings"
    )
    state = read_state(box, "settings")
    assert (state.config.total_steps, state.registry.future_earning_rate) == (1200, 1000)
    restart = ("run", "update-config", "-r", "settings", "--yes", "--restart-from-step")
    assert "trains on from step 11" in box.call(*restart, "11", wallet="settings")
    assert "nothing changes" in box.call(*restart, "11", wallet="settings")
    progress, batch = read_state(box, "settings").progress, state.config.global_batch_size_end
    assert (progress.step, progress.epoch_start_data_index) == (11, 10 * batch)
    assert "from all places on record already" in box.refuse(
        "run", "update-config", "-r", "settings", "--switch-to-hub", wallet="settings"
    )
    words = ("run", "set-future-epoch-rates", "-r", "settings", "--earning-rate-total-shared")
    assert "must have no digits" in box.refuse(*words, "1.5", wallet="settings")
    assert "name what changes" in box.refuse("run", "update-config", "-r", "settings", wallet="settings")


def test_s11_the_digest_of_new_first_weights_goes_on_record_with_their_source(box: ChainBox, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 256, "max_position_embeddings": 512}
    box.fund("begins")
    file = put_file(tmp_path)
    assert "not on record" in box.call("run", "create", "--state", file, "-r", "begins", wallet="begins")
    words = ("run", "update-config", "-r", "begins", "--yes", "--state")
    assert "not on record" not in box.call(*words, file, "--name", "N", wallet="begins")
    digests = [compute_first_digest(FolderFiles(write_model_folder(tmp_path / "model", **sizes)), is_exact=True)]
    assert digests[0].hex() in box.call(*words, file, wallet="begins")
    assert read_state(box, "begins").certified.digest == digests[0]
    assert "nothing changes" in box.call(*words, file, wallet="begins")
    box.call("run", "resume", "-r", "begins", wallet="begins")
    box.call("run", "pause", "-r", "begins", wallet="begins")
    other = put_file(tmp_path, "other.toml")
    other.write_text(other.read_text().replace('"model"', '"larger"'))
    assert "no folder" in box.call(*words, other, "--dry-run", wallet="begins")
    larger = write_model_folder(tmp_path / "larger", hidden_size=64, **sizes)
    digests.append(compute_first_digest(FolderFiles(larger), is_exact=True))
    box.call(*words, other, wallet="begins")
    state = read_state(box, "begins")
    assert (state.model.checkpoint.name, state.certified.digest) == ("larger", digests[1])
    restart = ("run", "update-config", "-r", "begins", "--yes", "--restart-from-step", "11")
    assert "name the run.toml beside it with --state" in box.call(*restart, "--dry-run", wallet="begins")
    box.call(*restart, "--state", other, wallet="begins")
    state = read_state(box, "begins")
    assert (state.progress.step, state.certified.digest, state.certified.step) == (11, digests[1], 11)


def test_info_and_list_show_every_run_without_a_wallet(box: ChainBox) -> None:
    owner = create(box, "shown")
    assert "run 'shown': not started\n" in box.call("run", "info", "-r", "shown")
    plain = json.loads(box.call("run", "json-dump-run", "-r", "shown"))
    assert (plain["run_id"], plain["connections"], plain["clients"]) == ("shown", None, [])
    member, state = Keypair().pubkey(), read_state(box, "shown")
    state.registry.slots.append(Slot(bytes(member), bytes(member)[::-1], state=SlotState.JOINED))
    box.write_state(read_instance(box, "shown").coordinator_account, state)
    assert f"  {str(member)[:8]}  waits" in box.call("run", "info", "-r", "shown"), "as commands take it"
    plain = json.loads(box.call("run", "info", "-r", "shown", "--json"))
    assert ([one["key"] for one in plain["clients"]], plain["is_open"]) == ([str(member)], False)
    box.call("auth", "create", "--authorizer", "everybody", wallet="shown")
    plain = json.loads(box.call("run", "info", "-r", "shown", "--json"))
    assert (plain["is_open"], plain["allowed"]) == (True, None)
    (row,) = (row for row in json.loads(box.call("run", "list", "--json")) if row["run_id"] == "shown")
    assert (row["owner"], row["state"], row["pays"]) == (str(owner.pubkey()), "uninitialized", False)
    assert str(owner.pubkey()) in box.call("run", "list-runs", "--authorizer", str(owner.pubkey()))
    assert "no run" in box.call("run", "list", "--authorizer", str(Keypair().pubkey()))


def test_a_run_is_watched_until_it_is_finished(box: ChainBox, monkeypatch: pytest.MonkeyPatch) -> None:
    create(box, "watched")
    account, state = read_instance(box, "watched").coordinator_account, read_state(box, "watched")
    monkeypatch.setattr("psyche.watch.sources.RunSource.every_s", 0.05)
    seen: list[str] = []

    def show_and_go_on(status: RunStatus, members: Members | None, _: object) -> dict[str, Any]:
        seen.append(RunState(status.run_state).name)
        if len(seen) < 3:
            following = replace(state, run_state=WATCHED[len(seen)], nonce=state.nonce + len(seen))
            thread = Thread(target=box.write_state, args=(account, following))  # the command's loop runs in this one
            thread.start()
            thread.join()
        return {"state": seen[-1], "clients": None if members is None else len(members.members)}

    monkeypatch.setattr("psyche.cli.helpers.watching.get_plain_run", show_and_go_on)
    lines = box.call("run", "info", "-r", "watched", "--watch", "--json").splitlines()
    assert [json.loads(line) for line in lines] == [{"state": one.name, "clients": 0} for one in WATCHED]
    assert "watched: epoch 0 step 1 of 241 | finished" in box.call("run", "info", "-r", "watched", "--watch")


def test_pause_and_resume_have_their_former_name_too(box: ChainBox) -> None:
    create(box, "former")
    box.call("run", "set-paused", "--resume", "-r", "former", wallet="former")
    assert read_state(box, "former").run_state is RunState.WAITING_FOR_MEMBERS
    box.call("run", "set-paused", "-r", "former", wallet="former")
    assert read_state(box, "former").run_state is RunState.PAUSED
    assert "paused already" in box.refuse("run", "pause", "-r", "former", wallet="former")


@pytest.mark.whole
def test_a_run_is_made_before_its_settings_as_the_original_s_book_says(box: ChainBox) -> None:
    owner = box.fund("book")
    words = ("run", "create-run", "--run-id", "book", "--name", "Speech", "--description", "It listens.")
    gate = ("--join_authority", str(owner.pubkey()), "--client-version", "latest")
    printed = box.call(*words, *gate, wallet="book")
    assert "its settings come later" in printed
    assert "psyche run update-config --state FILE --run-id book" in printed
    state = read_state(box, "book")
    assert (state.metadata.name, state.metadata.description) == ("Speech", "It listens.")
    assert (state.run_state, state.config.total_steps) == (RunState.UNINITIALIZED, 0)
    assert "is there" in box.call(*words, wallet="book")
    assert "has no settings yet" in box.refuse("run", "set-paused", "--run-id", "book", "resume", wallet="book")
    for everybody in ("11111111111111111111111111111111", "permissionless"):
        box.call("auth", "join-authorization-create", "--authorization", everybody, wallet="book")
    file = put_file(box.folder)
    box.call("run", "update-config", "--run-id", "book", "--config-path", file, "--yes", wallet="book")
    state = read_state(box, "book")
    assert (state.config.total_steps > 0, state.metadata.name) == (True, load_run(file).metadata.name)
    box.call("run", "set-paused", "--run-id", "book", "resume", wallet="book")
    assert read_state(box, "book").run_state is RunState.WAITING_FOR_MEMBERS
    check_version(read_state(box, "book"))
    box.call("run", "set-paused", "--run-id", "book", wallet="book")
    assert read_state(box, "book").run_state is RunState.PAUSED
    rates = ("--earning-rate", "5", "--slashing-rate", "1")
    box.call("run", "set-future-epoch-rates", "--run-id", "book", *rates, wallet="book")
    assert json.loads(box.call("run", "json-info-dump", "--run-id", "book"))["earning_rate"] == 5
    assert "has no treasurer" in box.refuse(
        "run", "treasurer-top-up-reward", "--run-id", "book", "--collateral-amount", "1", wallet="book"
    )
    assert "exists already" in box.refuse(*words, wallet="book")


@pytest.mark.whole
def test_texts_of_the_command_line_win_over_those_of_the_file(box: ChainBox) -> None:
    create(box, "named", "--name", "Mine")
    assert read_state(box, "named").metadata.name == "Mine"
    assert "name the run with --run-id" in box.refuse("run", "create", "--name", "Mine", wallet="named")
    assert "metadata.name" in box.refuse("run", "create", "-r", "long", "--name", "x" * 500, wallet="named")


def test_a_tick_is_sent_and_paid_only_when_it_is_due(box: ChainBox) -> None:
    owner = create(box, "ticked")
    words = ("run", "tick", "-r", "ticked", "--count", "2", "--ms-interval", "1")
    assert "nothing moves" in box.refuse(*words, wallet="ticked")
    box.call("run", "resume", "-r", "ticked", wallet="ticked")
    before = box.get_lamports(owner.pubkey())
    assert box.call(*words, wallet="ticked").count("waiting_for_members: nothing is due") == 2
    assert box.get_lamports(owner.pubkey()) == before
    state = read_state(box, "ticked")
    for number in range(3):
        state.registry.slots.append(
            Slot(
                bytes([number + 1]) * 32,
                bytes([number + 101]) * 32,
                state=SlotState.JOINED,
                active=state.registry.next_active,
            )
        )
    state.state_start_unix = 0
    box.write_state(read_instance(box, "ticked").coordinator_account, state)
    assert "waiting_for_members -> warmup (epoch 0, height 0, step 1)" in box.call(*words, wallet="ticked")
    assert len(read_state(box, "ticked").clients) == 3
    assert "is going on" in box.refuse("run", "close", "-r", "ticked", wallet="ticked")


def test_a_member_of_the_last_epoch_puts_places_of_its_weights_on_record(box: ChainBox) -> None:
    owner = create(box, "placed")
    account, signer = read_instance(box, "placed").coordinator_account, bytes(owner.pubkey())
    words = ("run", "checkpoint", "-r", "placed")
    assert "has not begun" in box.refuse(*words, "--repo", "ada/model", wallet="placed")
    box.call("run", "resume", "-r", "placed", wallet="placed")
    assert "no certified weights yet" in box.refuse(*words, "--repo", "ada/model", wallet="placed")
    state = read_state(box, "placed")
    state.certified = Mark(bytes([7]) * 32, 3, step=40, data_index=320)
    state.checkpoint = Mark(bytes([6]) * 32, 2, step=20, data_index=160)
    state.progress = Progress(4, 40, 320)
    box.write_state(account, state)
    assert "no such member" in box.refuse(*words, "--repo", "ada/model", wallet="placed")
    state.clients = [Client(signer, bytes([1]) * 32)]
    box.write_state(account, state)
    assert "step 40" in box.call(*words, "--repo", "ada/model", "--revision", "v2", wallet="placed")
    assert "on record already" in box.call(*words, "--repo", "ada/model", "--revision", "v2", wallet="placed")
    box.call(*words, "--gcs-bucket", "ada", "--gcs-prefix", "models/40", wallet="placed")
    model = read_state(box, "placed").model
    assert model.checkpoint == Checkpoint(CheckpointKind.HUB, "ada/model", "v2")
    assert model.extra_checkpoints[0] == Checkpoint(CheckpointKind.GCS, "ada", "models/40")
    assert "name one place" in box.refuse(*words, wallet="placed")
    assert "--gcs-prefix: belongs to --gcs-bucket" in box.refuse(
        *words, "--repo", "a/b", "--gcs-prefix", "x", wallet="placed"
    )


class TestRefusals:
    """What goes wrong is told before anything is sent, and the message says what to do."""

    def test_an_empty_wallet_and_a_poor_one(self, box: ChainBox) -> None:
        file = put_file(box.folder)
        for name, lamports in (("empty", 0), ("poor", 10**9)):
            wallet = box.fund(name, lamports)
            printed = box.refuse("run", "create", "--state", file, "-r", name, wallet=name)
            assert "nothing was sent" in printed
            assert str(wallet.pubkey()) in printed
            assert box.get_lamports(wallet.pubkey()) == lamports

    def test_a_missing_run_and_a_missing_run_id(self, box: ChainBox) -> None:
        box.fund("lost")
        for words in (("run", "pause"), ("run", "close"), ("run", "tick"), ("rewards", "claim")):
            printed = box.refuse(*words, "-r", "no-such-run", wallet="lost")
            assert "there is no run 'no-such-run'" in printed
            assert "psyche run list" in printed
        assert "name this one with --run-id" in box.refuse("run", "pause", wallet="lost")
        assert "1 to 32 bytes" in box.refuse("run", "pause", "-r", "ü" * 17, wallet="lost")

    def test_a_foreign_owner(self, box: ChainBox) -> None:
        owner = create(box, "owned")
        box.fund("thief")
        file = put_file(box.folder)
        for words in (("pause",), ("close",), ("create", "--state", file), ("update-config", "--name", "x", "--yes")):
            assert f"belongs to {owner.pubkey()}" in box.refuse("run", *words, "-r", "owned", wallet="thief")

    def test_a_file_that_is_no_key_and_no_wallet_at_all(self, box: ChainBox) -> None:
        create(box, "keyless")
        box.get_path("broken").write_text("hello")
        assert "no key" in box.refuse("run", "pause", "-r", "keyless", wallet="broken")
        assert "--wallet-private-key-path" in box.refuse("run", "pause", "-r", "keyless")

    def test_data_from_a_server_and_rounds_too_short_for_a_chain(self, box: ChainBox) -> None:
        box.fund("data")
        assert "a chain serves no data" in box.refuse("run", "create", "--state", DEMO, "-r", "data", wallet="data")
        file = put_file(box.folder, "short.toml", round_witness_time=5)
        assert "use at least 6 s" in box.call("run", "create", "--state", file, "-r", "data", wallet="data")

    def test_a_chain_without_the_programs(self, box: ChainBox, tmp_path: Path) -> None:
        box.fund("wrong-chain")
        with open_chain_box(tmp_path, programs={}) as empty:
            wallet = empty.fund("stranger")
            assert "does not have Psyche's programs" in empty.refuse("run", "info", "-r", "any")
            assert "check --rpc" in empty.refuse("run", "list")
            file = put_file(tmp_path)
            empty.refuse("run", "create", "--state", file, "-r", "any", wallet="stranger")
            assert empty.get_lamports(wallet.pubkey()) == 10 * SOL

    def test_two_backends_no_backend_and_the_commands_of_the_other_one(self, box: ChainBox) -> None:
        assert "one backend" in box.refuse("run", "info", "--server-addr", "127.0.0.1:1", "-r", "x")
        done = CliRunner().invoke(app, ["run", "info"])
        assert (done.exit_code, "--rpc URL" in done.output) == (1, True)
        box.fund("other")
        for words, instead in (("allow", "psyche auth create"), ("collect", "psyche rewards claim")):
            assert instead in box.refuse("run", words, "00" * 32, "-r", "x", wallet="other")

    def test_a_wrong_treasurer_index(self, box: ChainBox) -> None:
        create(box, "indexed")
        printed = box.refuse("run", "pause", "-r", "indexed", "--treasurer-index", "7", wallet="indexed")
        assert "has no treasurer" in printed


def test_a_shared_chain_is_asked_about_and_a_local_one_is_not(box: ChainBox, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = create(box, "devnet")
    monkeypatch.setattr("psyche.backends.solana.target.name_foreign", lambda *_: "devnet")
    before = box.get_lamports(owner.pubkey())
    assert "say --yes to spend on devnet" in box.refuse("run", "resume", "-r", "devnet", wallet="devnet")
    assert box.get_lamports(owner.pubkey()) == before
    assert "on devnet: resumes run" in box.call("run", "resume", "-r", "devnet", "--yes", wallet="devnet")
    assert box.get_lamports(owner.pubkey()) == before - 5_000


def test_the_file_of_a_run_names_it_where_no_option_does(box: ChainBox, tmp_path: Path) -> None:
    owner, file = box.fund("filed"), put_file(tmp_path)
    file.write_text(file.read_text().replace('run_id = "demo"', 'run_id = "filed"'))
    box.call("run", "create", "--state", file, wallet="filed")
    assert "run 'filed'" in box.call("run", "update-config", "--state", file, "--name", "N", "--yes", wallet="filed")
    assert read_state(box, "filed").metadata.name == "N"
    assert read_instance(box, "filed").main_authority == owner.pubkey()
