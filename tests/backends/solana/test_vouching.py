"""Files of program ids, and which programs count on which chain."""

from pathlib import Path

import pytest
from solders.keypair import Keypair

from psyche.backends.solana.interface.addresses import SOURCE_IDS
from psyche.backends.solana.programs.vouching import (
    KNOWN,
    NOBODY,
    ClusterPrograms,
    VouchedProgram,
    choose_programs,
    name_cluster,
    read_program_ids,
    write_program_ids,
)
from psyche.errors import ConfigError


def make_cluster(name: str, genesis_hash: str) -> ClusterPrograms:
    programs = {one: VouchedProgram(str(Keypair().pubkey()), "ab" * 32, 1_000, NOBODY) for one in SOURCE_IDS._fields}
    return ClusterPrograms(name, genesis_hash, programs)


def test_a_file_holds_several_clusters_and_a_new_entry_replaces_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "ids.toml"
    old, other, new = make_cluster("devnet", "G1"), make_cluster("a chain", "G2"), make_cluster("devnet", "G1")
    for one in (old, other, new):
        write_program_ids(path, one)
    assert read_program_ids(path) == [other, new]
    found = choose_programs("G1", path)
    assert str(found.ids.treasurer) == new.programs["treasurer"].address
    assert found.builds["treasurer"] == [(1_000, "ab" * 32)]


def test_a_file_without_this_chain_is_refused_with_the_chains_that_it_has(tmp_path: Path) -> None:
    write_program_ids(tmp_path / "ids.toml", make_cluster("devnet", "G1"))
    with pytest.raises(ConfigError, match=r"is for devnet \(genesis hash G1\), and this chain has the genesis hash G3"):
        choose_programs("G3", tmp_path / "ids.toml")


def test_without_a_file_the_ids_of_the_sources_and_the_shipped_builds_count() -> None:
    found = choose_programs("G1", None)
    assert found.ids == SOURCE_IDS
    sums = (Path(__file__).parents[3] / "programs" / "built" / "SHA256SUMS").read_text()
    for name, builds in found.builds.items():
        for folder, (_, digest) in zip(("", "v3/"), builds, strict=True):
            assert f"{digest}  {folder}psyche_{name}.so" in sums


def test_the_known_clusters_can_be_read_and_are_named() -> None:
    assert {one.name for one in read_program_ids(KNOWN)} == {"mainnet-beta", "devnet", "testnet"}
    assert name_cluster("EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG") == "devnet"
    assert name_cluster("G1") == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "devnet"', "name = 5", r"Expected `str`, got `int` - at `\$.cluster\[0\].name`"),
        ('name = "devnet"', 'name = "a\\"b"', "matching regex"),
        ("[cluster.programs.treasurer]", "[cluster.programs.banker]", "must have coordinator, authorizer, treasurer"),
        ("size_bytes = 1000", "size_bytes = 99999999", "<= 10485760"),
        ('sha256 = "abab', 'sha256 = "zzab', "matching regex"),
        ('address = "', 'address = "0', "devnet.coordinator.address .*must be a public key"),
        ('upgrade_authority = "nobody"', 'upgrade_authority = "me"', "coordinator.upgrade_authority 'me'"),
        ("[[cluster]]", "[[cluster]", "at line"),
        (
            "size_bytes = 1000",
            "size_bytes = 1" + "0" * 5_000,
            "over 4,300 digits; `psyche dev deploy",
        ),
        ('name = "devnet"', "name = " + "[" * 3_000, "maximum recursion depth"),
    ],
)
def test_what_breaks_a_rule_is_named_with_the_file_and_the_field(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ids.toml"
    write_program_ids(path, make_cluster("devnet", "G1"))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=said) as refused:
        read_program_ids(path)
    assert str(path) in str(refused.value)
