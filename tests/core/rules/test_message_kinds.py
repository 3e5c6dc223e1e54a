"""The table of message kinds: journals, requests and instructions on a chain hold its numbers."""

from psyche.core.rules.apply import BY_TYPE, KINDS, Sender

# Journals, requests and chains hold these; a new message takes the next number.
NUMBERS = {
    1: "tick", 2: "join", 3: "leave", 4: "withdraw", 5: "warmup_witness", 6: "witness", 7: "health_check",
    8: "checkpoint", 9: "report_equivocation", 10: "pause", 11: "resume", 12: "recover", 13: "reclaim_slot",
    14: "set_rates", 15: "collect", 16: "update", 17: "update_client_version",
}  # fmt: skip


def test_numbers_and_names_of_message_kinds_never_change() -> None:
    assert [(kind.number, kind.name) for kind in KINDS][: len(NUMBERS)] == list(NUMBERS.items())
    assert [kind.number for kind in KINDS] == list(range(1, len(KINDS) + 1))


def test_whoever_reports_an_equivocation_is_asked_for_evidence_not_for_a_key() -> None:
    asked = {kind.name for kind in KINDS if kind.sender is Sender.ANYBODY_WITH_EVIDENCE}
    assert asked == {"report_equivocation"}


def test_each_type_of_message_has_one_kind() -> None:
    assert list(BY_TYPE.values()) == list(KINDS)
