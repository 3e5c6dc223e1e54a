"""Lamports, tokens, and what a run with a treasurer gives back, by the commands, asserted on the accounts."""

import pytest
from kits.chain.box import SOL, ChainBox
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address
from test_auth_and_rewards import earn
from test_run_on_chain import put_file, read_instance

from psyche.backends.port import TargetOptions
from psyche.backends.solana.amounts import MAX_PRIORITY_LAMPORTS
from psyche.backends.solana.interface.tokens import read_mint
from psyche.backends.solana.interface.treasurer import TreasurerRun
from psyche.backends.solana.rpc.transaction import LEAST_UNITS
from psyche.backends.solana.target import SolanaTarget


def mint(box: ChainBox, wallet: str, *words: str) -> Pubkey:
    """Run `psyche dev mint`; return the token, which it prints last."""
    return Pubkey.from_string(box.call("dev", "mint", *words, wallet=wallet).splitlines()[-1])


class TestAirdrop:
    def test_the_faucet_fills_ones_own_wallet_or_one_that_is_named_without_a_key(self, box: ChainBox) -> None:
        own, other = box.fund("dry", 0), Keypair().pubkey()
        assert "has 2.5 SOL" in box.call("dev", "airdrop", "--amount", "2.5", wallet="dry")
        assert f"{other} has 1 SOL" in box.call("dev", "airdrop", "--to", str(other))
        assert [box.get_lamports(key) for key in (own.pubkey(), other)] == [2.5 * SOL, SOL]

    def test_what_a_faucet_cannot_give_is_told(self, box: ChainBox, monkeypatch: pytest.MonkeyPatch) -> None:
        words = ("dev", "airdrop", "--to", str(Keypair().pubkey()), "--amount")
        assert "more than 0" in box.refuse(*words, "0")
        assert "at most 9 digits" in box.refuse(*words, "0.0000000001")
        monkeypatch.setattr("psyche.backends.solana.rpc.client.FIRST_WAIT_S", 0.01)
        assert "the faucet gives no 18,000,000,000 SOL now" in box.refuse(*words, "18000000000")
        monkeypatch.setattr("psyche.backends.solana.owner.funds.name_cluster", lambda _hash: "mainnet-beta")
        assert "mainnet-beta has no faucet" in box.refuse(*words, "1")


class TestMint:
    def test_a_token_is_made_and_more_of_it_goes_to_wallets_and_to_accounts(self, box: ChainBox) -> None:
        maker, other = box.fund("maker"), Keypair().pubkey()
        token = mint(box, "maker", "--amount", "1000.5")
        read = read_mint(box.get_owner(token), box.get_data(token), token)
        assert (read.decimals, read.mint_authority, read.freeze_authority) == (6, maker.pubkey(), None)
        assert (read.supply, box.get_tokens(token, maker.pubkey())) == (1_000_500_000, 1_000_500_000)
        more = ("--mint", str(token), "--amount", "2", "--to")
        mint(box, "maker", *more, str(other))
        mint(box, "maker", *more, str(get_associated_token_address(other, token)))
        assert box.get_tokens(token, other) == 4_000_000

    def test_a_token_may_begin_without_any_amount_and_without_fractions(self, box: ChainBox) -> None:
        box.fund("whole")
        token = mint(box, "whole", "--decimals", "0")
        read = read_mint(box.get_owner(token), box.get_data(token), token)
        assert (read.decimals, read.supply) == (0, 0)

    def test_what_cannot_be_minted_is_refused_before_anything_is_sent(self, box: ChainBox) -> None:
        box.fund("minter")
        stranger = box.fund("stranger").pubkey()
        token, foreign = mint(box, "minter"), mint(box, "stranger", "--amount", "1")
        more = ("dev", "mint", "--mint", str(token))
        assert "alone can mint this token" in box.refuse(*more, "--amount", "1", wallet="stranger")
        assert "name the --amount" in box.refuse(*more, wallet="minter")
        assert "no --decimals" in box.refuse(*more, "--amount", "1", "--decimals", "6", wallet="minter")
        assert "at most 18,446,744,073,709.551615" in box.refuse(*more, "--amount", "0", wallet="minter")
        assert "no such token" in box.refuse("dev", "mint", "--mint", str(Keypair().pubkey()), "--amount", "1",
                                             wallet="minter")  # fmt: skip
        account = get_associated_token_address(stranger, foreign)
        aimed = (*more, "--amount", "1", "--to")
        assert f"an account of the token {foreign}" in box.refuse(*aimed, str(account), wallet="minter")
        assert "neither a wallet nor a token account" in box.refuse(*aimed, str(token), wallet="minter")
        assert read_mint(box.get_owner(token), box.get_data(token), token).supply == 0


