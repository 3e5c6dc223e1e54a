"""Every account of a run on a chain equals what core makes of the chain's instructions, slot by slot."""

from dataclasses import dataclass, field

import pytest
from box import NOW, BoxedRun, begin_run, fund, make_bank, sign
from kits.chain.replay import ChainReplay
from kits.runs import Run
from solders.account import Account
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.chain.addresses import EVERYBODY, get_authorization_address
from psyche.chain.coordinator import build_collect, build_join_run, build_owner_message, build_user_message
from psyche.core.state import messages as msg
from psyche.core.state.messages import Message
from psyche.core.state.state import ZERO32, RunState
from psyche.localchain.bank import Bank
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
        instruction = self.build(self.boxed, message, sender)
        asked = {meta.pubkey for meta in instruction.accounts if meta.is_signer} - {self.payer.pubkey()}
        known = {**SIGNERS, bytes(self.boxed.owner.pubkey()): self.boxed.owner}
        transaction = sign(self.bank.newest_hash, self.payer, [instruction], *(known[bytes(key)] for key in asked))
        assert self.bank.execute(transaction) is None, message
        self.bank.advance(self.now)
        self.state = self.boxed.read(self.bank)
        return self.state.nonce > before

    def build(self, boxed: BoxedRun, message: Message, sender: bytes) -> Instruction:
        payer, owner = self.payer.pubkey(), boxed.owner.pubkey()
        match message:
            case msg.Join(p2p, expires):
                authorization = get_authorization_address(owner, EVERYBODY)
                return build_join_run(boxed.run, Pubkey(sender), Pubkey(p2p), authorization, expires)
            case msg.Collect(((signer, _),)):
                return build_collect(boxed.run, payer, self.state.run_uid, Pubkey(signer))
            case msg.Pause() | msg.Resume() | msg.SetRates() | msg.Update() | msg.UpdateClientVersion():
                return build_owner_message(boxed.run, owner, message)
            case _:
                user = payer if sender == ZERO32 else Pubkey(sender)
                return build_user_message(boxed.run, user, message)  # type: ignore[arg-type]


@pytest.fixture
def replay() -> ChainReplay:
    return ChainReplay(make_bank())


def build_bank_run(replay: ChainReplay) -> BankRun:
    bank = replay.bank
    boxed = begin_run(bank)
    bank.advance(NOW)
    keys = [(bytes(wallet.pubkey()), bytes(p2p.pubkey())) for wallet, p2p in KEYS]
    return BankRun(boxed.read(bank), now=NOW, keys=keys.__getitem__, bank=bank, boxed=boxed, payer=fund(bank))


def test_a_run_with_an_epoch_a_pause_an_update_and_earnings_is_what_core_makes_of_it(replay: ChainReplay) -> None:
    run = build_bank_run(replay)
    assert run.boxed is not None
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
    assert replay.get_state(run.boxed.run.account) == run.state
    assert replay.checked >= 20, "each message in a slot of its own"
    assert replay.calls > 20


def test_an_account_that_is_not_what_core_makes_of_it_is_noticed(replay: ChainReplay) -> None:
    run = build_bank_run(replay)
    assert run.boxed is not None
    account = replay.bank.get_account(run.boxed.run.account)
    assert account is not None
    changed = bytearray(account.data)
    changed[-1] ^= 1
    replay.bank.put_account(run.boxed.run.account, Account(account.lamports, bytes(changed), account.owner))
    with pytest.raises(AssertionError, match="is not what core makes of it"):
        replay.bank.advance(NOW)
