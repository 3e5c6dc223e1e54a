"""Calls and subscriptions over real sockets, with the shapes that Solana's own servers use."""

import base64

import pytest
import zstandard
from box import NOW, encode, open_box, pay
from kits.chain.chain_run import SOL, fund, sign
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.localchain.bank import FINALIZED_SLOTS

MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


class TestSending:
    async def test_a_transfer_lands_and_its_status_climbs(self) -> None:
        async with open_box() as (chain, caller):
            payer, to = fund(chain.bank), Keypair().pubkey()
            signature = await caller.send(pay(chain.bank, payer, to))
            levels = []
            for _ in range(FINALIZED_SLOTS + 1):
                (status,) = (await caller.call("getSignatureStatuses", [signature]))["value"]
                levels.append(status["confirmationStatus"])
                chain.bank.advance(NOW)
            assert levels == ["processed"] + ["confirmed"] * (FINALIZED_SLOTS - 1) + ["finalized"]
            assert (await caller.call("getBalance", str(to)))["value"] == SOL
            found = await caller.call("getTransaction", signature, {"commitment": "confirmed"})
            assert found["meta"]["postBalances"][1] == SOL

    async def test_more_than_1232_bytes_are_refused(self) -> None:
        async with open_box() as (chain, caller):
            payer = fund(chain.bank)
            large = sign(chain.bank.newest_hash, payer, [Instruction(MEMO, b"a" * 1_100, [])])
            error = await caller.refuse("sendTransaction", encode(large), {"encoding": "base64"})
            assert error["code"] == -32602
            assert "too large: 1644" not in error["message"]
            assert "(max: " in error["message"]

    async def test_a_failing_one_says_why_before_it_is_sent(self) -> None:
        async with open_box() as (chain, caller):
            payer = fund(chain.bank, SOL)
            paying = pay(chain.bank, payer, Keypair().pubkey(), 2 * SOL)
            error = await caller.refuse("sendTransaction", encode(paying), {"encoding": "base64"})
            assert error["code"] == -32002
            assert error["message"].endswith("Error processing Instruction 0: custom program error: 0x1")
            assert error["data"]["err"] == {"InstructionError": [0, {"Custom": 1}]}
            assert error["data"]["logs"]
            assert chain.bank.history.get(paying.signatures[0]) is None

    async def test_an_old_hash_is_refused_with_preflight_and_dropped_without(self) -> None:
        async with open_box() as (chain, caller):
            old = sign(Hash.new_unique(), fund(chain.bank), [])
            error = await caller.refuse("sendTransaction", encode(old), {"encoding": "base64"})
            assert (error["code"], error["data"]["err"]) == (-32002, "BlockhashNotFound")
            signature = await caller.send(old, skipPreflight=True)
            assert (await caller.call("getSignatureStatuses", [signature]))["value"] == [None]


class TestSubscriptions:
    async def test_an_account_is_shown_at_the_end_of_each_slot_that_wrote_it(self) -> None:
        async with open_box() as (chain, caller), caller.listen() as socket:
            key = Keypair().pubkey()
            options = {"encoding": "base64+zstd", "commitment": "confirmed"}
            number = (await socket.call("accountSubscribe", str(key), options))["result"]
            chain.bank.airdrop(key, SOL)
            chain.bank.airdrop(key, SOL)
            slot = chain.bank.slot
            chain.bank.advance(NOW)
            told = await socket.receive()
            assert told["params"]["subscription"] == number
            assert told["params"]["result"]["context"]["slot"] == slot
            value = told["params"]["result"]["value"]
            assert value["lamports"] == 2 * SOL
            assert zstandard.decompress(base64.b64decode(value["data"][0])) == b""

    @pytest.mark.parametrize(("level", "slots"), [("processed", 0), ("confirmed", 1), ("finalized", FINALIZED_SLOTS)])
    async def test_a_signature_is_told_of_at_the_level_that_was_asked_for(self, level: str, slots: int) -> None:
        async with open_box() as (chain, caller), caller.listen() as socket:
            await socket.call("slotSubscribe")
            signature, landed = chain.bank.airdrop(Keypair().pubkey(), SOL), chain.bank.slot
            assert "result" in await socket.call("signatureSubscribe", str(signature), {"commitment": level})
            for _ in range(slots):
                chain.bank.advance(NOW)
            told = [await socket.receive() for _ in range(slots + 1)]
            assert [one["method"] for one in told] == ["slotNotification"] * slots + ["signatureNotification"]
            assert told[-1]["params"]["result"] == {"context": {"slot": landed}, "value": {"err": None}}

    async def test_each_connection_is_told_only_what_it_subscribed_to(self) -> None:
        async with open_box() as (chain, caller), caller.listen() as slots, caller.listen() as roots:
            asked = {"slot": slots, "root": roots}
            numbers = {name: (await one.call(f"{name}Subscribe"))["result"] for name, one in asked.items()}
            assert numbers["slot"] != numbers["root"]
            for _ in range(FINALIZED_SLOTS + 1):
                chain.bank.advance(NOW)
            for name, one in asked.items():
                told = await one.receive()
                assert (told["method"], told["params"]["subscription"]) == (f"{name}Notification", numbers[name])

    async def test_nobody_ends_the_subscription_of_another(self) -> None:
        async with open_box() as (chain, caller), caller.listen() as one, caller.listen() as other:
            number = (await one.call("slotSubscribe"))["result"]
            assert (await other.call("slotUnsubscribe", number))["error"]["code"] == -32602
            shared = await other.call("slotSubscribe")  # nodes give equal subscriptions one number, too
            assert shared["result"] == number
            assert (await other.call("slotUnsubscribe", number))["result"] is True
            chain.bank.advance(NOW)
            assert (await one.receive())["method"] == "slotNotification"


async def test_a_method_that_is_not_there_has_the_usual_error() -> None:
    async with open_box() as (_, caller):
        assert (await caller.refuse("getNothing")) == {"code": -32601, "message": "Method not found"}


async def test_health_and_other_websites_are_answered() -> None:
    async with open_box() as (chain, caller):
        health = await caller.http.get(f"{chain.http}/health")
        assert (health.text, health.headers["access-control-allow-origin"]) == ("ok", "*")
        asked = await caller.http.options(chain.http)
        assert asked.status_code == 204
        assert "POST" in asked.headers["access-control-allow-methods"]


async def test_the_programs_accounts_are_found() -> None:
    async with open_box() as (_, caller):
        program = (await caller.call("getAccountInfo", str(COORDINATOR), {"encoding": "base64"}))["value"]
        assert program["executable"]
        assert program["owner"] == "BPFLoaderUpgradeab1e11111111111111111111111"
