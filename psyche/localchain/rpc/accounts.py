"""Calls about accounts, and lamports for whoever asks."""

from functools import partial
from typing import Any, Final

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.context import ChainView, check_context, wrap
from psyche.localchain.rpc.encodings import (
    Form,
    accept_all,
    check_reply_size,
    describe_account,
    describe_listed,
    read_filters,
)
from psyche.localchain.rpc.errors import INTERNAL_ERROR, CallError
from psyche.localchain.rpc.params import Params, check_keys

MAX_KEYS: Final = 100
MAX_ACCOUNT_BYTES: Final = 10 << 20


def make_account_methods(bank: Bank) -> dict[str, Method]:
    """The methods on a chain."""
    return {
        "getAccountInfo": partial(get_account_info, bank),
        "getBalance": partial(get_balance, bank),
        "getMinimumBalanceForRentExemption": partial(get_deposit, bank),
        "getMultipleAccounts": partial(get_multiple_accounts, bank),
        "getProgramAccounts": partial(get_program_accounts, bank),
        "requestAirdrop": partial(request_airdrop, bank),
    }


def get_account_info(bank: ChainView, params: Params) -> Any:
    """One account."""
    key, config = params.take_key(0), params.get_config(1)
    check_context(bank, config)
    return wrap(bank, describe_account(bank.get_account(key), Form.read(config), bank.get_account))


def get_multiple_accounts(bank: Bank, params: Params) -> Any:
    """Several accounts, null for those that are not there."""
    keys, config = check_keys(params.take(0), MAX_KEYS), params.get_config(1)
    check_context(bank, config)
    form = Form.read(config, default="base64")
    accounts = [bank.get_account(key) for key in keys]
    check_reply_size(accounts, form)
    return wrap(bank, [describe_account(account, form, bank.get_account) for account in accounts])


def get_program_accounts(bank: Bank, params: Params) -> Any:
    """All accounts of a program that pass the filters."""
    program, config = params.take_key(0), params.get_config(1)
    check_context(bank, config)
    form, filters = Form.read(config), read_filters(config)
    found = [(key, one) for key, one in bank.machine.get_program_accounts(program) if accept_all(filters, one)]
    check_reply_size([account for _, account in found], form)
    listed = describe_listed(found, form, bank.get_account)
    return wrap(bank, listed) if config.get_flag("withContext") else listed


def get_balance(bank: ChainView, params: Params) -> Any:
    """The lamports of an account."""
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    return wrap(bank, bank.get_lamports(key))


def get_deposit(bank: Bank, params: Params) -> Any:
    """The lamports that an account of this size must hold."""
    return bank.machine.get_deposit(params.take_integer(0, MAX_ACCOUNT_BYTES))


def request_airdrop(bank: Bank, params: Params) -> Any:
    """Lamports from the faucet, without limit."""
    key, lamports = params.take_key(0), params.take_integer(1)
    try:
        return str(bank.airdrop(key, lamports))
    except OverflowError:
        raise CallError(INTERNAL_ERROR, f"the faucet has no {lamports} lamports: ask for fewer") from None
