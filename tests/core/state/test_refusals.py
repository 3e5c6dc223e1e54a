"""The numbers of refusals: programs on a chain answer with them."""

from psyche.core.state import errors
from psyche.core.state.errors import REFUSALS, CoordinatorError

# A new refusal takes the next free number, and none is ever used again.
NUMBERS = {
    0: "Halted", 1: "InvalidRunState", 2: "WrongRound", 3: "NoActiveRound", 4: "UnknownMember", 5: "InvalidWitness",
    6: "InvalidBloom", 7: "DuplicateWitness", 8: "WitnessesFull", 9: "DigestMismatch", 10: "TooManyCandidates",
    11: "InvalidHealthCheck", 12: "InvalidCheckpoint", 13: "InvalidWithdraw", 14: "InvalidCommitteeSelection",
    15: "CannotResume", 16: "InvalidJoin", 17: "ClientsFull", 18: "StakeTooLow", 19: "Banned", 20: "InvalidEvidence",
    21: "CannotUpdate", 22: "InvalidCollection", 23: "ConfigRefused",
    24: "InvalidAudit", 25: "InvalidJudgement",
}  # fmt: skip


def test_numbers_of_refusals_never_change() -> None:
    assert {number: kind.__name__ for number, kind in REFUSALS.items()} == NUMBERS


def test_each_refusal_has_one_number_and_tells_it() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CoordinatorError)}
    assert set(REFUSALS.values()) == kinds - {CoordinatorError}
    assert {number: kind("why").number for number, kind in REFUSALS.items()} == dict(zip(NUMBERS, NUMBERS, strict=True))
