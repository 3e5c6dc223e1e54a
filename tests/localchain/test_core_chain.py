"""The chain over core: what lands, what does not, and that it does what the compiled programs do."""

import json
import random

import pytest
from box import make_bank
from kits.chain.chain_run import begin_run
from kits.chain.chain_run import fund as fund_real
from kits.chain.chain_run import sign as sign_real
from sim.chain_kit import OWNER, build_chain, get_identities, get_key, get_state, join, land, pass_slots, sign
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import EVERYBODY, get_authorization_address
from psyche.backends.solana.interface.coordinator import (
    SignedResult,
    build_equivocation_report,
    build_join_run,
    build_owner_message,
    build_user_message,
)
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state import messages as msg
from psyche.core.state.errors import REFUSALS, CannotResume, CoordinatorError, Halted
from psyche.core.state.gossip import Result
from psyche.core.state.state import RunState
from psyche.localchain.bank import SYSTEM, Bank, begin_chain
from psyche.localchain.core_chain import CoreChain
from psyche.localchain.core_machine import NOT_FULL, NOT_OWNER, UNPROVEN, CoreMachine
from psyche.wire.crypto import Identity
from psyche.wire.gossip import get_signed_bytes, sign_gossip

DIGEST = b"\5" * 32
COMMANDS = (msg.Pause(), msg.Resume())
MEMBER, SESSION = get_identities(1)


def get_number(error: object, place: int = 0) -> int:
    """The number of a program's error in the instruction at a place."""
    assert isinstance(error, dict), error
    at, reason = error["InstructionError"]
    assert at == place, error
    return reason["Custom"]


def find_refusal(error: object) -> type[CoordinatorError]:
    return REFUSALS[get_number(error) - 6_000]


def test_a_message_takes_effect_in_the_next_block_at_its_time_and_slot() -> None:
    chain = build_chain()
    pass_slots(chain, 3)
    assert land(chain, join(chain, 1)).error is None
    (effect,) = chain.newest.effects
    assert (effect.slot, effect.now, effect.sender) == (chain.newest.slot, chain.newest.unix, get_key(1)[0])
    assert [slot.p2p for slot in decode_state(chain.newest.raw).registry.slots] == [get_key(1)[1]]
    (paid,) = chain.newest.landed
    assert (paid.wallet, paid.signatures, paid.is_join) == (get_key(1)[0], 2, True)


def test_a_transaction_takes_effect_whole_or_not_at_all() -> None:
    chain = build_chain()
    before = chain.newest.raw
    both = sign(chain, MEMBER, msg.Join(SESSION.public), msg.WarmupWitness(0, 0, DIGEST), session=SESSION)
    assert land(chain, both).error is not None
    assert (chain.newest.raw, encode_state(get_state(chain)), chain.newest.effects) == (before, before, ())
    assert not chain.newest.has_changed


def begin_warmup(skipped: int = 0) -> tuple[CoreChain, int]:
    chain = build_chain()
    for number in (1, 2):
        chain.submit(join(chain, number))
    pass_slots(chain, 3)
    while get_state(chain).run_state is not RunState.WARMUP:
        land(chain, sign(chain, MEMBER, msg.Tick(None)))
    for number in (1, 2):
        wallet = get_identities(number)[0]
        member = next(at for at, one in enumerate(get_state(chain).clients) if one.signer == wallet.public)
        chain.submit(sign(chain, wallet, msg.WarmupWitness(0, member, DIGEST)))
    pass_slots(chain, 3)
    while not get_state(chain).current.entropy_slot:
        chain.submit(sign(chain, MEMBER, msg.Tick(None)))
        pass_slots(chain, skipped=skipped)
    return chain, get_state(chain).current.entropy_slot


@pytest.mark.parametrize("skipped", range(4))
def test_the_seed_comes_from_the_first_recorded_slot_from_the_armed_one_on(skipped: int) -> None:
    chain, armed = begin_warmup(skipped)
    while get_state(chain).run_state is RunState.WARMUP:
        assert all(slot < armed for slot, _ in list(chain.machine._recorded)[:-1])
        chain.submit(sign(chain, MEMBER, msg.Tick(None)))
        pass_slots(chain, skipped=skipped)
    assert get_state(chain).run_state is RunState.ROUND_TRAIN


def test_only_the_owner_pauses_and_resumes() -> None:
    chain = build_chain()
    assert get_number(land(chain, sign(chain, MEMBER, msg.Pause())).error) == NOT_OWNER
    assert land(chain, sign(chain, OWNER, msg.Pause())).error is None
    assert get_state(chain).run_state is RunState.PAUSED
    assert find_refusal(land(chain, sign(chain, OWNER, msg.Tick(None))).error) is Halted
    assert land(chain, sign(chain, OWNER, msg.Resume())).error is None
    assert find_refusal(land(chain, sign(chain, OWNER, msg.Resume())).error) is CannotResume


