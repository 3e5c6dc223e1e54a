"""The curve of a run on a chain, read from what witnesses claim in real transactions."""

import base64

import trio
from hypothesis import given
from hypothesis import strategies as st
from kits.chain.chain_run import ChainRunKit, open_chain_run, sign
from kits.runs import Run
from solders.account import Account
from solders.keypair import Keypair

from psyche.backends.solana.history import ChainHistory, Said, build_points, read_witnesses
from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.coordinator import build_user_message
from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, WitnessFlag
from psyche.testing.builders import build_config, build_state
from psyche.wire.history import Claim, HistoryPoint, encode_claim


def begin(kit: ChainRunKit, wallets: list[Keypair]) -> Run:
    """Let the account say that an epoch of these members trains; the chain goes on from there."""
    keys = [(bytes(one.pubkey()), bytes(Keypair().pubkey())) for one in wallets]
    now = kit.chain.bank.unix
    config = build_config(
        init_min_clients=3, min_clients=2, witness_nodes=3, max_round_train_time=300, round_witness_time=300
    )
    run = Run(build_state(config), now=now, keys=lambda number: keys[number])
    run.join(0, 1, 2)
    run.warm_up()
    bank, account = kit.chain.bank, kit.run.account
    old = bank.get_account(account)
    assert old is not None
    bank.put_account(account, Account(old.lamports, encode_state(run.state), COORDINATOR))
    return run


def send(kit: ChainRunKit, wallet: Keypair, message: WitnessMessage) -> object:
    bank = kit.chain.bank
    return bank.execute(sign(bank.newest_hash, wallet, [build_user_message(kit.run, wallet.pubkey(), message)]))


async def read_until(history: ChainHistory, claims: int) -> list[HistoryPoint]:
    """Read until so many claims are confirmed: the greatest loss grows with them."""
    with trio.fail_after(60):
        while True:
            points = list(await history.read())
            if points and points[-1].greatest == 1.0 + claims:
                return points
            await trio.sleep(0.05)


async def test_claims_in_transactions_become_points_once_and_refused_ones_none() -> None:
    async with open_chain_run() as kit:
        wallets = [kit.fund() for _ in range(3)]
        run = begin(kit, wallets)
        history = ChainHistory(kit.rpc, kit.run.account)
        first = run.state.progress.step
        said = [run.build_witness(m, metadata=encode_claim(Claim(first, 2.0 + m, 10.0))) for m in (0, 1)]
        assert send(kit, wallets[0], said[0]) is None
        assert send(kit, wallets[0], said[1]) is not None, "member 1 has another key"
        points = await read_until(history, 1)
        assert [(one.step, one.loss, one.is_claimed, one.members) for one in points] == [(first + 1, 2.0, True, 3)]
        assert send(kit, wallets[1], said[1]) is None
        (again,) = await read_until(history, 2)
        assert (again.least, again.greatest, again.tokens_per_s) == (2.0, 3.0, 30.0)


def say(epoch: int, height: int, step: int) -> Said:
    message = WitnessMessage(epoch, height, 0, WitnessFlag.NO_DIGEST, 0, 0, 7, 0, bytes(320), ZERO32, ZERO32)
    return Said(1_000 + height, message, Claim(step, 3.0, 1.0))


def test_a_witness_that_claims_a_wild_step_moves_no_point() -> None:
    rounds = {(0, height): [say(0, height, 5 + height)] for height in range(6)}
    honest = [one.step for one in build_points(rounds)]
    rounds[0, 3] = [say(0, 3, 4_000_000_000)]
    rounds[0, 5] = [say(0, 5, 0)]
    assert [one.step for one in build_points(rounds)] == honest == [6, 7, 8, 9, 10, 11]


def test_an_epoch_that_was_given_up_is_repeated_and_cut() -> None:
    rounds = {(0, height): [say(0, height, 1 + height)] for height in range(9)}
    rounds |= {(1, height): [say(1, height, 4 + height)] for height in range(2)}
    assert [one.step for one in build_points(rounds)] == [2, 3, 4, 5, 6]


@given(st.binary(max_size=400))
def test_what_is_no_transaction_says_nothing(raw: bytes) -> None:
    assert read_witnesses(base64.b64encode(raw).decode(), 1) == []
    assert read_witnesses(raw.decode("latin-1"), 1) == []
