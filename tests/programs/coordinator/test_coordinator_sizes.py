"""Every transaction of the coordinator program fits the 1,232 bytes of a packet, in its largest form."""

import pytest
from kits.svm import TRANSACTION_BYTES
from transaction_kit import ALONE, TICK, WITH_TICK, compute_size, make_key

# What the tables of the documentation say: alone, with a tick, with a tick and its own fee payer.
LARGEST = {
    "witness, 256 bytes of metadata": (1_050, 1_064, 1_160),
    "report_equivocation": (737, 751, 847),
    "update: settings, first weights, nonce": (1_040, 1_040, 1_136),
}


@pytest.mark.parametrize("name", [*WITH_TICK, *ALONE])
def test_the_largest_form_fits_a_transaction(name: str) -> None:
    instructions = WITH_TICK[name] if name in WITH_TICK else ALONE[name]
    with_tick = (*instructions, TICK) if name in WITH_TICK else instructions
    sizes = compute_size(instructions), compute_size(with_tick), compute_size(with_tick, payer=make_key())
    print(name, sizes)
    assert max(sizes) <= TRANSACTION_BYTES
    assert LARGEST.get(name, sizes) == sizes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("update: settings, first weights, nonce", "update: metadata"),
        ("update: metadata", "update: four addresses"),
    ],
)
def test_these_updates_need_a_transaction_each(one: str, other: str) -> None:
    assert compute_size((*ALONE[one], *ALONE[other]), payer=make_key()) > TRANSACTION_BYTES