def test_what_the_programs_check_before_the_rules_is_refused() -> None:
    chain = build_chain()
    assert get_number(land(chain, sign(chain, MEMBER, msg.ReclaimSlot())).error) == NOT_FULL
    pauper = Identity(b"\x33" * 32)
    chain.submit(sign(chain, pauper, msg.Tick(None)))
    pass_slots(chain)
    assert chain.newest.landed == (), "nobody paid for it"
    assert get_state(chain).nonce == 1


# --- the same as the compiled programs ---------------------------------------------------------------------------


def test_the_same_transactions_leave_the_same_accounts_and_errors_as_the_compiled_programs() -> None:
    """Random members join, tick, attest and withdraw, right or wrong, on both machines."""
    real = make_bank()
    run, members = begin_run(real), [(fund_real(real), Keypair()) for _ in range(4)]
    real.advance(real.unix)
    chain, rng = CoreMachine(), random.Random(1)
    chain.add_run(run.run.account, bytes(run.owner.pubkey()), run.read(real))
    core = Bank(chain, begin_chain(bytes(32), real.unix))
    core.slot, core.height, core.unix = real.slot, real.height, real.unix
    core._slot_hashes, core._block_hashes = real._slot_hashes.copy(), real._block_hashes.copy()
    chain.begin_slot(core.slot, core.unix, ())
    for wallet, _ in (*members, (run.owner, None)):
        core.put_account(wallet.pubkey(), Account(real.get_lamports(wallet.pubkey()), b"", SYSTEM))
    grant = get_authorization_address(run.owner.pubkey(), EVERYBODY)
    errors: set[str] = set()
    for step in range(150):
        wallet, session = rng.choice(members)
        user, state = wallet.pubkey(), run.read(real)
        member, epoch = rng.randrange(3), state.progress.epoch
        signer, built = rng.choice(
            [
                ((wallet, session), build_join_run(run.run, user, session.pubkey(), grant, 0)),
                ((wallet,), build_user_message(run.run, user, msg.Tick(None))),
                ((wallet,), build_user_message(run.run, user, msg.WarmupWitness(epoch, member, DIGEST))),
                ((wallet,), build_user_message(run.run, user, msg.Withdraw(member, rng.randrange(2)))),
                ((wallet,), build_user_message(run.run, user, msg.ReclaimSlot())),
                ((wallet,), build_owner_message(run.run, user, msg.Pause())),
                ((run.owner,), build_owner_message(run.run, run.owner.pubkey(), rng.choice(COMMANDS))),
            ]
        )
        transaction = sign_real(real.newest_hash, signer[0], [built], *signer[1:])
        errors.add(json.dumps(found := real.execute(transaction)))
        assert core.execute(transaction) == found, (step, built)
        one, other = core.get_account(run.run.account), real.get_account(run.run.account)
        assert one is not None
        assert other is not None
        assert one.data == other.data, (step, built)
        if rng.random() < 0.5:
            for bank in (real, core):
                bank.advance(bank.unix + step % 5)
            assert core.newest_hash == real.newest_hash
    assert len(errors) >= 5, errors
    assert run.read(real).nonce > 20


@pytest.mark.parametrize("is_true", [True, False])
def test_evidence_of_two_signed_results_is_checked(is_true: bool) -> None:
    chain, _ = begin_warmup()
    while get_state(chain).run_state is not RunState.ROUND_TRAIN:
        land(chain, sign(chain, MEMBER, msg.Tick(None)))
    state = get_state(chain)
    member = next(at for at, one in enumerate(state.clients) if one.signer == get_key(2)[0])
    accused = get_identities(2)[1]
    results = [
        sign_gossip(accused, state.run_uid, 0, 0, member, Result(commitment, b""))
        for commitment in (b"\1" * 32, b"\2" * 32 if is_true else b"\1" * 32)
    ]
    signed = [SignedResult(get_signed_bytes(one), one.signature) for one in results]
    payer = Keypair.from_seed(MEMBER.seed)
    report = msg.ReportEquivocation(0, 0, member)
    built = build_equivocation_report(chain.run, payer.pubkey(), report, Pubkey(accused.public), (signed[0], signed[1]))
    told = Message.new_with_blockhash(list(built), payer.pubkey(), Hash(chain.newest.hash))
    error = land(chain, VersionedTransaction(told, [payer])).error
    assert error is None if is_true else get_number(error, 1) == UNPROVEN
    (paid,) = chain.newest.landed
    assert paid.signatures == 3
