"""The figures of the page about a public chain, computed from what they follow from."""

import re
from pathlib import Path

from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE, LAMPORTS_PER_SOL
from psyche.backends.solana.interface.tokens import TOKEN_BYTES
from psyche.backends.solana.member.entry import EPOCH_SIGNATURES, JOIN_SIGNATURES
from psyche.backends.solana.owner.creation import INSTANCE_BYTES, TREASURER_RUN_BYTES
from psyche.backends.solana.programs.deployment import PART_BYTES
from psyche.backends.solana.programs.loader import DATA_HEADER_BYTES, PROGRAM_BYTES
from psyche.core.state.limits import STATE_BYTES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "public-chain.md").read_text(encoding="utf-8")
ROWS = {cells[1]: cells[2:4] for line in PAGE.splitlines() if len(cells := [c.strip() for c in line.split("|")]) == 6}
SIZES = [
    (ROOT / "programs" / "built" / f"psyche_{one}.so").stat().st_size
    for one in ("coordinator", "authorizer", "treasurer")
]


def compute_deposit(*sizes_bytes: int) -> float:
    return sum((128 + size) * 6_960 for size in sizes_bytes) / LAMPORTS_PER_SOL


def test_the_deposits_are_those_of_the_chains_usual_rate() -> None:
    programs = compute_deposit(*(DATA_HEADER_BYTES + size for size in SIZES), *[PROGRAM_BYTES] * 3)
    run = compute_deposit(STATE_BYTES, INSTANCE_BYTES)
    paying = run + compute_deposit(TREASURER_RUN_BYTES, TOKEN_BYTES)
    found = {name: cells[0] for name, cells in ROWS.items()}
    assert found["the three programs, once for all runs"] == f"{programs:.2f}"
    assert (found["a run"], found["a run that pays its members"]) == (f"{run:.2f}", f"{paying:.2f}")
    assert set(re.findall(r"deposit of ([\d.]+) SOL", PAGE)) == {f"{programs:.2f}"}


def test_the_fees_are_those_of_the_signatures() -> None:
    signatures = sum(-(-size // PART_BYTES) + 4 for size in SIZES)
    fee = LAMPORTS_PER_SIGNATURE / LAMPORTS_PER_SOL
    assert ROWS["the three programs, once for all runs"][1] == f"{signatures * fee:.3f}"
    assert ROWS["a member: joining, and each epoch"][1] == f"{(JOIN_SIGNATURES + EPOCH_SIGNATURES) * fee:.5f}"
    assert f"{fee:.6f} SOL" in PAGE
