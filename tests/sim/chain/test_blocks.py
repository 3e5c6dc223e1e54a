"""The simulated chain: what lands, what does not, and what it leaves behind."""

import pytest
import trio
import trio.testing
from sim.chain_kit import OWNER, START, build_chain, get_key, join, land, pass_slots, sign

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.rounds import RECORDED_SLOTS, find_entropy
from psyche.core.state.errors import CannotResume, Halted, InvalidWithdraw
from psyche.core.state.messages import Join, Pause, ReclaimSlot, Recover, Resume, Tick, WarmupWitness, Withdraw
from psyche.core.state.state import RunState
from psyche.sim.chain.blocks import BLOCK_HASHES, Blockchain, NotInstruction
from psyche.sim.chain.conditions import ChainConditions
from psyche.sim.chain.endpoints import EndpointFailed, EndpointTrouble, SimulatedEndpoint
from psyche.sim.runtime import build_rng
from psyche.wire.backend import NotOwner

DIGEST = b"\5" * 32


def test_a_message_takes_effect_in_the_next_block_at_its_time_and_slot() -> None:
    chain = build_chain()
    assert land(chain, join(chain, 1)).error is None
    (effect,) = chain.newest.effects
    assert (effect.slot, effect.now, effect.sender) == (1, START + 1, get_key(1)[0])
    assert [slot.p2p for slot in decode_state(chain.newest.raw).registry.slots] == [get_key(1)[1]]


def test_a_transaction_takes_effect_whole_or_not_at_all() -> None:
    chain = build_chain()
    wallet, session = get_key(1)
    before = chain.newest.raw
    status = land(chain, sign(chain, wallet, Join(session), WarmupWitness(0, 0, DIGEST), more=[session]))
    assert status.error is not None
    assert (chain.newest.raw, encode_state(chain.state), chain.newest.effects) == (before, before, ())


def test_one_signature_takes_effect_once_however_often_it_is_sent() -> None:
    chain = build_chain()
    land(chain, join(chain, 1))
    again = sign(chain, get_key(1)[0], Withdraw(0, 0))
    chain.submit(again)
    first = land(chain, again)
    land(chain, join(chain, 1))
    nonce = chain.state.nonce
    assert land(chain, again) == first
    assert chain.state.nonce == nonce, "the join that came after it still stands"


def test_the_same_message_signed_anew_is_another_transaction_and_refused_by_the_rules() -> None:
    chain = build_chain()
    land(chain, join(chain, 1))
    land(chain, sign(chain, get_key(1)[0], Withdraw(0, 0)))
    assert isinstance(land(chain, sign(chain, get_key(1)[0], Withdraw(0, 0))).error, InvalidWithdraw)


@pytest.mark.parametrize(("blocks", "lands"), [(BLOCK_HASHES - 1, True), (BLOCK_HASHES + 1, False)])
def test_a_transaction_expires_with_its_block(blocks: int, lands: bool) -> None:
    chain = build_chain()
    transaction = join(chain, 1)
    pass_slots(chain, blocks)
    chain.submit(transaction)
    pass_slots(chain)
    assert (chain.get_status(transaction.signature) is not None) is lands
    assert bool(chain.state.registry.slots) is lands


def test_skipped_slots_have_no_block_and_what_waits_lands_later() -> None:
    chain = build_chain(skipped=0.5)
    transaction = join(chain, 1)
    chain.submit(transaction)
    pass_slots(chain, 20)
    status = chain.get_status(transaction.signature)
    assert status is not None
    assert status.error is None
    slots = [block.slot for block in chain.blocks]
    assert slots == sorted(set(slots))
    assert len(slots) < chain.slot
    assert status.slot in slots


def test_the_clock_never_goes_back() -> None:
    chain = build_chain()
    chain.produce(1.0, START + 10)
    chain.produce(2.0, START + 3)
    assert chain.newest.unix == START + 10


def begin_warmup(skipped: float = 0.0, seed: int = 1) -> tuple[Blockchain, int]:
    chain = build_chain(skipped, seed)
    for number in (1, 2):
        chain.submit(join(chain, number))
    pass_slots(chain, 3)
    while chain.state.run_state is not RunState.WARMUP:
        chain.submit(sign(chain, get_key(1)[0], Tick(None)))
        pass_slots(chain)
    for member in (0, 1):
        wallet = chain.state.clients[member].signer
        chain.submit(sign(chain, wallet, WarmupWitness(0, member, DIGEST)))
    pass_slots(chain, 3)
    while not chain.state.current.entropy_slot:
        chain.submit(sign(chain, get_key(1)[0], Tick(None)))
        pass_slots(chain)
    return chain, chain.state.current.entropy_slot


