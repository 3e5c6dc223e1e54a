"""Amounts of tokens and SOL as people write them, exact to the last unit. Needs nothing of the extra `solana`."""

import re
from typing import Final

from psyche.core.state.limits import U64_MAX
from psyche.errors import ConfigError

SOL_DECIMALS: Final = 9
LAMPORTS_PER_SOL: Final = 10**SOL_DECIMALS
LAMPORTS_PER_SIGNATURE: Final = 5_000  # the fee that every chain asks
MAX_PRIORITY_LAMPORTS: Final = 100_000  # what a transaction pays at most to be early, unless a person says another
_AMOUNT: Final = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?")


def parse_amount(text: str, decimals: int, option: str) -> int:
    """Read an amount of tokens, such as `12.5`, as base units: exactly, without rounding."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{option} {text[:40]!r}: must be a decimal number, such as 12 or 0.25")
    fraction = found[2] or ""
    if len(fraction.rstrip("0")) > decimals:
        digits = f"at most {decimals} digits behind the point" if decimals else "no digits behind the point"
        raise ConfigError(f"{option} {text}: must have {digits}")
    amount = int(found[1] + fraction[:decimals].ljust(decimals, "0"))
    if amount > U64_MAX:
        raise ConfigError(
            f"{option} {text}: is more than {format_amount(U64_MAX, decimals)}, the most that there can be"
        )
    return amount


def format_amount(amount: int, decimals: int) -> str:
    """Write base units as people do, without zeros at the end."""
    digits = str(amount).rjust(decimals + 1, "0")
    whole, fraction = digits[: len(digits) - decimals], digits[len(digits) - decimals :].rstrip("0")
    return f"{int(whole):,}.{fraction}" if fraction else f"{int(whole):,}"


def spell_amount(amount: int, decimals: int) -> str:
    """Write base units as `parse_amount` reads them."""
    return format_amount(amount, decimals).replace(",", "")


def format_sol(lamports: int) -> str:
    return f"{format_amount(lamports, SOL_DECIMALS)} SOL"
