"""Bringing transactions onto a chain: tried first, sent again as they are, signed anew only once nothing can land."""

from collections import Counter
from typing import Any

import httpx2
import pytest
import trio
from kits.chain.anchor import log_event
from kits.chain.endpoints import SLOT_S, Events, PaperChain, Refusal, ScriptedEndpoint, open_scripted
from solders.compute_budget import ID as BUDGET
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.events import LeftRunEvent
from psyche.backends.solana.interface.failures import TransactionFailed, WalletEmpty
from psyche.backends.solana.rpc.sender import BLOCK_S, BLOCK_SLOTS, TransactionSender, Unconfirmed
from psyche.backends.solana.rpc.transaction import LEAST_UNITS, UNTRIED_UNITS, FeePolicy
from psyche.backends.solana.rpc.transport import RpcRefused
from psyche.core.state.errors import WrongRound
from psyche.telemetry import types

PAYER, OTHER = Keypair.from_seed(bytes(32)), Keypair.from_seed(bytes([1] * 32))
ACCOUNT = Pubkey.from_bytes(bytes([7] * 32))


def instruct(size: int = 8) -> Instruction:
    accounts = [AccountMeta(PAYER.pubkey(), True, False), AccountMeta(ACCOUNT, False, True)]
    return Instruction(COORDINATOR, bytes(size), accounts)


def open_paper(chain: PaperChain, *lags: int) -> Any:
    endpoints = [ScriptedEndpoint(f"rpc{number}", chain.make_answers(lag)) for number, lag in enumerate(lags or (0,))]
    return open_scripted(*endpoints)


async def send(chain: PaperChain, *lags: int, **options: Any) -> Events:
    """Send one transaction; what has happened on the way."""
    async with open_paper(chain, *lags) as (rpc, events):
        await TransactionSender(rpc, PAYER).send([instruct()], **options)
    return events


def read_budget(raw: bytes) -> dict[int, int]:
    """The numbers of the compute-budget instructions by their kind."""
    message = Transaction.from_bytes(raw).message
    keys = list(message.account_keys)
    found = [bytes(one.data) for one in message.instructions if keys[one.program_id_index] == BUDGET]
    return {data[0]: int.from_bytes(data[1:], "little") for data in found}


