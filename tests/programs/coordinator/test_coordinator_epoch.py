"""A run on a chain from its creation to its end, with true signatures, beside the same run in core."""

from dataclasses import dataclass, field
from typing import Final

import pytest
from kits.runs import Run
from programs.chain_kit import ChainStage, build_slot_hashes
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import EarnedPointsData
from psyche.backends.solana.interface.addresses import EVERYBODY, get_authorization_address, get_earned_points_address
from psyche.backends.solana.interface.authorizer import build_authorization_create, build_authorization_grantor_update
from psyche.backends.solana.interface.events import (
    ChainEvent,
    CollectedEvent,
    JoinedEvent,
    LeftRunEvent,
    StateChangedEvent,
    WithdrewEvent,
    read_events,
)
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state import messages as msg
from psyche.core.state.messages import Message
from psyche.core.state.state import ZERO32, Metadata, Progress, RunState
from psyche.testing.builders import build_config, build_hash, build_model

MEMBERS: Final = 3


def build_wallets(number: int) -> tuple[Keypair, Keypair]:
    """Wallet and session key of a participant."""
    seeds = build_hash("wallet", number), build_hash("session", number)
    return Keypair.from_seed(seeds[0]), Keypair.from_seed(seeds[1])


def get_wallet_keys(number: int) -> tuple[bytes, bytes]:
    wallet, p2p = build_wallets(number)
    return bytes(wallet.pubkey()), bytes(p2p.pubkey())


@dataclass
class ChainedRun(Run):
    """A run whose messages go to the program first, signed; the account must be what core makes of them."""

    stage: ChainStage = field(default_factory=ChainStage)
    events: list[ChainEvent] = field(default_factory=list[ChainEvent])
    signers: dict[bytes, Keypair] = field(default_factory=dict[bytes, Keypair])

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        self.stage.set_clock(self.unix, self.unix)
        if isinstance(message, msg.Tick) and self.state.current.entropy_slot:
            self.stage.bank.svm.set_slot_hashes(build_slot_hashes(self.state.current.entropy_slot, message.entropy))
        self.carry_out(self.stage.build(sender, message))
        changed = super().apply(message, sender)
        assert self.stage.raw == encode_state(self.state), message
        return changed

    def carry_out(self, instruction: Instruction) -> None:
        payer = self.stage.bank.payer.pubkey()
        asked = {meta.pubkey for meta in instruction.accounts if meta.is_signer} - {payer}
        result = self.stage.bank.send(instruction, signers=[self.signers[bytes(key)] for key in asked])
        self.events += read_events(result.logs())


@pytest.fixture
def run() -> ChainedRun:
    """A new run on a chain, whose join authority lets everybody join."""
    stage = ChainStage()
    stage.bank.svm.airdrop(stage.authorities.join, 10**9)
    stage.create(version="0.9")
    authorization = get_authorization_address(stage.authorities.join, EVERYBODY)
    stage.bank.put(authorization, Pubkey.default(), b"")
    payer = stage.bank.payer.pubkey()
    stage.bank.send(
        build_authorization_create(payer, stage.authorities.join, EVERYBODY),
        build_authorization_grantor_update(stage.authorities.join, authorization, active=True),
        signers=[stage.join_authority],
    )
    keys = [stage.owner, *(key for number in range(MEMBERS) for key in build_wallets(number))]
    signers = {bytes(key.pubkey()): key for key in keys}
    return ChainedRun(decode_state(stage.raw), keys=get_wallet_keys, stage=stage, signers=signers)


def test_a_run_is_set_up_trains_pays_and_ends_and_its_events_say_so(run: ChainedRun) -> None:
    config = build_config(entropy_delay=4, rounds_per_epoch=3)
    run.apply(msg.Update(config, build_model(), Progress()))
    run.apply(msg.Update(metadata=Metadata("a run", "of three", 1, 2), bootstrap=("/ip4/10.0.0.1/udp/9/quic-v1",)))
    run.apply(msg.UpdateClientVersion("1.0"))
    run.apply(msg.SetRates(earning=301))
    run.apply(msg.Resume())
    run.join(*range(MEMBERS))
    before = len(run.events)
    run.join(0)
    run.tick(None)
    assert len(run.events) == before, "a repeated join and an idle tick are no events"
    run.withdraw(2)
    run.join(2)
    run.warm_up().finish_epoch()
    run.rejoin()
    run.leave(1)
    run.apply(msg.Pause())
    keys = [get_wallet_keys(number) for number in range(MEMBERS)]
    earned = [slot.earned for slot in run.state.registry.slots]
    assert (sum(earned), min(earned)) == (301 - run.state.registry.carry, 99)
    for (signer, _), points in zip(keys, earned, strict=True):
        run.apply(msg.Collect(((signer, None),)))
        data = run.stage.bank.get_data(get_earned_points_address(run.state.run_uid, Pubkey(signer)))
        assert EarnedPointsData.read(data).points == points
    check_events(run, keys)
    run.carry_out(run.stage.free())
    assert not run.stage.raw


def check_events(run: ChainedRun, keys: list[tuple[bytes, bytes]]) -> None:
    """Who came and left, and where the run stood."""
    account = run.stage.run.account
    assert all(event.coordinator_account == account for event in run.events)
    wallets = [(Pubkey(signer), Pubkey(p2p)) for signer, p2p in keys]
    people = [event for event in run.events if not isinstance(event, StateChangedEvent | CollectedEvent)]
    joined = [JoinedEvent(account, *wallet) for wallet in wallets]
    left = [WithdrewEvent(account, wallets[2][1]), joined[2], *joined, LeftRunEvent(account, wallets[1][0])]
    assert people == [*joined, *left]
    rounds = [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS] * 5  # three with data, two to drain
    states = [RunState.WAITING_FOR_MEMBERS, RunState.WARMUP, *rounds, RunState.COOLDOWN, RunState.WAITING_FOR_MEMBERS]
    told = [event.run_state for event in run.events if isinstance(event, StateChangedEvent)]
    assert told == [*states, RunState.PAUSED]
