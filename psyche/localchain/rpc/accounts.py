"""Calls about accounts and tokens, and lamports for whoever asks."""

from typing import Any, Final

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.context import check_context, rpc_method, wrap
from psyche.localchain.rpc.encodings import (
    Form,
    accept_all,
    check_reply_size,
    describe_account,
    describe_listed,
    read_filters,
)
from psyche.localchain.rpc.errors import INTERNAL_ERROR, CallError, InvalidParams
from psyche.localchain.rpc.params import Params, check_key, check_keys
from psyche.localchain.tokens import PROGRAMS, Holding, describe_amount, find_mint, read_holding

MAX_KEYS: Final = 100
MAX_ACCOUNT_BYTES: Final = 10 << 20
LARGEST: Final = 20


@rpc_method
def get_account_info(bank: Bank, params: Params) -> Any:
    key, config = params.take_key(0), params.get_config(1)
    check_context(bank, config)
    return wrap(bank, describe_account(bank.get_account(key), Form.read(config), bank.get_account))


@rpc_method
def get_multiple_accounts(bank: Bank, params: Params) -> Any:
    keys, config = check_keys(params.take(0), MAX_KEYS), params.get_config(1)
    check_context(bank, config)
    form = Form.read(config, default="base64")
    accounts = [bank.get_account(key) for key in keys]
    check_reply_size(accounts, form)
    return wrap(bank, [describe_account(account, form, bank.get_account) for account in accounts])


@rpc_method
def get_program_accounts(bank: Bank, params: Params) -> Any:
    program, config = params.take_key(0), params.get_config(1)
    check_context(bank, config)
    form, filters = Form.read(config), read_filters(config)
    found = [(key, one) for key, one in bank.machine.get_program_accounts(program) if accept_all(filters, one)]
    check_reply_size([account for _, account in found], form)
    listed = describe_listed(found, form, bank.get_account)
    return wrap(bank, listed) if config.get_flag("withContext") else listed


@rpc_method
def get_balance(bank: Bank, params: Params) -> Any:
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    return wrap(bank, bank.get_lamports(key))


@rpc_method
def get_minimum_balance_for_rent_exemption(bank: Bank, params: Params) -> Any:
    return bank.machine.get_deposit(params.take_integer(0, MAX_ACCOUNT_BYTES))


@rpc_method
def request_airdrop(bank: Bank, params: Params) -> Any:
    """Lamports from the faucet, without limit."""
    key, lamports = params.take_key(0), params.take_integer(1)
    try:
        return str(bank.airdrop(key, lamports))
    except OverflowError:
        raise CallError(INTERNAL_ERROR, f"the faucet has no {lamports} lamports: ask for fewer") from None


# --- tokens ----------------------------------------------------------------------------------------------------


@rpc_method
def get_token_account_balance(bank: Bank, params: Params) -> Any:
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    holding = read_holding(bank.get_account(key))
    if holding is None:
        raise InvalidParams("Invalid param: not a Token account")
    mint = find_mint(bank.get_account(holding.mint))
    if mint is None:
        raise InvalidParams("Invalid param: could not find mint")
    return wrap(bank, describe_amount(holding.amount, mint.decimals))


@rpc_method
def get_token_supply(bank: Bank, params: Params) -> Any:
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    mint = find_mint(bank.get_account(key))
    if mint is None:
        raise InvalidParams("Invalid param: not a Token mint")
    return wrap(bank, describe_amount(mint.supply, mint.decimals))


@rpc_method
def get_token_largest_accounts(bank: Bank, params: Params) -> Any:
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    mint = find_mint(account := bank.get_account(key))
    if account is None or mint is None:
        raise InvalidParams("Invalid param: not a Token mint")
    listed = ((address, read_holding(one)) for address, one in bank.machine.get_program_accounts(account.owner))
    held = [(one.amount, str(address)) for address, one in listed if one is not None and one.mint == key]
    largest = sorted(held, reverse=True)[:LARGEST]
    return wrap(bank, [{"address": address, **describe_amount(amount, mint.decimals)} for amount, address in largest])


@rpc_method
def get_token_accounts_by_owner(bank: Bank, params: Params) -> Any:
    owner, wanted, config = params.take_key(0), params.take(1), params.get_config(2)
    check_context(bank, config)
    if not isinstance(wanted, dict) or len(wanted) != 1 or next(iter(wanted)) not in {"mint", "programId"}:
        raise InvalidParams("Invalid params: expected an object with mint or programId.")
    key, form = check_key(next(iter(wanted.values()))), Form.read(config)
    if "programId" in wanted and key not in PROGRAMS:
        raise InvalidParams("Invalid param: unrecognized Token program id")
    programs = (key,) if "programId" in wanted else tuple(PROGRAMS)
    found = [one for program in programs for one in bank.machine.get_program_accounts(program)]

    def is_wanted(holding: Holding | None) -> bool:
        return holding is not None and holding.owner == owner and ("programId" in wanted or holding.mint == key)

    listed = [(address, account) for address, account in found if is_wanted(read_holding(account))]
    return wrap(bank, describe_listed(listed, form, bank.get_account))
