"""Calls about tokens."""

from functools import partial
from typing import Any, Final

from psyche.localchain.bank import Bank
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.context import check_context, wrap
from psyche.localchain.rpc.encodings import Form, describe_listed
from psyche.localchain.rpc.errors import InvalidParams
from psyche.localchain.rpc.params import Params, check_key
from psyche.localchain.tokens import PROGRAMS, Holding, describe_amount, find_mint, read_holding

LARGEST: Final = 20


def make_token_methods(bank: Bank) -> dict[str, Method]:
    """The methods on a chain."""
    return {
        "getTokenAccountBalance": partial(get_token_account_balance, bank),
        "getTokenAccountsByOwner": partial(get_token_accounts_by_owner, bank),
        "getTokenLargestAccounts": partial(get_token_largest_accounts, bank),
        "getTokenSupply": partial(get_token_supply, bank),
    }


def get_token_account_balance(bank: Bank, params: Params) -> Any:
    """The tokens in a token account."""
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    holding = read_holding(bank.get_account(key))
    if holding is None:
        raise InvalidParams("Invalid param: not a Token account")
    mint = find_mint(bank.get_account(holding.mint))
    if mint is None:
        raise InvalidParams("Invalid param: could not find mint")
    return wrap(bank, describe_amount(holding.amount, mint.decimals))


def get_token_supply(bank: Bank, params: Params) -> Any:
    """All tokens of a mint."""
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    mint = find_mint(bank.get_account(key))
    if mint is None:
        raise InvalidParams("Invalid param: not a Token mint")
    return wrap(bank, describe_amount(mint.supply, mint.decimals))


def get_token_largest_accounts(bank: Bank, params: Params) -> Any:
    """The accounts with most tokens of a mint."""
    key = params.take_key(0)
    check_context(bank, params.get_config(1))
    mint = find_mint(account := bank.get_account(key))
    if account is None or mint is None:
        raise InvalidParams("Invalid param: not a Token mint")
    listed = ((address, read_holding(one)) for address, one in bank.machine.get_program_accounts(account.owner))
    held = [(one.amount, str(address)) for address, one in listed if one is not None and one.mint == key]
    largest = sorted(held, reverse=True)[:LARGEST]
    return wrap(bank, [{"address": address, **describe_amount(amount, mint.decimals)} for amount, address in largest])


def get_token_accounts_by_owner(bank: Bank, params: Params) -> Any:
    """The token accounts of an owner, of one mint or one token program."""
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
