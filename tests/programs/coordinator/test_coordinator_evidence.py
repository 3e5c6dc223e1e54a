"""`report_equivocation`: what proves that a member signed two results for one round, and what does not (R7)."""

import struct
from dataclasses import dataclass
from functools import partial

import pytest
from kits.runs import Run, get_equal_keys
from kits.svm import Refused
from programs.chain_kit import ChainStage
from programs.refusals import CoordinatorError
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.coordinator import SignedResult, build_equivocation_report, build_signature_check
from psyche.core.rules.apply import apply
from psyche.core.state.gossip import Leave, Ready, ReadyFlag, Result
from psyche.core.state.messages import ReportEquivocation
from psyche.core.state.state import ClientState, SlotState
from psyche.testing.builders import build_config, build_hash, build_identity, build_state
from psyche.wire.crypto import Identity
from psyche.wire.gossip import get_signed_bytes, sign_gossip

FIRST, SECOND = build_hash("first"), build_hash("second")
MEMBER = 1


@dataclass
class Court:
    """A run in RoundTrain on a chain, with members that sign."""

    stage: ChainStage
    run: Run
    identities: list[Identity]

    @property
    def key(self) -> Pubkey:
        return Pubkey(self.identities[MEMBER].public)

    def sign(self, commitment: bytes, *, by: int = MEMBER, **changes: object) -> SignedResult:
        """A result of the member for round 0; `changes` name another run, epoch, height or member."""
        named = {"run_uid": self.run.state.run_uid, "epoch": 0, "height": 0, "member": MEMBER, **changes}
        message = sign_gossip(self.identities[by], **named, body=Result(commitment, b""))  # type: ignore[arg-type]
        return SignedResult(get_signed_bytes(message), message.signature)

    def build(
        self, first: SignedResult, second: SignedResult, report: ReportEquivocation | None = None
    ) -> list[Instruction]:
        report = report or ReportEquivocation(0, 0, MEMBER)
        user = self.stage.bank.payer.pubkey()
        return [*build_equivocation_report(self.stage.run, user, report, self.key, (first, second))]

    def refuse(self, *instructions: Instruction) -> int | None:
        with pytest.raises(Refused) as refused:
            self.stage.bank.send(*instructions)
        return refused.value.code


@pytest.fixture
def court() -> Court:
    identities = [build_identity("member", number) for number in range(4)]
    run = Run(build_state(build_config(rounds_per_epoch=30)), keys=partial(get_equal_keys, identities))
    run.join(*range(4))
    run.warm_up()
    return Court(ChainStage(run.state), run, identities)


def test_two_results_for_one_round_eject_their_signer(court: Court) -> None:
    court.stage.bank.send(*court.build(court.sign(FIRST), court.sign(SECOND)))
    clock = court.stage.bank.svm.get_clock()
    apply(court.run.state, clock.unix_timestamp, clock.slot, bytes(32), ReportEquivocation(0, 0, MEMBER))
    assert court.stage.state == court.run.state
    assert court.stage.state.clients[MEMBER].state is ClientState.EJECTED
    assert court.stage.state.registry.slots[MEMBER].state is SlotState.BANNED


def test_one_result_twice_proves_nothing(court: Court) -> None:
    assert court.refuse(*court.build(court.sign(FIRST), court.sign(FIRST))) == CoordinatorError.UNPROVEN


@pytest.mark.parametrize("change", [{"run_uid": build_hash("other run")}, {"epoch": 1}, {"height": 1}, {"member": 2}])
@pytest.mark.parametrize("which", [0, 1])
def test_both_results_are_of_the_named_run_round_and_member(
    court: Court, which: int, change: dict[str, object]
) -> None:
    signed = [court.sign(FIRST), court.sign(SECOND)]
    signed[which] = court.sign(SECOND, **change)
    assert court.refuse(*court.build(*signed)) == CoordinatorError.UNPROVEN


def test_signatures_of_another_key_prove_nothing(court: Court) -> None:
    signed = court.sign(FIRST, by=2), court.sign(SECOND, by=2)
    report = court.build(*signed)[1]
    check = build_signature_check(Pubkey(court.identities[2].public), signed)
    assert court.refuse(check, report) == CoordinatorError.UNPROVEN


def test_false_signatures_fail_the_whole_transaction(court: Court) -> None:
    forged = SignedResult(court.sign(SECOND).message, court.sign(FIRST).signature)
    assert court.refuse(*court.build(court.sign(FIRST), forged)) != CoordinatorError.UNPROVEN
    assert court.stage.state == court.run.state


def test_other_gossip_of_87_bytes_is_no_result(court: Court) -> None:
    bodies = [Ready(FIRST, ReadyFlag(0)), Ready(SECOND, ReadyFlag(0))]
    uid, identity = court.run.state.run_uid, court.identities[MEMBER]
    messages = [sign_gossip(identity, uid, 0, 0, MEMBER, body) for body in bodies]
    signed = [SignedResult(get_signed_bytes(message), message.signature) for message in messages]
    assert [len(one.message) for one in signed] == [87, 87]
    assert court.refuse(*court.build(*signed)) == CoordinatorError.UNPROVEN


def test_the_check_stands_right_before_the_report(court: Court) -> None:
    check, report = court.build(court.sign(FIRST), court.sign(SECOND))
    other = Instruction(Pubkey.from_string("ComputeBudget111111111111111111111111111111"), b"\2\x40\x0d\3\0", [])
    assert court.refuse(report) == CoordinatorError.NO_EVIDENCE
    assert court.refuse(report, check) == CoordinatorError.NO_EVIDENCE
    assert court.refuse(check, other, report) == CoordinatorError.NO_EVIDENCE
    court.stage.bank.send(other, check, report)


def test_the_check_is_of_exactly_two_signatures(court: Court) -> None:
    first, second = court.sign(FIRST), court.sign(SECOND)
    report = court.build(first, second)[1]
    for signed in ((first,), (first, second, first)):
        assert court.refuse(build_signature_check(court.key, signed), report) == CoordinatorError.NO_EVIDENCE
    short = sign_gossip(court.identities[MEMBER], court.run.state.run_uid, 0, 0, MEMBER, Leave())
    assert len(get_signed_bytes(short)) < 87


@pytest.mark.parametrize("entry", [0, 1])
@pytest.mark.parametrize("field", [1, 3, 6])
def test_what_is_checked_lies_in_the_check_itself(court: Court, entry: int, field: int) -> None:
    """The ed25519 program may check data of other instructions, which the report does not read."""
    check, report = court.build(court.sign(FIRST), court.sign(SECOND))
    place = 2 + 14 * entry + 2 * field
    data = check.data[:place] + struct.pack("<H", 0) + check.data[place + 2 :]
    assert court.refuse(Instruction(check.program_id, data, []), report) == CoordinatorError.NO_EVIDENCE
