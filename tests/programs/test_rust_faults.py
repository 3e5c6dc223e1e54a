"""Faults for the Rust rules: each is one small slip in a line of code, and none is in a comment or a test."""

import tomllib
from pathlib import Path

from kits.scripts import load

faults = load("rust_faults")

ROOT = Path(__file__).parents[2]
SOURCE = """//! Says a < b.
fn compare(state: &mut State, a: u32, b: u32) -> Result<bool, Refusal> {
    if !state.halted() && a < b {
        state.nonce += 1; // one more
        return Err(Refusal::WrongRound);
    }
    Ok(true)
}

const _: () = assert!(1 < 2);

pub fn pad_text(len: usize) -> bool {
    len < 2
}

#[cfg(test)]
mod tests {
    fn nothing() { assert!(1 < 2); }
}
"""


def test_each_fault_is_one_slip_in_a_line_of_code(tmp_path: Path) -> None:
    (tmp_path / "rules.rs").write_text(SOURCE)
    (tmp_path / "tests.rs").write_text("fn f() { 1 < 2 }\n")
    found = {(fault.line, fault.after) for fault in faults.find_faults(tmp_path)}
    assert found == {
        (3, "if !state.halted() && a <= b {"),
        (3, "if !state.halted() || a < b {"),
        (3, "if state.halted() && a < b {"),
        (4, "state.nonce += 2;"),
        (4, ""),
        (5, "return Err(Refusal::Halted);"),
        (7, "Ok(false)"),
    }


def test_the_faults_that_are_called_equivalent_are_faults_of_todays_rules() -> None:
    listed = tomllib.loads((ROOT / "scripts" / "equivalent_faults.toml").read_text())["equivalent"]
    found = {(fault.path, fault.before, fault.after) for fault in faults.find_faults(ROOT / "programs/rules/src")}
    assert {(file, before, after) for _, file, before, after in listed} <= found
    assert all(why for why, *_ in listed)
