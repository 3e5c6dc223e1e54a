"""profile.toml: who takes part in a simulated run."""

from pathlib import Path

import pytest

from psyche.config.problems import ConfigProblems
from psyche.config.profile import get_counts, load_profile

ROOT = Path(__file__).resolve().parents[2]
LINES = {"name": '"home"', "share": "1.0", "tokens_per_s": "3000", "up_mbit_s": "40", "down_mbit_s": "250.0"}


def write(folder: Path, *tables: dict[str, str]) -> Path:
    path = folder / "profile.toml"
    path.write_text("\n".join("[[class]]\n" + "\n".join(f"{k} = {v}" for k, v in t.items()) for t in tables))
    return path


@pytest.mark.parametrize("name", ["home.toml", "datacenter.toml"])
def test_the_samples_can_be_read(name: str) -> None:
    path = ROOT / "config" / "profiles" / name
    assert sum(get_counts(load_profile(path).classes, 64, path)) == 64


@pytest.mark.parametrize(
    ("tables", "chain", "told"),
    [
        ([{"tokens_per_s": '"many"'}], "",
         "class[0].tokens_per_s: must be a number, is 'many' -> tokens that one machine"),
        ([{"up_mbit_s": "-4"}], "",
         "class[0].up_mbit_s: is -4, must be above 0.0 -> line to all others together (Mbit/s"),
        ([{"up_mbit": "4"}], "", "class[0].up_mbit: unknown key -> did you mean up_mbit_s?"),
        ([{"loss_percent": "100"}], "", "class[0].loss_percent: is 100, must be below 100"),
        ([{"count": "3"}], "", "class[0]: needs one of count and share, not both"),
        ([{"back_after_min": "3"}], "", "class[0]: back_after_min has no effect without fails_every_h"),
        ([{}, {}], "", "two classes are called 'home'"),
        ([], "", "class: is missing"),
        ([{}], "slot_ms = 0", "chain.slot_ms: is 0, at least 10.0 -> length of a slot"),
        ([{}], "skipped_percent = 100", "chain.skipped_percent: is 100, must be below 100"),
        ([{}], "endpoints = 17", "chain.endpoints: is 17, at most 16"),
        ([{}], "lag_min_s = 4.0", "chain: lag_min_s must be at most lag_max_s"),
        ([{}], "slot_ms = 20", "chain: lag_max_s must be at most 100 slots, or transactions expire before they land"),
        ([{}], "lamports = 5", "chain.lamports: unknown key"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_told_with_file_line_key_and_what_would_be_right(
    tables: list[dict[str, str]], chain: str, told: str, tmp_path: Path
) -> None:
    path = write(tmp_path, *(LINES | change for change in tables))
    if chain:
        path.write_text(f"{path.read_text()}\n[chain]\n{chain}\n")
    with pytest.raises(ConfigProblems) as found:
        load_profile(path)
    assert told in str(found.value)
    assert str(found.value).startswith(f"{path}:")


def test_without_a_chain_in_the_profile_a_public_one_is_assumed(tmp_path: Path) -> None:
    chain = load_profile(write(tmp_path, LINES)).chain
    assert (chain.slot_ms, chain.lamports_per_signature) == (400.0, 5_000)


def count(folder: Path, clients: int, *parts: tuple[str, str]) -> list[int]:
    tables = []
    for number, (key, value) in enumerate(parts):
        tables.append({k: v for k, v in LINES.items() if k != "share"} | {"name": f'"c{number}"', key: value})
    path = write(folder, *tables)
    return get_counts(load_profile(path).classes, clients, path)


def test_shares_are_of_those_without_a_count(tmp_path: Path) -> None:
    assert count(tmp_path, 20, ("count", "5"), ("share", "0.5"), ("share", "0.25")) == [5, 10, 5]


def test_shares_are_rounded_so_that_all_are_given(tmp_path: Path) -> None:
    assert count(tmp_path, 5, ("share", "0.4"), ("share", "0.4"), ("share", "0.2")) == [2, 2, 1]
    assert sum(count(tmp_path, 7, ("share", "0.3"), ("share", "0.3"), ("share", "0.3"))) == 7


def test_a_tie_goes_to_the_class_that_is_named_first(tmp_path: Path) -> None:
    # Of floats, added up one after the other, these shares gave [0, 2, 0] on Python 3.11 and [1, 1, 0] on 3.12.
    assert count(tmp_path, 2, ("share", "0.05"), ("share", "0.2"), ("share", "0.05")) == [1, 1, 0]


@pytest.mark.parametrize("clients", [4, 6])
def test_counts_that_are_not_the_clients_are_refused(clients: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match=r"the counts add up to 5, but there are \d clients -> --clients 5"):
        count(tmp_path, clients, ("count", "5"))