@pytest.mark.parametrize("seed", range(4))
def test_the_seed_comes_from_the_first_recorded_slot_from_the_armed_one_on(seed: int) -> None:
    chain, armed = begin_warmup(skipped=0.5, seed=seed)
    while chain.newest.slot < armed:
        assert find_entropy(chain.state, chain._recorded) is None
        land_tick(chain)
    first = next(block for block in chain.blocks if block.slot >= armed)
    assert find_entropy(chain.state, chain._recorded) == first.hash
    while chain.state.run_state is RunState.WARMUP:
        land_tick(chain)
    assert chain.state.run_state is RunState.ROUND_TRAIN


def land_tick(chain: Blockchain) -> None:
    chain.submit(sign(chain, get_key(1)[0], Tick(b"\7" * 32)))  # what the sender says of entropy counts for nothing
    pass_slots(chain)


def test_a_seed_whose_slot_the_chain_has_forgotten_is_armed_again() -> None:
    chain, armed = begin_warmup()
    pass_slots(chain, RECORDED_SLOTS + 10)
    land_tick(chain)
    assert chain.state.run_state is RunState.WARMUP
    assert chain.state.current.entropy_slot > armed


def test_only_the_owner_pauses_and_resumes() -> None:
    chain = build_chain()
    assert isinstance(land(chain, sign(chain, get_key(1)[0], Pause())).error, NotOwner)
    assert land(chain, sign(chain, OWNER, Pause())).error is None
    assert chain.state.run_state is RunState.PAUSED
    assert isinstance(land(chain, sign(chain, OWNER, Tick(None))).error, Halted)
    assert land(chain, sign(chain, OWNER, Resume())).error is None
    assert isinstance(land(chain, sign(chain, OWNER, Resume())).error, CannotResume)


def test_what_the_programs_do_not_offer_is_refused() -> None:
    chain = build_chain()
    wallet, session = get_key(1)
    for message in (Recover(5), ReclaimSlot(), Join(session)):  # the join lacks its second signature
        assert isinstance(land(chain, sign(chain, wallet, message)).error, NotInstruction)
    assert chain.state.nonce == 1


# --- endpoints ---------------------------------------------------------------------------------------------------


def build_endpoint(lag_s: float, *troubles: EndpointTrouble) -> SimulatedEndpoint:
    rng = build_rng(1, "endpoint")
    return SimulatedEndpoint("one", build_chain(), rng, ChainConditions(), lag_s, list(troubles))


async def test_an_endpoint_shows_a_block_after_its_delay(autojump_clock: trio.testing.MockClock) -> None:
    endpoint = build_endpoint(2.5)
    for _ in range(20):
        await trio.sleep(1.0)
        endpoint.chain.produce(trio.current_time(), START)
    assert endpoint.get_block().slot == 17
    endpoint.troubles.append(EndpointTrouble(stale_slots=20))
    assert endpoint.get_block().slot == 9, "20 slots of 0.4 s"


async def test_an_endpoint_that_is_down_or_refuses_fails(autojump_clock: trio.testing.MockClock) -> None:
    for trouble in (EndpointTrouble(is_down=True), EndpointTrouble(throttled=1.0)):
        endpoint = build_endpoint(0.5, trouble)
        with pytest.raises(EndpointFailed):
            await endpoint.ask()
        with pytest.raises(EndpointFailed):
            await endpoint.send(join(endpoint.chain, 1), lambda _at_s, _transaction: pytest.fail("it was taken"))


def test_a_fork_has_an_equal_nonce_and_other_bytes() -> None:
    endpoint = build_endpoint(0.5, EndpointTrouble(is_forked=True))
    chain = endpoint.chain
    land(chain, join(chain, 1))
    shown = decode_state(endpoint.show(chain.newest))
    assert endpoint.show(chain.newest) != chain.newest.raw
    assert shown.nonce == chain.state.nonce
    assert endpoint.show(chain.newest) == endpoint.show(chain.newest)
