"""The table [access] of run.toml (M12): what it says, and what is wrong with it by line and key."""

from pathlib import Path

import pytest

from psyche.config.load import load_run
from psyche.config.problems import ConfigProblems
from psyche.wire.access import Access, Authorization

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "config" / "dummy" / "run.toml").read_text(encoding="utf-8")
ADA, BEN, CARL = (f"{number:02x}" * 32 for number in (1, 2, 3))


def load(folder: Path, access: str) -> Access:
    path = folder / "run.toml"
    path.write_text(TEXT + access, encoding="utf-8")
    return load_run(path).access


def test_without_the_table_nobody_may_join(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Access()
    assert load_run(ROOT / "config" / "sample").access == Access()


def test_keys_and_authorizations_are_read(tmp_path: Path) -> None:
    text = f"""
[access]
join_authority = "{CARL}"
allow = ["{ADA}"]
[[access.authorization]]
grantee = "{BEN}"
delegates = ["{CARL}"]
[[access.authorization]]
grantee = "{CARL}"
active = false
"""
    ada, ben, carl = (bytes.fromhex(key) for key in (ADA, BEN, CARL))
    granted = (Authorization(ada), Authorization(ben, (carl,)), Authorization(carl, (), False))
    assert load(tmp_path, text) == Access(False, carl, granted)


def test_an_open_run_is_warned_about(tmp_path: Path) -> None:
    assert load(tmp_path, "[access]\nopen = true\n").is_open
    assert any("access.open lets anybody" in warning for warning in load_run(tmp_path / "run.toml").warnings)
    load(tmp_path, f'[access]\nallow = ["{ADA}"]\n')
    assert not any("access" in warning for warning in load_run(tmp_path / "run.toml").warnings)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[access]\nallow = ["abc"]\n', r"access.allow\[0\]: must be a public key: 64 hex digits"),
        (f'[access]\nallow = ["{ADA[:-2]}zz"]\n', r"access.allow\[0\]: must be a public key"),
        (f'[access]\nallow = "{ADA}"\n', "access.allow"),
        (f'[access]\nallow = ["{"00" * 32}"]\n', r"access.allow\[0\].*write open = true"),
        ('[access]\nopen = "yes"\n', "access.open"),
        ("[access]\nalow = []\n", "access.alow.*did you mean allow"),
        ("[[access.authorization]]\ndelegates = []\n", "access.authorization.*grantee"),
        ("[access]\njoin_authority = 7\n", "access.join_authority: must be a public key"),
        ("[access]\nallow = [" + ", ".join(f'"{n + 1:064x}"' for n in range(4_097)) + "]\n", "access.allow"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigProblems, match=problem):
        load(tmp_path, text)


def test_grantees_and_delegates_have_one_limit(tmp_path: Path) -> None:
    keys = [f'"{number + 1:064x}"' for number in range(3_000)]
    text = f'[access]\nallow = [{", ".join(keys)}]\n[[access.authorization]]\ngrantee = "{ADA}"\n'
    with pytest.raises(ConfigProblems, match=r"access.*6,001 keys"):
        load(tmp_path, text + f"delegates = [{', '.join(keys)}]\n")
