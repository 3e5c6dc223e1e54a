"""Every account of a run on a chain equals what core makes of the chain's instructions, one by one."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from box import NOW, make_bank
from kits.chain.chain_run import BoxedRun, begin_run, build_message, fund, sign
from kits.runs import Run
from solders.account import Account
from solders.keypair import Keypair
from typer.testing import CliRunner

from psyche.backends.solana.interface.addresses import COORDINATOR, EVERYBODY, get_authorization_address
from psyche.backends.solana.interface.coordinator import build_owner_message
from psyche.cli.app import app
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state import messages as msg
from psyche.core.state.messages import Message
from psyche.core.state.state import ZERO32, RunState
from psyche.errors import ConfigError
from psyche.localchain.bank import Bank
from psyche.localchain.recorder import open_recorder, replay_record
from psyche.localchain.replay import ChainCall, ReplayDifference, RunReplay
from psyche.testing.builders import build_config, build_hash

KEYS = [(Keypair.from_seed(build_hash("wallet", n)), Keypair.from_seed(build_hash("session", n))) for n in range(3)]
SIGNERS = {bytes(key.pubkey()): key for pair in KEYS for key in pair}


@dataclass
class BankRun(Run):
    """A run whose messages are transactions of a bank, one in each slot."""

    bank: Bank = field(default_factory=make_bank)
    boxed: BoxedRun | None = None
    payer: Keypair = field(default_factory=Keypair)

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        assert self.boxed is not None
        before = self.state.nonce
        run, owner, payer = self.boxed.run, self.boxed.owner.pubkey(), self.payer.pubkey()
        grant = get_authorization_address(owner, EVERYBODY)
        instruction = build_message(run, payer, owner, grant, message, sender, self.state.run_uid)
        asked = {meta.pubkey for meta in instruction.accounts if meta.is_signer} - {self.payer.pubkey()}
        known = {**SIGNERS, bytes(self.boxed.owner.pubkey()): self.boxed.owner}
        transaction = sign(self.bank.newest_hash, self.payer, [instruction], *(known[bytes(key)] for key in asked))
        assert self.bank.execute(transaction) is None, message
        self.bank.advance(self.now)
        self.state = self.boxed.read(self.bank)
        return self.state.nonce > before


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "chain.rec"


def build_bank_run(bank: Bank) -> BankRun:
    boxed = begin_run(bank)
    bank.advance(NOW)
    keys = [(bytes(wallet.pubkey()), bytes(p2p.pubkey())) for wallet, p2p in KEYS]
    return BankRun(boxed.read(bank), now=NOW, keys=keys.__getitem__, bank=bank, boxed=boxed, payer=fund(bank))


def play(run: BankRun) -> None:
    """An epoch, a pause, an update, earnings that are collected, and who leaves."""
    run.apply(msg.SetRates(1_000, 7))
    run.join(0, 1, 2)
    run.warm_up()
    run.run_round()
    run.apply(msg.Pause())
    run.finish_epoch()
    assert run.state.run_state is RunState.PAUSED
    run.apply(msg.Collect(((run.keys(0)[0], None),)))
    run.apply(msg.Update(config=build_config(rounds_per_epoch=2), nonce=run.state.nonce))
    run.apply(msg.Resume())
    run.leave(1)
    run.join(0, 2)
    run.warm_up()


def test_a_run_with_an_epoch_a_pause_an_update_and_earnings_is_what_core_makes_of_it(record: Path) -> None:
    bank = make_bank()
    with open_recorder(bank, record):
        run = build_bank_run(bank)
        play(run)
        bank.advance(NOW)
    (found,) = replay_record(record).get_runs()
    assert found.state == run.state
    assert found.compared > 20
    assert (found.unseen, found.first_nonce, found.nonce) == (0, 0, run.state.nonce)
    said = CliRunner().invoke(app, ["dev", "replay", str(record)])
    assert said.exit_code == 0, said.output
    assert f"nonces 0 to {run.state.nonce}: collect 1, init_coordinator 1, join_run 5, leave_run 1," in said.output
    assert f"equal what core makes of them after each of {found.compared} instructions" in said.output


def test_instructions_of_one_transaction_are_compared_one_by_one(record: Path) -> None:
    bank = make_bank()
    with open_recorder(bank, record):
        boxed = begin_run(bank)
        bank.advance(NOW)
        both = [build_owner_message(boxed.run, boxed.owner.pubkey(), one) for one in (msg.Pause(), msg.Resume())]
        assert bank.execute(sign(bank.newest_hash, boxed.owner, [*both, *both])) is None
        bank.advance(NOW)
    (found,) = replay_record(record).get_runs()
    assert (found.calls["set_paused"], found.unseen) == (5, 0)
    assert found.compared == found.calls.total()


def test_a_record_may_begin_while_a_run_goes_on_and_end_with_its_chain(record: Path) -> None:
    bank = make_bank()
    run = build_bank_run(bank)
    with open_recorder(bank, record):
        play(run)
        bank.advance(NOW)
    (found,) = replay_record(record).get_runs()
    assert found.first_nonce > 0
    assert found.state == run.state
    record.write_bytes(record.read_bytes()[:-7])  # a chain that was killed
    assert replay_record(record).get_runs()[0].compared <= found.compared


def test_an_account_that_is_not_what_core_makes_of_it_is_named_field_by_field(record: Path) -> None:
    bank = make_bank()
    with open_recorder(bank, record):
        run = build_bank_run(bank)
        assert run.boxed is not None
        account = bank.get_account(run.boxed.run.account)
        assert account is not None
        other = decode_state(bytes(account.data))
        other.progress = replace(other.progress, step=other.progress.step + 1)
        bank.put_account(run.boxed.run.account, Account(account.lamports, encode_state(other), account.owner))
        run.apply(msg.SetRates(1_000, 7))
        bank.advance(NOW)
    said = CliRunner().invoke(app, ["dev", "replay", str(record)])
    assert said.exit_code == 1
    assert "set_future_epoch_rates in slot" in said.output
    assert "progress.step: 02 on the chain, 01 in core" in said.output


def test_what_is_no_record_or_damaged_is_refused(record: Path) -> None:
    def refuse() -> str:
        done = CliRunner().invoke(app, ["dev", "replay", str(record)])
        assert done.exit_code == 1, done.output
        assert "Traceback" not in done.output
        return done.output

    assert "chain.rec" in refuse()
    record.write_text("hello")
    assert "is no record of a chain" in refuse()
    record.unlink()
    bank = make_bank()
    with open_recorder(bank, record):
        begin_run(bank)
        bank.advance(NOW)
    with pytest.raises(ConfigError, match="is there already"), open_recorder(bank, record):
        pass
    raw = bytearray(record.read_bytes())
    raw[30:34] = b"\xff" * 4
    record.write_bytes(raw)
    assert "is damaged" in refuse()
    record.write_bytes(raw[:22])
    assert "is empty" in refuse()


def test_an_instruction_that_this_version_does_not_know_is_refused() -> None:
    """A record of a newer psyche may have one."""
    call = ChainCall(bytes(8), (COORDINATOR,), slot=7)
    with pytest.raises(ReplayDifference, match="slot 7: an instruction that this version does not know"):
        RunReplay(()).carry_out(call)
