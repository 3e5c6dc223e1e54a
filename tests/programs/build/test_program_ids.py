"""The built programs at other addresses than those of their sources."""

from pathlib import Path

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import SOURCE_IDS, ProgramIds
from psyche.backends.solana.programs.vouching import replace_ids

BUILT = Path(__file__).parents[3] / "programs" / "built"
FILES = sorted(str(path.relative_to(BUILT)) for path in BUILT.rglob("*.so"))
KNOWS = {
    "authorizer": {"authorizer"},
    "coordinator": {"coordinator", "authorizer"},
    "treasurer": {"coordinator", "treasurer"},
}
IDS = ProgramIds(*(Keypair().pubkey() for _ in SOURCE_IDS))


def count_parts(code: bytes, key: Pubkey) -> list[int]:
    """How often each part of 4 bytes of a key is there, but for the last one, which is common."""
    return [code.count(bytes(key)[at : at + 4]) for at in range(0, 28, 4)]


@pytest.mark.parametrize("file", FILES)
def test_ids_are_replaced_wherever_a_program_has_them_and_put_back_bit_by_bit(file: str) -> None:
    source = (BUILT / file).read_bytes()
    code = replace_ids(source, SOURCE_IDS, IDS)
    known = KNOWS.get(Path(file).stem.removeprefix("psyche_"), set())
    for name, key in SOURCE_IDS._asdict().items():
        assert count_parts(code, key) == [0] * 7, name
        before, after = count_parts(source, key), count_parts(code, getattr(IDS, name))
        assert (before[1] > 0) == (name in known), name
        assert after[1:] == before[1:], name  # the ids of the sources share their first part
    assert len(code) == len(source)
    assert replace_ids(code, IDS, SOURCE_IDS) == source