@pytest.mark.whole
def test_the_page_on_rewards_works_without_any_tool_of_solana_and_what_is_not_owed_comes_out(box: ChainBox) -> None:
    owner, member = box.fund("gives"), box.fund("earns")
    token = mint(box, "gives", "--amount", "100")
    made = ("--treasurer-collateral-mint", str(token))
    box.call("run", "create", "--state", str(put_file(box.folder)), "-r", "gives", *made, wallet="gives")
    address = read_instance(box, "gives").main_authority
    held = TreasurerRun.read(address, box.get_data(address)).address
    take = ("rewards", "withdraw", "-r", "gives")
    assert "so 0 can be withdrawn" in box.refuse(*take, wallet="gives")
    box.call("rewards", "top-up", "-r", "gives", "--collateral-amount", "10", wallet="gives")
    earn(box, "gives", member.pubkey(), 3_000_001)
    assert "belongs to" in box.refuse(*take, wallet="earns")
    told = box.refuse(*take, "--collateral-amount", "7", wallet="gives")
    assert "holds 10 tokens and owes its members 3.000001, so 6.999999 can be withdrawn" in told
    box.call(*take, "--collateral-amount", "2", "--to", str(member.pubkey()), wallet="gives")
    assert box.get_tokens(token, member.pubkey()) == 2_000_000
    assert "takes 4.999999 tokens" in box.call(*take, wallet="gives")
    assert (box.get_tokens(token, held), box.get_tokens(token, owner.pubkey())) == (3_000_001, 94_999_999)
    box.call("rewards", "claim", "-r", "gives", wallet="earns")
    assert box.get_tokens(token, member.pubkey()) == 5_000_001
    box.call("run", "close", "-r", "gives", wallet="gives")


def test_the_quote_names_what_a_busy_chain_may_cost_more_up_to_the_ceiling(box: ChainBox) -> None:
    box.fund("fees")
    words = ("auth", "create", "--authorizer", "everybody")
    printed = box.call(*words, wallet="fees")
    assert "up to 0.0001 SOL more while the chain is busy: 100,000 lamports a transaction" in printed
    printed = box.call("auth", "delete", "--authorizer", "everybody", "--max-priority-fee", "7", wallet="fees")
    assert "up to 0.000000007 SOL more while the chain is busy: 7 lamports a transaction (--max" in printed
    printed = box.call(*words, "--max-priority-fee", "0", wallet="fees")
    assert "busy" not in printed
    assert "--max-priority-fee" in box.try_call(*words, "--max-priority-fee", "-1", wallet="fees").output


def test_a_member_pays_no_more_than_its_ceiling_to_be_early(box: ChainBox) -> None:
    target = SolanaTarget(TargetOptions(rpc=box.chain.http, max_priority_fee=1_000))
    assert target.fees.choose_price([10**9], LEAST_UNITS, 0) * LEAST_UNITS <= 1_000 * 10**6
    assert "--max-priority-fee 1000" in target.writer.chain
    assert SolanaTarget(TargetOptions(rpc=box.chain.http)).fees.max_lamports == MAX_PRIORITY_LAMPORTS
