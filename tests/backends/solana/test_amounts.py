"""Amounts of tokens and SOL, as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.backends.solana.amounts import format_amount, format_sol, parse_amount
from psyche.core.state.limits import U64_MAX
from psyche.errors import ConfigError


@given(st.integers(0, U64_MAX), st.integers(0, 18))
def test_what_is_written_is_read_back_to_the_last_unit(amount: int, decimals: int) -> None:
    assert parse_amount(format_amount(amount, decimals).replace(",", ""), decimals, "--amount") == amount


@pytest.mark.parametrize(
    ("text", "decimals", "amount"),
    [("12", 0, 12), ("12.5", 1, 125), (" 0.25 ", 6, 250_000), ("1.500000", 1, 15), ("007", 2, 700), ("0.000", 0, 0)],
)
def test_an_amount_is_read_without_rounding(text: str, decimals: int, amount: int) -> None:
    assert parse_amount(text, decimals, "--amount") == amount


@pytest.mark.parametrize("text", ["", "-1", "+1", "1e3", "1,000", ".5", "5.", "0x1", "nan", "\u0661", "1" * 21])
def test_what_is_no_decimal_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--amount .*must be a decimal number, such as 12 or 0\.25"):
        parse_amount(text, 6, "--amount")


def test_more_digits_than_the_token_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--amount 0\.123: must have at most 2 digits behind the point"):
        parse_amount("0.123", 2, "--amount")
    with pytest.raises(ConfigError, match="must have no digits behind the point"):
        parse_amount("0.1", 0, "--amount")


def test_more_than_64_bits_are_refused_with_the_most_that_there_can_be() -> None:
    assert parse_amount(str(U64_MAX), 0, "--amount") == U64_MAX
    with pytest.raises(ConfigError, match=r"is more than 18,446,744,073,709,551,615, the most"):
        parse_amount(str(U64_MAX + 1), 0, "--amount")


@pytest.mark.parametrize(
    ("lamports", "text"),
    [(0, "0 SOL"), (5_000, "0.000005 SOL"), (1_152_777_840, "1.15277784 SOL"), (10**12, "1,000 SOL")],
)
def test_lamports_are_shown_in_sol_without_zeros_at_the_end(lamports: int, text: str) -> None:
    assert format_sol(lamports) == text
