"""What wallets and explorers ask, read by solders, which knows the replies of Solana's servers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import solders.rpc.responses as known
from box import NOW, Caller, encode, make_bank, make_mint, open_box, pay
from kits.chain.chain_run import SOL, fund, sign
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from spl.token.instructions import create_associated_token_account, get_associated_token_address, transfer_checked
from spl.token.models import TransferCheckedParams

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.localchain import history
from psyche.localchain.bank import FINALIZED_SLOTS
from psyche.localchain.rpc.hub import SubscriptionHub
from psyche.localchain.rpc.methods import make_methods
from psyche.localchain.tokens import TOKEN

MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
CONFIRMED = {"commitment": "confirmed"}
PARSED = {**CONFIRMED, "encoding": "jsonParsed"}
NUMBERED = {"maxSupportedTransactionVersion": 0}


async def read(caller: Caller, resp: str, method: str, *params: Any) -> Any:
    """The result of a call that solders can read as the reply of a node."""
    reply = await caller.ask(method, *params)
    assert type(getattr(known, resp).from_json(json.dumps(reply))).__name__ == resp, reply
    return reply["result"]


class TestBlocks:
    async def test_blocks_follow_each_other_and_hold_what_landed(self) -> None:
        async with open_box() as (chain, caller):
            payer, slots = fund(chain.bank), list[int]()
            for skipped in (0, 2, 0):
                signature = await caller.send(pay(chain.bank, payer, Keypair().pubkey()))
                slots.append(chain.bank.slot)
                chain.bank.advance(NOW, skipped)
            blocks = [await read(caller, "GetBlockResp", "getBlock", one, {**CONFIRMED, **NUMBERED}) for one in slots]
            for older, newer, slot in zip(blocks, blocks[1:], slots, strict=False):
                assert newer["previousBlockhash"] == older["blockhash"]
                assert newer["parentSlot"] == slot
                assert newer["blockHeight"] == older["blockHeight"] + 1
            last = blocks[-1]["transactions"]
            assert [one["transaction"]["signatures"] for one in last] == [[signature]]
            (alone,) = [await caller.call("getTransaction", signature, {**CONFIRMED, **NUMBERED})]
            assert last[0] == {key: alone[key] for key in last[0]}
            assert await read(caller, "GetBlocksResp", "getBlocks", slots[0], CONFIRMED) == slots
            assert await caller.call("getBlocks", slots[0], slots[1], CONFIRMED) == slots[:2]
            assert await read(caller, "GetBlocksWithLimitResp", "getBlocksWithLimit", 0, 2, CONFIRMED) == slots[:2]

    async def test_a_block_comes_with_as_much_as_is_asked_for(self) -> None:
        async with open_box() as (chain, caller):
            payer = fund(chain.bank)
            signature, slot = await caller.send(pay(chain.bank, payer, Keypair().pubkey())), chain.bank.slot
            chain.bank.advance(NOW)
            for details in ("signatures", "accounts", "none"):
                options = {**CONFIRMED, "transactionDetails": details, "rewards": False}
                found = await caller.call("getBlock", slot, options)
                assert "rewards" not in found
                if details == "signatures":
                    assert found["signatures"][-1] == signature
                elif details == "accounts":
                    keys = found["transactions"][-1]["transaction"]["accountKeys"]
                    assert [one["signer"] for one in keys] == [True, False, False]
                    assert "logMessages" not in found["transactions"][-1]["meta"]
                else:
                    assert not found.keys() & {"signatures", "transactions"}
            parsed = await read(caller, "GetBlockResp", "getBlock", slot, {**PARSED, **NUMBERED})
            assert parsed["transactions"][-1]["transaction"]["message"]["instructions"][0]["program"] == "system"

    async def test_a_block_that_is_not_there_is_refused_with_the_number_that_says_why(self) -> None:
        async with open_box() as (chain, caller):
            first = chain.bank.slot
            chain.bank.advance(NOW, 1)
            newest = chain.bank.slot
            expected = {
                first - 1: (-32001, f"Block {first - 1} cleaned up, does not exist on node. First available block: 1"),
                first + 1: (-32007, f"Slot {first + 1} was skipped, or missing due to ledger jump to recent snapshot"),
                newest: (-32004, f"Block not available for slot {newest}"),
            }
            for slot, (code, message) in expected.items():
                assert await caller.refuse("getBlock", slot, CONFIRMED) == {"code": code, "message": message}
            assert (await caller.refuse("getBlock", first))["code"] == -32004  # not finalized yet
            assert (await caller.refuse("getBlock", first, {"commitment": "processed"}))["code"] == -32602
            assert (await caller.refuse("getBlocks", 0, 500_001))["code"] == -32602
            assert (await caller.refuse("getBlockTime", first - 1))["code"] == -32001
            for _ in range(FINALIZED_SLOTS):
                chain.bank.advance(NOW)
            assert (await caller.call("getBlock", first))["parentSlot"] == first - 1

    async def test_blocks_whose_transactions_are_forgotten_count_as_cleaned_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_box() as (chain, caller):
            slot = chain.bank.slot
            fund(chain.bank)
            chain.bank.advance(NOW)
            monkeypatch.setattr(history, "MAX_RECORD_BYTES", 2_000)
            fund(chain.bank)
            assert (await caller.refuse("getBlock", slot, CONFIRMED))["code"] == -32001
            assert await caller.call("getFirstAvailableBlock") == await caller.call("minimumLedgerSlot") == slot + 1

    async def test_a_chain_that_was_started_again_has_the_blocks_from_then_on(self, tmp_path: Path) -> None:
        for _ in range(2):
            async with open_box(state=tmp_path) as (chain, caller):
                first = chain.bank.slot
                chain.bank.advance(NOW)
                assert await caller.call("getFirstAvailableBlock") == first
                assert await caller.call("getBlocks", 0, CONFIRMED) == [first]


class TestParsed:
    async def test_accounts_are_told_in_the_words_of_their_programs(self) -> None:
        async with open_box() as (chain, caller):
            owner = fund(chain.bank)
            mint, held = make_mint(chain.bank, owner)
            key = str(owner.pubkey())
            account = await read(caller, "GetAccountInfoJsonParsedResp", "getAccountInfo", str(held), PARSED)
            amount = {"amount": "5000000", "decimals": 6, "uiAmount": 5.0, "uiAmountString": "5"}
            info = {"isNative": False, "mint": str(mint), "owner": key, "state": "initialized", "tokenAmount": amount}
            parsed = {"info": info, "type": "account"}
            assert account["value"]["data"] == {"program": "spl-token", "parsed": parsed, "space": 165}
            told = (await caller.call("getAccountInfo", str(mint), PARSED))["value"]["data"]["parsed"]
            assert told["type"] == "mint"
            assert told["info"] == {
                "decimals": 6, "freezeAuthority": None, "isInitialized": True, "mintAuthority": key,
                "supply": "5000000",
            }  # fmt: skip
            listed = await read(
                caller, "GetTokenAccountsByOwnerJsonParsedResp", "getTokenAccountsByOwner", key,
                {"mint": str(mint)}, PARSED,
            )  # fmt: skip
            assert [one["account"]["data"]["parsed"] for one in listed["value"]] == [parsed]
            largest = await read(caller, "GetTokenLargestAccountsResp", "getTokenLargestAccounts", str(mint))
            assert largest["value"] == [{"address": str(held), **amount}]

    async def test_programs_and_the_clock_are_told_and_others_come_as_bytes(self) -> None:
        async with open_box() as (chain, caller):

            async def tell(key: Pubkey | str) -> Any:
                return (await caller.call("getAccountInfo", str(key), PARSED))["value"]["data"]

            program = await tell(COORDINATOR)
            assert (program["program"], program["parsed"]["type"]) == ("bpf-upgradeable-loader", "program")
            code = (await tell(program["parsed"]["info"]["programData"]))["parsed"]
            assert (code["type"], code["info"]["data"][1]) == ("programData", "base64")
            clock = await tell("SysvarC1ock11111111111111111111111111111111")
            assert clock["parsed"]["info"]["slot"] == chain.bank.slot
            assert await tell(fund(chain.bank).pubkey()) == ["", "base64"]

    async def test_instructions_are_told_in_the_words_of_their_programs(self) -> None:
        async with open_box() as (chain, caller):
            owner, friend = fund(chain.bank), Keypair().pubkey()
            mint, held = make_mint(chain.bank, owner)
            to, key = get_associated_token_address(friend, mint), owner.pubkey()
            unknown = Instruction(
                Pubkey.from_string("ComputeBudget111111111111111111111111111111"), b"\x02\0\0\x10\0", []
            )
            steps = [
                create_associated_token_account(key, friend, mint),
                transfer_checked(
                    TransferCheckedParams(
                        program_id=TOKEN, source=held, mint=mint, dest=to, owner=key, amount=1_500_000, decimals=6
                    )
                ),
                Instruction(MEMO, "Grüße".encode(), []),
                unknown,
            ]
            message = MessageV0.try_compile(key, steps, [], chain.bank.newest_hash)
            transaction = VersionedTransaction(message, [owner])
            signature = await caller.send(transaction)
            chain.bank.advance(NOW)
            found = await read(caller, "GetTransactionResp", "getTransaction", signature, {**PARSED, **NUMBERED})
            create, send, memo, limit = found["transaction"]["message"]["instructions"]
            assert create["program"] == "spl-associated-token-account"
            assert (create["parsed"]["type"], create["parsed"]["info"]["wallet"]) == ("create", str(friend))
            amount = {"amount": "1500000", "decimals": 6, "uiAmount": 1.5, "uiAmountString": "1.5"}
            info = {"authority": str(key), "destination": str(to), "mint": str(mint), "source": str(held)}
            assert send["parsed"] == {"type": "transferChecked", "info": {**info, "tokenAmount": amount}}
            assert (memo["program"], memo["parsed"]) == ("spl-memo", "Grüße")
            assert limit.keys() == {"programId", "accounts", "data", "stackHeight"}
            (inner,) = found["meta"]["innerInstructions"]
            told = [one["parsed"]["type"] for one in inner["instructions"]]
            assert told == ["getAccountDataSize", "createAccount", "initializeImmutableOwner", "initializeAccount3"]
            keys = found["transaction"]["message"]["accountKeys"]
            assert (keys[0]["signer"], keys[0]["writable"], keys[0]["source"]) == (True, True, "transaction")
            plain = await caller.call("getTransaction", signature, {**CONFIRMED, **NUMBERED})
            assert [one["pubkey"] for one in keys] == plain["transaction"]["message"]["accountKeys"]

    async def test_a_trial_tells_what_programs_call_if_that_is_asked_for(self) -> None:
        async with open_box() as (chain, caller):
            owner = fund(chain.bank)
            mint, _ = make_mint(chain.bank, owner)
            create = create_associated_token_account(owner.pubkey(), Keypair().pubkey(), mint)
            text = sign(chain.bank.newest_hash, owner, [create])
            for wanted in (False, True):
                options = {"encoding": "base64", "innerInstructions": wanted}
                resp = await read(caller, "SimulateTransactionResp", "simulateTransaction", encode(text), options)
                inner = resp["value"]["innerInstructions"]
                assert (inner and [one["index"] for one in inner]) == ([0] if wanted else None)


NETWORK = {
    "GetBlockCommitmentResp": ("getBlockCommitment", 5),
    "GetBlockProductionResp": ("getBlockProduction",),
    "GetClusterNodesResp": ("getClusterNodes",),
    "GetInflationGovernorResp": ("getInflationGovernor",),
    "GetInflationRateResp": ("getInflationRate",),
    "GetInflationRewardResp": ("getInflationReward", [str(COORDINATOR)]),
    "GetLargestAccountsResp": ("getLargestAccounts",),
    "GetMaxRetransmitSlotResp": ("getMaxRetransmitSlot",),
    "GetMaxShredInsertSlotResp": ("getMaxShredInsertSlot",),
    "GetSlotLeadersResp": ("getSlotLeaders", 5, 10),
    "GetStakeMinimumDelegationResp": ("getStakeMinimumDelegation",),
    "GetSupplyResp": ("getSupply",),
    "GetVoteAccountsResp": ("getVoteAccounts",),
    "MinimumLedgerSlotResp": ("minimumLedgerSlot",),
}


class TestNetwork:
    @pytest.mark.parametrize("resp", NETWORK)
    async def test_what_explorers_ask_about_the_network_has_the_usual_form(self, resp: str) -> None:
        async with open_box() as (chain, caller):
            chain.bank.advance(NOW)
            await read(caller, resp, *NETWORK[resp])

    async def test_supply_is_what_all_accounts_hold(self) -> None:
        async with open_box() as (chain, caller):
            rich, total = fund(chain.bank, 70 * SOL), (await caller.call("getSupply"))["value"]["total"]
            fund(chain.bank, 30 * SOL)
            supply = (await caller.call("getSupply"))["value"]
            assert (supply["circulating"], supply["total"]) == (100 * SOL, total - 5_000)  # the fee of an airdrop
            found = (await caller.call("getLargestAccounts", {"filter": "circulating"}))["value"]
            assert found[0] == {"address": str(rich.pubkey()), "lamports": 70 * SOL}
            assert len(found) == 2


# All methods of Solana's documentation.
DOCUMENTED = """
getAccountInfo getBalance getBlock getBlockCommitment getBlockHeight getBlockProduction getBlockTime getBlocks
getBlocksWithLimit getClusterNodes getEpochInfo getEpochSchedule getFeeForMessage getFirstAvailableBlock getGenesisHash
getHealth getHighestSnapshotSlot getIdentity getInflationGovernor getInflationRate getInflationReward getLargestAccounts
getLatestBlockhash getLeaderSchedule getMaxRetransmitSlot getMaxShredInsertSlot getMinimumBalanceForRentExemption
getMultipleAccounts getProgramAccounts getRecentPerformanceSamples getRecentPrioritizationFees getSignatureStatuses
getSignaturesForAddress getSlot getSlotLeader getSlotLeaders getStakeMinimumDelegation getSupply getTokenAccountBalance
getTokenAccountsByDelegate getTokenAccountsByOwner getTokenLargestAccounts getTokenSupply getTransaction
getTransactionCount getVersion getVoteAccounts isBlockhashValid minimumLedgerSlot requestAirdrop sendTransaction
simulateTransaction accountSubscribe blockSubscribe logsSubscribe programSubscribe rootSubscribe signatureSubscribe
slotSubscribe slotsUpdatesSubscribe voteSubscribe
"""


def test_the_page_lists_every_method_as_served_or_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
    calls = page.split("### Calls to the local chain\n")[1].split("\n### ")[0]
    table, refusals = calls.split("are refused as unknown")[0].rsplit("\n\n", 1)
    named = re.compile(r"`((?:get|is|minimum|request|send|simulate)\w+|\w+Subscribe)`")
    bank = make_bank()
    served = {*make_methods(bank), *SubscriptionHub(bank).make_methods(Mute())}
    served = {name for name in served if not name.endswith("Unsubscribe")}
    assert set(named.findall(table)) == served
    assert set(named.findall(refusals)) == set(DOCUMENTED.split()) - served


class Mute:
    """A listener that nothing is told."""

    def put(self, text: bytes) -> None:
        raise AssertionError(text)