async def test_a_transaction_has_limits_from_its_trial_and_a_price_from_others(autojump_clock: Any) -> None:
    chain = PaperChain(
        fees=[0, 10, 20, 30], trial={"err": None, "unitsConsumed": 100_000, "loadedAccountsDataSize": 900_000}
    )
    async with open_paper(chain) as (rpc, events):
        landed = await TransactionSender(rpc, PAYER).send([instruct()], [OTHER, PAYER][1:])
    budget = read_budget(chain.sent[0][0])
    assert budget == {2: 120_000, 3: 30, 4: 1_800_000}
    assert landed.fee_lamports == 5_000 + -(-120_000 * 30 // 10**6)
    assert [event.signature for event in events.of(types.TransactionConfirmed)] == [landed.signature]
    assert chain.trials[0][1]["replaceRecentBlockhash"]
    assert not chain.trials[0][1]["sigVerify"]


async def test_what_a_transaction_caused_is_read_from_its_own_log(autojump_clock: Any) -> None:
    left = LeftRunEvent(ACCOUNT, PAYER.pubkey())
    tried = log_event(LeftRunEvent(ACCOUNT, OTHER.pubkey()))
    chain = PaperChain(trial={"err": None, "unitsConsumed": 1, "logs": tried}, logs=log_event(left))
    async with open_paper(chain) as (rpc, _):
        assert (await TransactionSender(rpc, PAYER).send([instruct()])).events == (left,)


async def test_a_transaction_lands_without_events_where_no_endpoint_tells_its_log(autojump_clock: Any) -> None:
    tried = log_event(LeftRunEvent(ACCOUNT, PAYER.pubkey()))
    chain = PaperChain(trial={"err": None, "unitsConsumed": 1, "logs": tried})
    chain.refuse["getTransaction"] = Refusal(-32601, "Method not found")
    async with open_paper(chain) as (rpc, _):
        assert (await TransactionSender(rpc, PAYER).send([instruct()])).events == ()


async def test_a_price_never_exceeds_its_ceiling_and_rises_at_each_expiry() -> None:
    fees = FeePolicy(max_lamports=1_000)
    assert fees.choose_price([10**9], LEAST_UNITS, 0) == 1_000 * 10**6 // LEAST_UNITS
    prices = [fees.choose_price([], LEAST_UNITS, expired) for expired in range(4)]
    assert prices == [0, 10_000, 16_666, 16_666]


async def test_lost_transactions_are_sent_again_as_they_are_to_all_endpoints(autojump_clock: Any) -> None:
    chain = PaperChain(drop=3)
    await send(chain, 0, 0)
    assert len(chain.sent) == 4
    assert len({raw for raw, _ in chain.sent}) == 1
    assert [round(at - chain.sent[0][1]) for _, at in chain.sent] == [0, 2, 4, 6]


async def test_a_transaction_is_signed_anew_only_after_its_last_block(autojump_clock: Any) -> None:
    chain = PaperChain(drop=31)
    async with open_paper(chain, 0, 20) as (rpc, events):  # the second endpoint is 20 slots behind
        landed = await TransactionSender(rpc, PAYER).send([instruct()])
    raws = list(dict.fromkeys(raw for raw, _ in chain.sent))
    assert len(raws) == 2
    (lapsed,) = events.of(types.TransactionExpired)
    assert lapsed.seconds > 150 * SLOT_S
    assert list(chain.landed) == [landed.signature]
    assert read_budget(raws[0]).get(3, 0) == 0
    assert read_budget(raws[1])[3] > 0


async def test_what_lands_in_the_last_moment_is_not_sent_twice(autojump_clock: Any) -> None:
    # It is in the very last block; an endpoint that is behind says that it knows nothing of it.
    chain = PaperChain(land_after_s=126 * SLOT_S)
    async with open_paper(chain, 20, 0) as (rpc, events):
        landed = await TransactionSender(rpc, PAYER).send([instruct()])
    assert list(chain.landed) == [landed.signature]
    assert events.of(types.TransactionExpired) == []


async def test_a_refusal_is_told_before_anything_is_sent(autojump_clock: Any) -> None:
    # Two instructions of the compute budget stand before the one that fails.
    chain = PaperChain(trial={"err": {"InstructionError": [2, {"Custom": 6002}]}, "logs": [], "unitsConsumed": 3})
    with pytest.raises(WrongRound):
        await send(chain)
    assert chain.sent == []


@pytest.mark.parametrize("error", ["AccountNotFound", "InsufficientFundsForFee"])
async def test_an_empty_wallet_is_noticed_before_anything_is_sent(error: str, autojump_clock: Any) -> None:
    chain = PaperChain(trial={"err": error}, lamports=4_999)
    with pytest.raises(WalletEmpty, match=r"has 0\.000004999 SOL on this cluster; the signatures cost 0\.000005000"):
        await send(chain)
    assert chain.sent == []


async def test_a_wallet_that_cannot_pay_the_priority_fee_is_noticed_too(autojump_clock: Any) -> None:
    chain = PaperChain(trial={"err": None, "accounts": [{"lamports": 1}]}, fees=[1_000])
    with pytest.raises(WalletEmpty, match="60 lamports of priority fee"):
        await send(chain)
    assert chain.sent == []


async def test_a_transaction_of_more_than_a_packet_is_refused_with_a_sentence(autojump_clock: Any) -> None:
    chain = PaperChain()
    async with open_paper(chain) as (rpc, _):
        sender = TransactionSender(rpc, PAYER)
        with pytest.raises(TransactionFailed, match="takes 1232: shorten"):
            await sender.send([instruct(1_100)])
        await sender.send([instruct(900)])
    assert chain.trials
    assert len(chain.sent) == 1


async def test_a_failure_on_the_chain_itself_is_told_too(autojump_clock: Any) -> None:
    chain = PaperChain(outcome={"InstructionError": [2, {"Custom": 6002}]})
    with pytest.raises(WrongRound):
        await send(chain)
    assert len(chain.landed) == 1


async def test_an_endpoint_that_knows_the_transaction_already_is_asked_for_its_status(autojump_clock: Any) -> None:
    chain = PaperChain()
    answers = chain.make_answers()

    def repeat(method: str, params: list[Any]) -> Any:
        reply = answers(method, params)
        if method == "sendTransaction":
            raise Refusal(-32002, "already processed", {"err": "AlreadyProcessed"})
        return reply

    async with open_scripted(ScriptedEndpoint("only", repeat)) as (rpc, _):
        landed = await TransactionSender(rpc, PAYER).send([instruct()])
    assert list(chain.landed) == [landed.signature]


async def test_a_transaction_that_every_endpoint_finds_malformed_ends_at_once(autojump_clock: Any) -> None:
    chain = PaperChain(refuse={"sendTransaction": Refusal(-32602, "bad")})
    with pytest.raises(RpcRefused, match="bad"):
        await send(chain, 0, 0)
    assert trio.current_time() < 5


async def test_endpoints_that_fall_silent_on_the_way_are_waited_for_and_named(autojump_clock: Any) -> None:
    chain = PaperChain(drop=10**6)
    only = ScriptedEndpoint("only", chain.make_answers())
    async with open_scripted(only) as (rpc, events), trio.open_nursery() as nursery:

        async def fall_silent() -> None:
            await trio.sleep(5)
            only.fault = httpx2.ConnectError("gone")

        nursery.start_soon(fall_silent)
        with pytest.raises(Unconfirmed, match="may or may not be on record"):
            await TransactionSender(rpc, PAYER).send([instruct()])
        assert events.of(types.TransactionSent)[0].signature


async def test_finalized_waits_for_more_than_confirmed(autojump_clock: Any) -> None:
    await send(PaperChain(), finalized=True)
    assert trio.current_time() > 32 * SLOT_S


def count_calls(endpoint: ScriptedEndpoint) -> Counter[str]:
    return Counter(method for method, _ in endpoint.asked)


async def test_a_member_asks_for_block_hash_fees_and_a_trial_once_for_messages_of_a_kind(autojump_clock: Any) -> None:
    chain = PaperChain(fees=[10])
    endpoint = ScriptedEndpoint("rpc", chain.make_answers())
    async with open_scripted(endpoint) as (rpc, _):
        sender = TransactionSender(rpc, PAYER, is_watched=True)
        for _ in range(4):
            await sender.send([instruct()], kind="tick")
    assert len(chain.landed) == 4, "the same message again is another transaction"
    calls = count_calls(endpoint)
    assert calls["simulateTransaction"] == calls["getLatestBlockhash"] == calls["getRecentPrioritizationFees"] == 1
    assert calls["getSignatureStatuses"] == calls["sendTransaction"] == 4
    limits = [read_budget(raw)[2] for raw, _ in chain.sent]
    assert limits == [60_000, UNTRIED_UNITS + 1, UNTRIED_UNITS + 2, UNTRIED_UNITS + 3]


async def test_what_failed_on_the_chain_or_lapsed_is_tried_again_there(autojump_clock: Any) -> None:
    chain = PaperChain()
    async with open_paper(chain) as (rpc, _):
        sender = TransactionSender(rpc, PAYER, is_watched=True)
        await sender.send([instruct()], kind="tick")
        chain.outcome = {"InstructionError": [2, {"Custom": 6002}]}
        with pytest.raises(WrongRound):
            await sender.send([instruct()], kind="tick")
        assert len(chain.trials) == 1
        chain.outcome = None
        await sender.send([instruct()], kind="tick")
        assert len(chain.trials) == 2
        chain.drop = 31
        await sender.send([instruct()], kind="tick")
        assert len(chain.trials) == 3


async def test_an_old_block_hash_is_not_used_again(autojump_clock: Any) -> None:
    endpoint = ScriptedEndpoint("rpc", PaperChain().make_answers())
    async with open_scripted(endpoint) as (rpc, _):
        sender = TransactionSender(rpc, PAYER, is_watched=True)
        await sender.send([instruct()], slot=1_000)
        await sender.send([instruct()], slot=1_000 + BLOCK_SLOTS)
        assert count_calls(endpoint)["getLatestBlockhash"] == 1
        await sender.send([instruct()], slot=1_001 + BLOCK_SLOTS)
        assert count_calls(endpoint)["getLatestBlockhash"] == 2
        await trio.sleep(BLOCK_S)
        await sender.send([instruct()], slot=1_001 + BLOCK_SLOTS)
        assert count_calls(endpoint)["getLatestBlockhash"] == 3


async def test_statuses_of_transactions_that_are_under_way_at_once_are_asked_for_together(autojump_clock: Any) -> None:
    endpoint = ScriptedEndpoint("rpc", PaperChain(land_after_s=9.0).make_answers())
    async with open_scripted(endpoint) as (rpc, _):
        sender = TransactionSender(rpc, PAYER, is_watched=True)
        async with trio.open_nursery() as nursery:
            for size in range(8, 12):
                nursery.start_soon(sender.send, [instruct(size)])
    assert count_calls(endpoint)["getSignatureStatuses"] <= 12, "each alone asks six times"
